"""An attempt as a shell script that does it again without haloctl, and as a manifest. Pure."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from db.reports import AttemptRow, TaskRow
from jobs.digest import UNREAD_KINDS
from jobs.stages.base import INPUTS, OUTPUTS
from orchestrator import rows

Manifest = Mapping[str, Any]

FORMAT = 1

SCRIPT = """\
#!/bin/sh
{header}
set -eu
TOOLS=${{TOOLS:{tools}}}
folder=${{1:-{attempt}}}

mkdir "$folder"
cd "$folder"
mkdir {outputs} tmp

place() {{
    mkdir -p "${{2%/*}}"
    ln "$1" "$2" 2>/dev/null || ln -s "$1" "$2"
}}

run() {{
    env -i \\
        {environment} \\
        TMPDIR="$PWD/tmp" \\
        "$@"
}}

{inputs}{commands}
echo "outputs are in $PWD/{outputs}"
{checks}"""


def manifest(attempt: AttemptRow, task: TaskRow, path: Callable[[str], str]) -> dict[str, Any]:
    """All that is known of an attempt; `path` tells where a file with a sha256 lies."""
    inputs = {
        stage: [{**asdict(artifact), "path": path(artifact.sha256)} for artifact in artifacts]
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
    }


def script(found: Manifest) -> str:
    """The script. It makes a folder (its argument) and refuses one that is there."""
    tools = str(PurePath(found["processes"][0]["argv"][0]).parent) if found["processes"] else ""
    return SCRIPT.format(
        header="\n".join(f"# {' '.join(line.split())}".rstrip() for line in _header(found)),
        tools=f"-{shlex.quote(tools)}" if tools else "?no tool was found: name the folder of its python and tools",
        attempt=found["attempt"],
        outputs=OUTPUTS,
        environment=" \\\n        ".join(_assignments(found["environment"])),
        inputs=_inputs(found["inputs"]),
        commands="\n".join(_commands(found, tools)) + "\n",
        checks=_checks(found["artifacts"]),
    )


def _header(found: Manifest) -> list[str]:
    where = " ".join((found["node"], *found["devices"]))
    pins = " ".join(f"{package}=={version}" for package, version in found["versions"].items())
    return [
        f"{found['stage']} for {found['subject']}: attempt {found['attempt']}, {found['outcome'] or 'not ended'}",
        f"ran on {where} at {found['started_at']}, under",
        f"  pip install {pins}",
        "Elsewhere: install these, name the folder of their python and tools in TOOLS, and correct the paths below.",
    ]


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [shlex.quote(f"{name}={value}") for name, value in sorted(environment.items())]


def _inputs(inputs: Mapping[str, Iterable[Manifest]]) -> str:
    """Each file at its place, and its content verified."""
    files = [
        (artifact, f"{INPUTS}/{stage}/{artifact['name']}") for stage, found in inputs.items() for artifact in found
    ]
    placed = [f"place {shlex.join((artifact['path'], place))}\n" for artifact, place in files]
    sums = _verified([(artifact["sha256"], place) for artifact, place in files])
    return "".join(placed) + sums + "\n" if files else ""


def _commands(found: Manifest, tools: str) -> list[str]:
    """The very argv: a command's words, behind the real path that its tool had."""
    ran = [process["argv"][0] for process in found["processes"]]
    lines = []
    for number, command in enumerate(found["commands"]):
        argv = command["argv"]
        tool = PurePath(ran[number]) if number < len(ran) else PurePath(tools, argv[0])
        is_theirs = tool.parent == PurePath(tools)
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
