"""What every command has in common: help, exit codes, and a quick start."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from db.schema.tables import SCHEMA
from orchestrator.cli import COMMANDS, GROUPS
from tests.acceptance.haloctl import ROOT, Haloctl, opened

#: What no command line should wait for before it knows what is asked.
HEAVY = {"ray", "torch", "transformers", "iree", "sqlalchemy", "alembic", "pydantic", "numpy", "rich"}

WITHIN_GROUPS = ("db upgrade", "nodes drain", "nodes resume", "targets set", "import vllm", "schedule add")

PRINTS_MODULES = """
import sys
sys.argv = ["haloctl", "--help"]
from orchestrator.cli import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def haloctl(tmp_path_factory: pytest.TempPathFactory) -> Haloctl:
    """An unused haloctl."""
    folder = tmp_path_factory.mktemp("unused")
    return Haloctl(folder, folder)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Haloctl:
    """A haloctl with an empty database."""
    folder = tmp_path_factory.mktemp("ready")
    haloctl = Haloctl(folder, folder)
    haloctl.answer("db", "upgrade")
    return haloctl


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS, *WITHIN_GROUPS])
def test_help_tells_what_a_command_does_and_what_each_option_means(haloctl: Haloctl, command: str) -> None:
    done = haloctl.run(*command.split(), "--help")
    assert (done.code, done.err) == (0, "")
    usage, what = done.out.split("\n\n")[:2]
    assert usage.startswith(f"Usage: haloctl {command} ")
    assert what.strip().endswith(".")
    for entry in entries(done.out):
        name, _, meaning = re.sub(r"\s{2,}|\n\s+", "\0", entry.strip()).partition("\0")
        assert len(meaning) > 8, f"{name} is not explained"


def entries(text: str) -> list[str]:
    """The options, arguments and commands of a help text, each with its meaning."""
    blocks = re.findall(r"^(?:Options|Arguments|Commands):\n((?:  .*\n)+)", text, re.MULTILINE)
    return [entry for block in blocks for entry in re.split(r"\n(?=  \S)", block.rstrip("\n"))]


def test_help_lists_every_command(haloctl: Haloctl) -> None:
    done = haloctl.run("--help")
    assert (done.code, done.err) == (0, "")
    listed = [entry.split()[0] for entry in entries(done.out)]
    assert [name for name in listed if not name.startswith("-")] == [*COMMANDS, *GROUPS]


def test_without_arguments_help_is_printed(haloctl: Haloctl) -> None:
    assert haloctl.run() == haloctl.run("--help")


def test_the_version_is_that_of_the_package(haloctl: Haloctl) -> None:
    version = haloctl.answer("--version").strip()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    is_installed = any(distribution.metadata["Name"] == "haloctl" for distribution in metadata.distributions())
    assert version == (declared if is_installed else "a checkout that is not installed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("db", "downgrade"), "No such command 'downgrade'"),
        (("show",), "Missing argument"),
        (("list", "--no-such-option"), "No such option"),
        (("list", "--limit", "few"), "--limit"),
        (("list", "--limit", "-1"), "--limit"),
        (("wait", "0123abcd", "--timeout", "soon"), "--timeout"),
        (("submit", "demo", "another"), "unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_message(
    haloctl: Haloctl, arguments: tuple[str, ...], message: str
) -> None:
    done = haloctl.run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "0123abcd"),
        ("show", "0123abcd-01"),
        ("logs", "0123abcd-01"),
        ("logs", "0123abcd-01-1"),
        ("wait", "0123abcd"),
        ("cancel", "0123abcd"),
        ("cancel", "0123abcd-01"),
        ("retry", "0123abcd"),
        ("retry", "0123abcd-01"),
        ("matrix", "0123abcd"),
        ("results", "--job", "0123abcd"),
        ("artifacts", "0123abcd"),
        ("show", "../../etc"),
        ("show", "Ünknown"),
    ],
)
def test_an_unknown_id_is_told_in_one_message(ready: Haloctl, arguments: tuple[str, ...]) -> None:
    done = ready.run(*arguments)
    assert (done.code, done.out) == (4, "")
    (line,) = done.err.splitlines()
    assert line.startswith("haloctl: no ")
    assert "haloctl list" in line or "haloctl show" in line or "check" in line


@pytest.mark.parametrize("command", ["list", "matrix", "results", "artifacts"])
def test_with_nothing_stored_programs_get_an_empty_list_and_people_a_hint(ready: Haloctl, command: str) -> None:
    assert ready.json(command) == []
    done = ready.run(command)
    assert (done.code, done.out) == (0, "")
    assert len(done.err.splitlines()) == 1


def test_db_upgrade_makes_a_database_and_may_be_run_again(tmp_path: Path) -> None:
    with opened(tmp_path, tmp_path) as new:
        first = new.answer("db", "upgrade")
        assert SCHEMA in first
        assert (new.data / "haloctl.db").is_file()
        assert new.answer("db", "upgrade") == first


def test_the_data_folder_is_for_its_user_alone(ready: Haloctl, known_model: Path) -> None:
    for folder in (ready.data, known_model):  # the second was made by a dry run
        assert folder.stat().st_mode & 0o077 == 0


def test_nodes_tell_what_this_machine_has(ready: Haloctl) -> None:
    (node,) = ready.but_with(HALOCTL_CPU_DEVICES="3").json("nodes")
    assert node["cpus"] >= 1
    assert [(device["kind"], device["index"]) for device in node["devices"] if device["kind"] == "cpu"] == [
        ("cpu", 0),
        ("cpu", 1),
        ("cpu", 2),
    ]


def test_help_imports_nothing_heavy(haloctl: Haloctl) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_MODULES], env=haloctl.environment, capture_output=True, text=True, check=True
    )
    imported = {name.partition(".")[0] for name in done.stderr.split()}
    assert "orchestrator" in imported
    assert imported & HEAVY == set()
