"""Why tasks ran, came from the cache or wait; and scripts that do them again without haloctl."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import open_database
from db.reads import identities
from jobs.hashing import digest_of
from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Haloctl, opened
from tests.acceptance.job_specs import ONE_EXPORT

TP1 = "tiny-llama-FP16-TP1"
FLAGS = ["--iree-opt-level=O1"]
ANOTHER_COMPILE = {
    **ONE_EXPORT,
    "stages": ["export", "compile"],
    "compile": {"flags": FLAGS},
}
SCRIPT_S = 120.0

Row = dict[str, Any]


@dataclass(frozen=True)
class World:
    """A haloctl that did EVERYTHING and then some more."""

    haloctl: Haloctl
    jobs: dict[str, dict[str, Row]]  #: by what is peculiar to them; their tasks by stage and subject

    def why(self, job: str, name: str) -> Row:
        """Return the answer of `why` for programs."""
        explanation: Row = self.haloctl.json("why", self.jobs[job][name]["task"])
        return explanation

    def told(self, job: str, name: str) -> str:
        """Return the answer of `why` for people."""
        return self.haloctl.answer("why", self.jobs[job][name]["task"])


@pytest.fixture(scope="module")
def world(temporary: Path, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opened(tmp_path_factory.mktemp("why"), temporary, filled.haloctl.data) as haloctl:
        jobs = {
            "everything": filled.job,
            "other_flags": submit(haloctl, ANOTHER_COMPILE),
            "no_cache": submit(haloctl, ONE_EXPORT, "--wait", "--no-cache"),
        }
        haloctl.answer("wait", jobs["other_flags"])
        jobs["stored"] = submit(haloctl, ANOTHER_COMPILE)
        yield World(haloctl, {name: haloctl.tasks(job) for name, job in jobs.items()})


def submit(haloctl: Haloctl, keys: Row, *options: str) -> str:
    haloctl.answer("submit", haloctl.job(**keys), *options)
    job: str = haloctl.json("list", "--limit", "1")[0]["job"]
    return job


def test_a_cached_task_names_the_earlier_task(world: World) -> None:
    explanation = world.why("other_flags", f"export {TP1}")
    earlier = world.jobs["everything"][f"export {TP1}"]
    assert (explanation["state"], explanation["reason"], explanation["changes"]) == ("cached", "cached", [])
    assert (explanation["earlier"]["task"], explanation["earlier"]["ended_at"]) == (
        earlier["task"],
        earlier["ended_at"],
    )
    assert earlier["task"] in world.told("other_flags", f"export {TP1}")


def test_a_changed_flag_is_named_with_its_old_and_new_value(world: World) -> None:
    name = f"compile {TP1} cpu"
    explanation = world.why("other_flags", name)
    assert explanation["reason"] == "changed"
    assert explanation["earlier"]["task"] == world.jobs["everything"][name]["task"]
    assert explanation["changes"] == [{"entry": "settings.flags", "old": [], "new": FLAGS}]
    assert f"settings.flags  []   {json.dumps(FLAGS)}" in world.told("other_flags", name)


@pytest.mark.parametrize(
    ("job", "name", "reason", "phrase"),
    [
        ("everything", f"benchmark {TP1} cpu", "measured", "measurements are taken from the cache only with"),
        ("everything", f"invoke {TP1} mi300x", "waiting", "needs 1 x mi300x; the cluster has none"),
        ("no_cache", f"export {TP1}", "no_cache", "--no-cache"),
        ("stored", f"export {TP1}", "waiting", "haloctl wait"),
        ("stored", f"compile {TP1} cpu", "waiting", "(pending)"),
    ],
)
def test_other_reasons_are_told_too(world: World, job: str, name: str, reason: str, phrase: str) -> None:
    explanation = world.why(job, name)
    assert (explanation["reason"], explanation["changes"]) == (reason, [])
    assert phrase in explanation["text"]
    assert explanation["text"] in world.told(job, name)


def test_one_of_the_first_exports_says_that_there_was_none(world: World) -> None:
    reasons = [world.why("everything", f"export tiny-llama-FP16-TP{tp}")["reason"] for tp in (1, 2)]
    assert "first" in reasons
    assert set(reasons) <= {"first", "changed"}


def test_digests_are_those_of_what_is_kept(world: World) -> None:
    with open_database(f"sqlite:///{world.haloctl.data}/haloctl.db", create=False) as database:
        for task in world.jobs["everything"].values():
            if task["attempts"]:
                made = identities.attempt_identity(database, task["attempt"])
                assert digest_of(made.identity) == made.digest


@pytest.mark.parametrize(("name", "outputs"), [(f"export {TP1}", 3), (f"compile {TP1} cpu", 1)])
def test_a_script_makes_the_very_same_files_without_haloctl(
    world: World, tmp_path: Path, name: str, outputs: int
) -> None:
    task = world.jobs["everything"][name]["task"]
    world.haloctl.answer("reproduce", task, "--output", str(tmp_path))
    recorded = json.loads((tmp_path / "manifest.json").read_text())
    done = subprocess.run(
        ["/bin/sh", "reproduce.sh", "again"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"outputs are in {tmp_path}/again/outputs" in done.stdout
    left_out = ("log", "report", "dump")  # times, and what haloctl itself packs from a folder that the script leaves
    wanted = {row["name"]: row["sha256"] for row in recorded["artifacts"] if row["kind"] not in left_out}
    assert len(wanted) == outputs
    for file, sha256 in wanted.items():
        assert hashlib.sha256((tmp_path / "again" / "outputs" / file).read_bytes()).hexdigest() == sha256


def test_an_attempt_and_a_task_that_was_taken_over_have_the_same_script(world: World) -> None:
    name = f"export {TP1}"
    cached, computed = (world.jobs[job][name] for job in ("other_flags", "everything"))
    script = world.haloctl.answer("reproduce", cached["task"])
    assert (
        script
        == world.haloctl.answer("reproduce", computed["attempt"])
        == world.haloctl.answer("reproduce", computed["task"])
    )
    assert script.startswith("#!/bin/sh\n")


def test_the_manifest_is_also_an_answer_for_programs(world: World) -> None:
    manifest = world.haloctl.json("reproduce", world.jobs["everything"][f"compile {TP1} cpu"]["task"])
    assert manifest["commands"][0]["argv"][0] == "iree-compile"
    for artifact in manifest["inputs"]["export"]:
        assert hashlib.sha256(Path(artifact["path"]).read_bytes()).hexdigest() == artifact["sha256"]


def test_what_has_not_run_cannot_be_done_again(world: World) -> None:
    task = world.jobs["stored"][f"compile {TP1} cpu"]["task"]
    done = world.haloctl.run("reproduce", task)
    assert (done.code, done.out) == (5, "")
    assert f"haloctl why {task}" in done.err


def test_a_folder_that_cannot_be_made_is_told(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    task = world.jobs["everything"][f"export {TP1}"]["task"]
    done = world.haloctl.run("reproduce", task, "--output", str(tmp_path / "file" / "below"))
    assert done.code == 2
    assert "--output" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("arguments", [("why", "0123abcd-01"), ("reproduce", "0123abcd-01"), ("reproduce", "0-1-1")])
def test_an_unknown_id_is_told(world: World, arguments: tuple[str, ...]) -> None:
    done = world.haloctl.run(*arguments)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("haloctl: no ")
