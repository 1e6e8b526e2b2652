"""The folder of a variant's files, in which IREE's own programs run: its files, commands, script and README. Pure."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.reads.variant_files import VariantFiles
from jobs.paths import path_part
from jobs.plain_text import one_line
from jobs.stages.benchmark import TOKEN
from jobs.targets import device_flags
from jobs.task import Artifact

Config = Mapping[str, Any]  #: the config.json that export wrote

KINDS = ("mlir", "irpa", "table", "config", "vmfb")  #: of the artifacts in the folder
CONFIG, MODULE, SCRIPT, README = "config.json", "model.vmfb", "run.sh", "README.md"
BENCHMARK, RUN = "iree-benchmark-module", "iree-run-module"
IREE_TYPES = {"int64": "i64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}  #: by torch's name
#: values of arguments that no size decides: sampling of all tokens, from logits that are equal
VALUES = {
    "tokens": TOKEN,
    "targets": TOKEN,
    "starts": 0,
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "seeds": 0,
    "logits": 0,
}

RUN_SH = """\
#!/bin/sh
# {title}
# usage: sh {script} [benchmark|run] [FUNCTION [FLAG...]]
#   benchmark, the default, times with {benchmark}; run calls once with {run}
#   FUNCTION is one of: {functions}; without it all of them
# TOOLS: the folder of IREE's programs. DEVICES: the devices of the ranks, in their order.
set -eu
cd "$(dirname "$0")"
PATH=${{TOOLS:-{tools}}}:$PATH
program=benchmark
case ${{1:-}} in benchmark | run) program=$1 && shift ;; esac
functions=${{1:-{functions}}}
[ $# -eq 0 ] || shift

devices=
for device in ${{DEVICES:-{devices}}}; do devices="$devices --device=$device"; done

inputs() {{
    case $1 in
{inputs}
    *) echo "there is no function $1" >&2 && exit 2 ;;
    esac
}}

for function in $functions; do
    words=$(inputs "$function")
    # shellcheck disable=SC2086 # words are to be split
    "iree-$program-module" --module={module} $devices \\
        {parameters} \\
        $words "$@"
done
"""


@dataclass(frozen=True)
class EntryPointCall:
    """A call of a program's function, with inputs of the right shapes."""

    name: str  #: the function's, unless it serves prompts of several lengths
    function: str
    inputs: tuple[str, ...]  #: values of --input


def folder_files(variant: VariantFiles) -> list[Artifact]:
    """Return the files that the folder has."""
    return [file for file in variant.files if file.kind in KINDS]


def calls(config: Config, folder: Path = Path()) -> list[EntryPointCall]:
    """Return a call of each entry point: prefill of a whole bucket, decode after the longest prompt of its context."""
    return [
        EntryPointCall(
            path_part(entry.get("label", entry["name"])),
            path_part(entry["name"]),
            tuple(_input(argument, entry, config, folder) for argument in entry["arguments"]),
        )
        for entry in config["entry_points"]
    ]


def _input(argument: Mapping[str, Any], entry: Mapping[str, Any], config: Config, folder: Path) -> str:
    if "input" in argument:  # written by export
        return str(argument["input"])
    if "file" in argument:  # a block table
        return f"@{folder / path_part(argument['file'])}"
    value = VALUES.get(argument["name"], entry.get("prompt_tokens", _position(entry, config)))
    shape = "".join(f"{size}x" for size in argument["shape"])
    return f"{shape}{IREE_TYPES[argument['dtype']]}={value}"


def _position(entry: Mapping[str, Any], config: Config) -> int:
    """Return the position after the longest prompt that a decode's context holds."""
    prompts = config["prompt_tokens"]
    context = entry.get("context", max(prompts) + 1)
    return int(max((prompt for prompt in prompts if prompt < context), default=context - 1))


def commands(config: Config, target: str, folder: Path, tool: str = BENCHMARK) -> list[tuple[str, ...]]:
    """Return the argv of each entry point; none for a shape, which has no weights to run with."""
    if not config["parameter_files"]:
        return []
    program_flags = (
        f"--module={folder / MODULE}",
        *device_flags(target, config["devices"]),
        *_parameters(config, folder),
    )
    return [
        (tool, *program_flags, f"--function={call.function}", *(f"--input={value}" for value in call.inputs))
        for call in calls(config, folder)
    ]


def _parameters(config: Config, folder: Path) -> list[str]:
    """Return a flag for each rank's file; all of them are in one scope."""
    scope = path_part(config["parameter_scope"])
    return [f"--parameters={scope}={folder / path_part(name)}" for name in config["parameter_files"]]


def script(variant: VariantFiles, config: Config, tools: str) -> str:
    """Return the script that times or runs the functions in its folder; `tools` is where IREE's programs are."""
    devices = [flag.removeprefix("--device=") for flag in device_flags(variant.target, config["devices"])]
    return RUN_SH.format(
        title=_title(variant),
        script=SCRIPT,
        benchmark=BENCHMARK,
        run=RUN,
        tools=shlex.quote(tools),
        functions=" ".join(call.name for call in calls(config)),
        devices=" ".join(devices),
        inputs="\n".join(_case(call) for call in calls(config)),
        module=MODULE,
        parameters=" ".join(_parameters(config, Path())),
    )


def _case(call: EntryPointCall) -> str:
    words = (f"--function={call.function}", *(f"--input={value}" for value in call.inputs))
    return f"    {call.name}) echo {shlex.quote(' '.join(words))} ;;"


def readme(variant: VariantFiles, config: Config, versions: Mapping[str, str]) -> str:
    """Return the README: what the folder has, where it came from, and how to run it."""
    pins = " ".join(f"{package}=={version}" for package, version in sorted(versions.items()))
    files = "\n".join(f"| {file.name} | {file.size_bytes} | {file.sha256} |" for file in folder_files(variant))
    return "\n".join(
        [
            f"# {_title(variant)}",
            "",
            f"Exported by task {variant.export_task}, compiled by task {variant.compile_task} under",
            "",
            f"    {pins}",
            "",
            "| file | bytes | sha256 |",
            "|---|---|---|",
            files,
            "",
            *_how_to_run(config, variant.target),
            "",
        ]
    )


def _how_to_run(config: Config, target: str) -> list[str]:
    by_hand = commands(config, target, Path())
    if not by_hand:
        return ["A shape has no weights: there is nothing to run the module with."]
    return [
        f"`sh {SCRIPT}` times every function, `sh {SCRIPT} run` calls each once; by hand, in this folder:",
        "",
        *(f"    {shlex.join(argv)}" for argv in by_hand),
        "",
        f"{CONFIG} has shapes, types, parameter files and the order of arguments. {_describe_cache(config)}",
        *(line for name, text in config.get("calling", {}).items() for line in ("", f"{name}: {text}")),
    ]


def _describe_cache(config: Config) -> str:
    if "pages" in config:
        return "Keys and values are in pages that\nthe caller passes in: these commands pass zeros."
    return "The KV cache lives inside the\nmodule: decode steps follow a prefill of the same batch."


def _title(variant: VariantFiles) -> str:
    return one_line(f"{variant.variant} for {variant.target}, of job {variant.job}")
