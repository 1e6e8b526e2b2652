"""An attempt as a shell script that does it again without haloctl, and as a manifest. Pure."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from db.reports import AttemptRow, TaskRow
from jobs.digest import UNREAD_KINDS
from jobs.stages import stage_of
from jobs.stages.base import INPUTS, OUTPUTS
from jobs.task import Artifact
from jobs.toolchains import Lock
from orchestrator.repeating import reproduction_script as shell
from orchestrator.showing import rows
from workers.environment import visible_devices
from workers.toolchains.resolving import normal, pin_of

Manifest = Mapping[str, Any]

FORMAT = 2
PORT = 29500  #: of a gang's first node, where none is given: torchrun's own
OF_GANGS = "PET_"  #: how the variables begin that tell a gang's nodes of each other
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")


def manifest(
    attempt: AttemptRow,
    task: TaskRow,
    lock: Lock | None,
    where: Callable[[Artifact], Mapping[str, Any]],
    programs: str,
) -> dict[str, Any]:
    """All that is known of an attempt.

    `where` tells of an input the `path` where it lies, empty if that is no file here, and perhaps `urls` of its parts;
    `programs` is the folder of our packages.
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
        **rows.attempt(attempt),
        "host_cpu": attempt.host_cpu,
        "commands": [asdict(command) for command in attempt.commands],
        "inputs": inputs,
        "places": [asdict(place) for place in attempt.places],
        "masks": [visible_devices(place.devices) for place in attempt.places],
        "lock": asdict(lock) if lock else None,
        "programs": programs if stage_of(task.stage, task.settings).has_program else "",
    }


def script(found: Manifest) -> str:
    """The script. It makes a folder (its first argument) and refuses one that is there."""
    was = str(PurePath(found["processes"][0]["argv"][0]).parent) if found["processes"] else ""
    return shell.SCRIPT.format(
        header="\n".join(f"# {' '.join(line.split())}".rstrip() for line in _header(found)),
        start=_start(found),
        outputs=OUTPUTS,
        functions="".join((shell.PLACE, _run(found), _programs(found), shell.IS_AS_IT_WAS, _build(found))),
        inputs=_inputs(found["inputs"]),
        tools=_tools(found, was),
        commands="\n".join(_commands(found, was)),
        checks=_checks(found["artifacts"]),
    )


def _is_gang(found: Manifest) -> bool:
    return len(found["places"]) > 1


def _header(found: Manifest) -> list[str]:
    where = " ".join((found["node"], *found["devices"]))
    more = " NODE_RANK ADDRESS [PORT]" if _is_gang(found) else ""
    return [
        f"{found['stage']} for {found['subject']}: attempt {found['attempt']}, {found['outcome'] or 'not ended'}",
        f"ran on {where} at {found['started_at']}, under",
        f"  pip install {' '.join(_pins(found['versions']))}",
        f"usage: sh reproduce.sh [FOLDER]{more}",
        "TOOLS names the folder of the python and the tools to use. Without it: what it ran under, where that is here",
        "and still has these versions; else they are installed below FOLDER.",
    ]


def _start(found: Manifest) -> str:
    """What the script is told by its arguments."""
    if not _is_gang(found):
        return shell.ALONE.format(attempt=found["attempt"])
    nodes = [place["node"] for place in found["places"]]
    starts = [f"    {' '.join(node.split())}: sh reproduce.sh FOLDER {rank} ADDRESS" for rank, node in enumerate(nodes)]
    return shell.GANG.format(
        attempt=found["attempt"],
        port=PORT,
        size=len(nodes),
        last=len(nodes) - 1,
        starts="\n".join(starts),
        masks="\n".join(f"{rank}) masks={shlex.quote(_mask(mask))} ;;" for rank, mask in enumerate(found["masks"])),
    )


def _mask(mask: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(mask.items()))


def _run(found: Manifest) -> str:
    """The very environment; what differs from node to node of a gang is the script's to say."""
    fixed = found["environment"]
    if not _is_gang(found):
        return shell.RUN.format(environment=_lines_of(fixed), devices="")
    masked = {name for mask in found["masks"] for name in mask}
    fixed = {name: value for name, value in fixed.items() if not name.startswith(OF_GANGS) and name not in masked}
    return shell.RUN.format(
        environment=_lines_of(fixed),
        devices=f' $masks \\\n        PET_NNODES={len(found["places"])} PET_NODE_RANK="$rank"'
        ' PET_MASTER_ADDR="$address" PET_MASTER_PORT="$port"',
    )


def _lines_of(environment: Mapping[str, str]) -> str:
    return " \\\n        ".join(_assignments(environment))


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [shlex.quote(f"{name}={value}") for name, value in sorted(environment.items())]


def _programs(found: Manifest) -> str:
    return shell.PROGRAMS.format(root=shlex.quote(found["programs"])) if found["programs"] else ""


def _build(found: Manifest) -> str:
    """How the toolchain is installed: a lock's very lines, over the versions of what it lies over."""
    lock = found["lock"] or {"lines": (), "versions": found["versions"], "is_over": True, "python": ""}
    own = {pin_of(line)[0] for line in lock["lines"]}
    under = {name: version for name, version in lock["versions"].items() if lock["is_over"] and normal(name) not in own}
    installs = [shell.INSTALL_PINS] if under else []
    installs += [shell.INSTALL_LOCK] if lock["lines"] else []
    return shell.BUILD.format(
        pins="\n".join(_pins(under)),
        lines="\n".join(lock["lines"]),
        python=f" --python {shlex.quote(lock['python'])}" if lock["python"] else "",
        installs="\n".join(installs),
    )


def _pins(versions: Mapping[str, str]) -> list[str]:
    pins = (f"{package}=={version}" for package, version in sorted(versions.items()))
    return [pin for pin in pins if PIN.fullmatch(pin)]


def _tools(found: Manifest, was: str) -> str:
    return shell.TOOLS.format(
        pins=" ".join(_pins(found["versions"])),
        was=shlex.quote(was),
        programs=shell.NEEDS_PROGRAMS if found["programs"] else "",
    )


def _inputs(inputs: Mapping[str, Iterable[Manifest]]) -> str:
    """Each file at its place, and its content verified."""
    files = [
        (artifact, f"{INPUTS}/{stage}/{artifact['name']}") for stage, found in inputs.items() for artifact in found
    ]
    placed = [
        f"place {shlex.join((artifact['sha256'], place, artifact['path'], *artifact.get('urls', ())))}\n"
        for artifact, place in files
    ]
    sums = _verified([(artifact["sha256"], place) for artifact, place in files])
    return "".join(placed) + sums + "\n" if files else ""


def _commands(found: Manifest, was: str) -> list[str]:
    """The very argv: a command's words, behind the real path that its tool had."""
    ran = [process["argv"][0] for process in found["processes"]]
    lines = []
    for number, command in enumerate(found["commands"]):
        argv = command["argv"]
        tool = PurePath(ran[number]) if number < len(ran) else PurePath(was, argv[0])
        is_theirs = tool.parent == PurePath(was)
        name = f'"$TOOLS"/{shlex.quote(tool.name)}' if is_theirs else shlex.quote(str(tool))
        lines.append(" ".join(("run", *_assignments(command["env"]), name, shlex.join(argv[1:]))))
    return lines


def _checks(artifacts: Iterable[Manifest]) -> str:
    """Whether the outputs are what they were; logs and reports have times in them."""
    kept = [(found["sha256"], f"{OUTPUTS}/{found['name']}") for found in artifacts if found["kind"] not in UNREAD_KINDS]
    return _verified(kept) if kept else ""


def _verified(files: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{sha256}  {path}\n" for sha256, path in files)
    return f"sha256sum -c - <<'SUMS'\n{lines}SUMS\n"
