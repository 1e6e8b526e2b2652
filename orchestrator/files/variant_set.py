"""A variant's files as a folder that IREE's own programs run in: the commands, a script, and what is in it. Pure."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.variant_files import VariantFiles
from jobs.stages.benchmark import TOKEN
from jobs.targets import device_flags
from jobs.task import Artifact

Config = Mapping[str, Any]  #: the config.json that export wrote

KINDS = ("mlir", "irpa", "table", "config", "vmfb")  #: the artifacts that are laid out
CONFIG, MODULE, SCRIPT, README = "config.json", "model.vmfb", "run.sh", "README.md"
BENCHMARK, RUN = "iree-benchmark-module", "iree-run-module"
TYPES = {"int64": "i64"}  #: torch's names of arguments' types, and IREE's

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
class Call:
    """A function of a program, with inputs of the right shapes."""

    name: str  #: the function's, but where one function serves prompts of any length
    function: str
    inputs: tuple[str, ...]  #: as --input takes them


def laid_out(found: VariantFiles) -> list[Artifact]:
    """The files that the folder holds."""
    return [file for file in found.files if file.kind in KINDS]


def calls(config: Config, folder: Path = Path()) -> list[Call]:
    """Every entry point: a prefill of a whole bucket, a decode step at the first position after the longest prompt."""
    return [
        Call(
            entry.get("label", entry["name"]),
            entry["name"],
            tuple(_input(argument, entry, config, folder) for argument in entry["arguments"]),
        )
        for entry in config["entry_points"]
    ]


def _input(argument: Mapping[str, Any], entry: Mapping[str, Any], config: Config, folder: Path) -> str:
    if "input" in argument:  # as export wrote it
        return str(argument["input"])
    if "file" in argument:  # a block table
        return f"@{folder / argument['file']}"
    value = TOKEN if argument["name"] == "tokens" else entry.get("prompt_tokens", max(config["prompt_tokens"]))
    shape = "".join(f"{size}x" for size in argument["shape"])
    return f"{shape}{TYPES[argument['dtype']]}={value}"


def commands(config: Config, target: str, folder: Path, tool: str = BENCHMARK) -> list[tuple[str, ...]]:
    """The argv of each entry point; none for a shape, which has no weights to run with."""
    if not config["parameter_files"]:
        return []
    loaded = (
        f"--module={folder / MODULE}",
        *device_flags(target, config["devices"]),
        *_parameters(config, folder),
    )
    return [
        (tool, *loaded, f"--function={call.function}", *(f"--input={value}" for value in call.inputs))
        for call in calls(config, folder)
    ]


def _parameters(config: Config, folder: Path) -> list[str]:
    """One flag for each rank's file; all of them are in one scope."""
    return [f"--parameters={config['parameter_scope']}={folder / name}" for name in config["parameter_files"]]


def script(found: VariantFiles, config: Config, tools: str) -> str:
    """The script that times or runs the functions where it lies; `tools` is the folder of the programs."""
    devices = [flag.removeprefix("--device=") for flag in device_flags(found.target, config["devices"])]
    return RUN_SH.format(
        title=_title(found),
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


def _case(call: Call) -> str:
    words = (f"--function={call.function}", *(f"--input={value}" for value in call.inputs))
    return f"    {call.name}) echo {shlex.quote(' '.join(words))} ;;"


def readme(found: VariantFiles, config: Config, versions: Mapping[str, str]) -> str:
    """What the folder holds, where it came from, and how it is run."""
    pins = " ".join(f"{package}=={version}" for package, version in sorted(versions.items()))
    files = "\n".join(f"| {file.name} | {file.size_bytes} | {file.sha256} |" for file in laid_out(found))
    return "\n".join(
        [
            f"# {_title(found)}",
            "",
            f"Exported by task {found.export_task}, compiled by task {found.compile_task} under",
            "",
            f"    {pins}",
            "",
            "| file | bytes | sha256 |",
            "|---|---|---|",
            files,
            "",
            *_how_to_run(config, found.target),
            "",
        ]
    )


def _how_to_run(config: Config, target: str) -> list[str]:
    here = commands(config, target, Path())
    if not here:
        return ["A shape has no weights: there is nothing to run the module with."]
    return [
        f"`sh {SCRIPT}` times every function, `sh {SCRIPT} run` calls each once; by hand, in this folder:",
        "",
        *(f"    {shlex.join(argv)}" for argv in here),
        "",
        f"{CONFIG} tells shapes, types, parameter files and the order of arguments. {_where_the_cache_is(config)}",
    ]


def _where_the_cache_is(config: Config) -> str:
    if "pages" in config:
        return "Keys and values are in pages that\nthe caller hands in: here each function is handed zeros."
    return "The KV cache lives inside the\nmodule: decode steps follow a prefill of the same batch."


def _title(found: VariantFiles) -> str:
    return f"{found.variant} for {found.target}, of job {found.job}"


def choose(candidates: Sequence[VariantFiles], name: str) -> Sequence[VariantFiles]:
    """Those that `name` means: the variant that is called so, else all whose names start so."""
    exact = [found for found in candidates if found.variant == name]
    return exact or candidates


def named(candidates: Iterable[VariantFiles]) -> str:
    """Candidates for a person to choose from."""
    return ", ".join(f"{found.variant} ({found.target})" for found in candidates)
