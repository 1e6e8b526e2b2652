"""How the compiler chose to generate each kernel, and into how many workgroups it is split."""

import math
import re
from pathlib import Path

NAME = re.compile(r"hal\.executable\.export public @\"?([^\s\"(]+)")
PIPELINE = re.compile(r"pipeline = (?:#iree_\w+\.pipeline<)?(\w+)")
LOWERING = re.compile(r"lowering_config = (#iree_\w+\.lowering_config<)")
GRID = re.compile(r"hal\.executable\.export public @\"?([^\s\"(]+)\"? ordinal.*?\n(.*?)hal\.return (.*?) :", re.DOTALL)
CONSTANT = re.compile(r"(%\S+) = arith\.constant (\d+) : index")
MAX_CONFIG = 400  #: characters


def read_configurations(folder: Path) -> dict[str, dict[str, str]]:
    """Return the pipeline and the lowering config of each kernel that has one."""
    configurations = {}
    for path in sorted(folder.glob("configured_*.mlir")):
        text = path.read_text(errors="replace")
        if name := NAME.search(text):
            pipeline = PIPELINE.search(text)
            configurations[name[1]] = {
                "pipeline": pipeline[1] if pipeline else "",
                "lowering": _lowering(text),
            }
    return configurations


def _lowering(text: str) -> str:
    """Return what stands between the angle brackets of the first lowering config."""
    match = LOWERING.search(text)
    if not match:
        return ""
    depth = 1
    for index in range(match.end(), min(len(text), match.end() + MAX_CONFIG)):
        depth += {"<": 1, ">": -1}.get(text[index], 0)
        if depth == 0:
            return text[match.end() : index].strip("{}")
    return text[match.end() : match.end() + MAX_CONFIG]


def read_workgroups(folder: Path) -> dict[str, int]:
    """Return how many workgroups each kernel starts, where that is known before it runs."""
    workgroups = {}
    for path in folder.glob("*.executable-targets.mlir"):
        for match in GRID.finditer(path.read_text(errors="replace")):
            constants = dict(CONSTANT.findall(match[2]))
            sizes = [constants.get(each.strip()) for each in match[3].split(",")]
            if all(sizes):
                workgroups[match[1]] = math.prod(int(size or 0) for size in sizes)
    return workgroups
