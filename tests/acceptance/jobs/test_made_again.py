"""A damaged file in the artifact store fails no job: two that need it at once continue when one has regenerated it."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import ONE_EXPORT

TP1 = "tiny-llama-FP16-TP1"
EXPORT, COMPILE = f"export {TP1}", f"compile {TP1} cpu"
OTHER_FLAGS = {**ONE_EXPORT, "stages": ["export", "compile"], "compile": {"flags": ["--iree-opt-level=O1"]}}


def damage(haloctl: Haloctl) -> dict[str, Any]:
    """Flip a bit of the compiler's input; returns the artifact."""
    artifact: dict[str, Any] = next(
        row for row in haloctl.json("artifacts", "--kind", "mlir") if row["subject"] == TP1 and row["stage"] == "export"
    )
    file = Path(artifact["path"])
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    os.chmod(file, 0o644)
    file.write_bytes(content)
    return artifact


def test_two_submits_at_once_make_what_was_damaged_again_and_compile_once(copied: Haloctl) -> None:
    earlier = copied.only_job()["job"]
    lost, path = damage(copied), copied.job(**OTHER_FLAGS)
    submits = [copied.start("submit", path, "--wait") for _ in range(2)]
    ends = [submit.end() for submit in submits]
    assert [end.code for end in ends] == [0, 0], ends
    assert any("after export makes model.mlir again" in end.err for end in ends)

    assert hashlib.sha256(Path(lost["path"]).read_bytes()).hexdigest() == lost["sha256"]
    tasks = {row["job"]: copied.tasks(row["job"]) for row in copied.json("list") if row["job"] != earlier}
    whole = [copied.json("show", task["task"]) for by_name in tasks.values() for task in by_name.values()]
    ran = {attempt["attempt"]: task["stage"] for task in whole for attempt in task["attempts"] if attempt["processes"]}
    assert sorted(ran.values()) == ["compile", "export"], "what both need is done once"
    compiled = next(by_name for by_name in tasks.values() if by_name[COMPILE]["state"] == "succeeded")
    waited = next(by_name for by_name in tasks.values() if by_name is not compiled)
    assert waited[COMPILE]["cached_from"] == compiled[COMPILE]["task"]

    noticed = [  # whichever submit's task began first met the damaged file
        attempt["failure"]["message"]
        for task in whole
        for attempt in task["attempts"]
        if (attempt["failure"] or {}).get("kind") == "input_lost"
    ]
    assert any("model.mlir, which export made: damaged: what was there lies in " in message for message in noticed)
    reasons = {task["stage"]: copied.json("why", task["task"]) for task in whole if task["state"] == "succeeded"}
    assert (reasons["export"]["reason"], reasons["compile"]["reason"]) == ("regenerated", "changed")
    assert "to make model.mlir again for " in reasons["export"]["text"]
    assert copied.states(earlier)[EXPORT] == "succeeded", "a job that is done is left alone"
    copied.answer("db", "check")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "link"], "no stage is called 'link'; its stages are export, compile"),
        (["--from", "invoke"], "the job has no stage invoke; its stages are export, compile"),
        (["--from", "export", "--no-cache"], "--no-cache, --from: choose one"),
    ],
)
def test_wishes_that_can_not_be_had_are_refused(fresh: Haloctl, options: list[str], message: str) -> None:
    done = fresh.run("submit", fresh.job(**OTHER_FLAGS), *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert fresh.json("list") == []
