"""An attempt as a manifest, and as a shell script that repeats it without haloctl. Pure."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from db.reads.reports import AttemptRow, TaskRow
from jobs.artifact_kinds import is_input
from jobs.exporters import stage_of
from jobs.masking import masked
from jobs.paths import path_part
from jobs.plain_text import one_line
from jobs.stages.base import INPUTS, OUTPUTS
from jobs.task import Artifact
from jobs.toolchains import Lock
from orchestrator.reruns import reproduction_script as shell
from orchestrator.views import rows
from workers.environment import visible_devices
from workers.toolchains.resolving import normalize_name, parse_pin

Manifest = Mapping[str, Any]

FORMAT = 2
PORT = 29500  #: of a gang's first node, where none is given: torchrun's default
GANG_PREFIX = "PET_"  #: of the variables that tell a gang's nodes about each other
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")


def manifest(
    attempt: AttemptRow,
    task: TaskRow,
    lock: Lock | None,
    where: Callable[[Artifact], Mapping[str, Any]],
    programs: str,
) -> dict[str, Any]:
    """Return all that is known of an attempt.

    `where` returns an input's `path`, empty if it is no local file, and possibly `urls` of its parts; `programs` is the
    folder of haloctl's packages.
    """
    inputs = {
        stage: [{**asdict(artifact), **where(artifact)} for artifact in artifacts]
        for stage, artifacts in attempt.inputs.items()
    }
    return {
        "format": FORMAT,
        "task": task.id,
        "stage": task.stage,
        "subject": task.subject,
        "settings": dict(task.settings),
        **rows.attempt_to_json(attempt),
        "host_cpu": attempt.host_cpu,
        "commands": masked([asdict(command) for command in attempt.commands]),
        "inputs": inputs,
        "places": [asdict(place) for place in attempt.places],
        "masks": [visible_devices(place.devices) for place in attempt.places],
        "lock": asdict(lock) if lock else None,
        "programs": programs if stage_of(task.stage, task.settings).has_program else "",
    }


def script(record: Manifest) -> str:
    """Return the script. It creates a folder, its first argument, and refuses an existing one."""
    was = str(PurePath(record["processes"][0]["argv"][0]).parent) if record["processes"] else ""
    return shell.SCRIPT.format(
        header="\n".join(f"# {one_line(line)}".rstrip() for line in _header(record)),
        start=_start(record),
        outputs=OUTPUTS,
        functions="".join((shell.PLACE, _run(record), _programs(record), shell.IS_AS_IT_WAS, _build(record))),
        inputs=_inputs(record["inputs"]),
        tools=_tools(record, was),
        commands="\n".join(_commands(record, was)),
        checks=_checks(record["artifacts"]),
    )


def _is_gang(record: Manifest) -> bool:
    return len(record["places"]) > 1


def _header(record: Manifest) -> list[str]:
    where = " ".join((record["node"], *record["devices"]))
    more = " NODE_RANK ADDRESS [PORT]" if _is_gang(record) else ""
    return [
        f"{record['stage']} for {record['subject']}: attempt {record['attempt']}, {record['outcome'] or 'not ended'}",
        f"ran on {where} at {record['started_at']}, under",
        f"  pip install {' '.join(_pins(record['versions']))}",
        f"usage: sh reproduce.sh [FOLDER]{more}",
        "TOOLS names the folder of the python and the tools to use. Without it: what it ran under, where that is here",
        "and still has these versions; else they are installed below FOLDER.",
    ]


def _start(record: Manifest) -> str:
    """Return the lines that read the script's arguments."""
    if not _is_gang(record):
        return shell.ALONE.format(attempt=path_part(record["attempt"]))
    nodes = [place["node"] for place in record["places"]]
    starts = [f"    {one_line(node)}: sh reproduce.sh FOLDER {rank} ADDRESS" for rank, node in enumerate(nodes)]
    return shell.GANG.format(
        attempt=path_part(record["attempt"]),
        port=PORT,
        size=len(nodes),
        last=len(nodes) - 1,
        starts="\n".join(starts),
        masks="\n".join(f"{rank}) masks={shlex.quote(_mask(mask))} ;;" for rank, mask in enumerate(record["masks"])),
    )


def _mask(mask: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(mask.items()))


def _run(record: Manifest) -> str:
    """The very environment; what differs from node to node of a gang is the script's to say."""
    fixed = record["environment"]
    if not _is_gang(record):
        return shell.RUN.format(environment=_lines_of(fixed), devices="")
    masked = {name for mask in record["masks"] for name in mask}
    fixed = {name: value for name, value in fixed.items() if not name.startswith(GANG_PREFIX) and name not in masked}
    return shell.RUN.format(
        environment=_lines_of(fixed),
        devices=f' $masks \\\n        PET_NNODES={len(record["places"])} PET_NODE_RANK="$rank"'
        ' PET_MASTER_ADDR="$address" PET_MASTER_PORT="$port"',
    )


def _lines_of(environment: Mapping[str, str]) -> str:
    return " \\\n        ".join(_assignments(environment))


def _assignments(environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of env; a name that is none could be an option of env."""
    return [shlex.quote(f"{name}={value}") for name, value in sorted(environment.items()) if VARIABLE.fullmatch(name)]


def _programs(record: Manifest) -> str:
    return shell.PROGRAMS.format(root=shlex.quote(record["programs"])) if record["programs"] else ""


def _build(record: Manifest) -> str:
    """Return the lines that install the toolchain: those of its lock, over the versions that the lock builds on."""
    lock = record["lock"] or {"lines": (), "versions": record["versions"], "is_over": True, "python": ""}
    locked = {parse_pin(line)[0] for line in lock["lines"]}
    versions = lock["versions"].items() if lock["is_over"] else ()
    under = {name: version for name, version in versions if normalize_name(name) not in locked}
    installs = [shell.INSTALL_PINS] if under else []
    installs += [shell.INSTALL_LOCK] if lock["lines"] else []
    return shell.BUILD.format(
        pins="\n".join(_pins(under)),
        lines="\n".join(map(one_line, lock["lines"])),
        python=f" --python {shlex.quote(lock['python'])}" if lock["python"] else "",
        installs="\n".join(installs),
    )


def _pins(versions: Mapping[str, str]) -> list[str]:
    pins = (f"{package}=={version}" for package, version in sorted(versions.items()))
    return [pin for pin in pins if PIN.fullmatch(pin)]


def _tools(record: Manifest, was: str) -> str:
    return shell.TOOLS.format(
        pins=" ".join(_pins(record["versions"])),
        was=shlex.quote(was),
        programs=shell.NEEDS_PROGRAMS if record["programs"] else "",
    )


def _inputs(inputs: Mapping[str, Iterable[Manifest]]) -> str:
    """Return the lines that place each input and verify its content."""
    files = [
        (artifact, f"{INPUTS}/{path_part(stage)}/{path_part(artifact['name'])}")
        for stage, artifacts in inputs.items()
        for artifact in artifacts
    ]
    placed = [
        f"place {shlex.join((artifact['sha256'], place, artifact['path'], *artifact.get('urls', ())))}\n"
        for artifact, place in files
    ]
    sums = _verified([(artifact["sha256"], place) for artifact, place in files])
    return "".join(placed) + sums + "\n" if files else ""


def _commands(record: Manifest, was: str) -> list[str]:
    """Return the exact argv of each command, with the real path that its tool had."""
    ran = [process["argv"][0] for process in record["processes"]]
    lines = []
    for number, command in enumerate(record["commands"]):
        argv = command["argv"]
        tool = PurePath(ran[number]) if number < len(ran) else PurePath(was, argv[0])
        is_theirs = tool.parent == PurePath(was)
        name = f'"$TOOLS"/{shlex.quote(tool.name)}' if is_theirs else shlex.quote(str(tool))
        lines.append(" ".join(("run", *_assignments(command["env"]), name, shlex.join(argv[1:]))))
    return lines


def _checks(artifacts: Iterable[Manifest]) -> str:
    """Return the lines that verify the outputs, except for logs and reports, which contain times."""
    files = [(file["sha256"], f"{OUTPUTS}/{path_part(file['name'])}") for file in artifacts if is_input(file["kind"])]
    return _verified(files) if files else ""


def _verified(files: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{path_part(sha256)}  {path}\n" for sha256, path in files)
    return f"sha256sum -c - <<'SUMS'\n{lines}SUMS\n"
