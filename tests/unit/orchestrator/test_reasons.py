"""Why a task ran: decided from what attempts were made of."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from db.reads.identities import AttemptIdentity, ReusePolicy
from jobs.digest import count_shared_entries, differences, entries, identity, task_digest
from jobs.hashing import digest_of
from jobs.stages import STAGES
from jobs.task import Artifact
from jobs.toolchains import Toolchain
from orchestrator.views.reasons import Reason, explain_run
from tests.stored_jobs import NOON

TOOLCHAIN = Toolchain("default", {"iree-base-compiler": "3.13.0"}, host_cpu="znver4", programs="p" * 64)
SETTINGS = {"target": "cpu", "tp": 1, "flags": []}
MLIR = Artifact("model.mlir", "mlir", "3" * 64, 5)
FREE = ReusePolicy(of_task=True, of_job=True, fresh_stages=frozenset({"benchmark"}))
LOG = Artifact("0123abcd-01-1.log", "log", "4" * 64, 5)

Value = dict[str, Any]


def compiled(toolchain: Toolchain = TOOLCHAIN, mlir: Artifact = MLIR, stage: str = "compile", **settings: Any) -> Value:
    return identity(STAGES[stage], {**SETTINGS, **settings}, toolchain, {"export": (mlir, LOG)})


def made(name: str, minute: int, what: Value, **changes: Any) -> AttemptIdentity:
    """An attempt that took a minute and succeeded."""
    begun = NOON + timedelta(minutes=minute)
    identity = AttemptIdentity(
        id=f"{name}-1",
        task=name,
        stage=what["stage"],
        digest=digest_of(what),
        identity=what,
        started_at=begun,
        ended_at=begun + timedelta(minutes=1),
        outcome="succeeded",
        failure_kind=None,
    )
    return replace(identity, **changes)


def test_digests_are_what_they_always_were() -> None:
    """Another value here means that all that is cached anywhere is computed again."""
    known = "c7fc0b488076c348546745694303188a22c67c019e32991943deaef89aa0c73c"
    assert task_digest(STAGES["compile"], SETTINGS, TOOLCHAIN, {"export": (MLIR,)}) == known


def test_a_stage_that_means_something_else_now_has_other_digests() -> None:
    stage = STAGES["compile"]
    digests = [task_digest(replace(stage, version=version), SETTINGS, TOOLCHAIN, {}) for version in (1, 2)]
    assert digests[0] != digests[1]


def test_logs_and_reports_are_no_part_of_what_a_task_is_made_of() -> None:
    assert entries(compiled())["inputs.export.model.mlir"] == MLIR.sha256
    assert not any(LOG.sha256 == value for value in entries(compiled()).values())


@pytest.mark.parametrize(
    ("new", "change"),
    [
        (compiled(flags=["--x"]), {"entry": "settings.flags", "old": [], "new": ["--x"]}),
        (compiled(decode_rows=4), {"entry": "settings.decode_rows", "new": 4}),
        (
            compiled(replace(TOOLCHAIN, versions={"iree-base-compiler": "3.14.0"})),
            {"entry": "toolchain.iree-base-compiler", "old": "3.13.0", "new": "3.14.0"},
        ),
        (compiled(replace(TOOLCHAIN, versions={})), {"entry": "toolchain.iree-base-compiler", "old": "3.13.0"}),
        (
            compiled(target="mi300x") | {"host_cpu": "znver4"},
            {"entry": "settings.target", "old": "cpu", "new": "mi300x"},
        ),
        (compiled() | {"version": 99}, {"entry": "version", "old": STAGES["compile"].version, "new": 99}),
        (compiled(replace(TOOLCHAIN, host_cpu="znver5")), {"entry": "host_cpu", "old": "znver4", "new": "znver5"}),
        (
            compiled(mlir=replace(MLIR, sha256="5" * 64)),
            {"entry": "inputs.export.model.mlir", "old": "3" * 64, "new": "5" * 64},
        ),
    ],
)
def test_what_differs_is_named_with_its_old_and_new_value(new: Value, change: Value) -> None:
    assert differences(compiled(), new) == [change]


def test_a_changed_stage_program_is_named() -> None:
    old, new = (compiled(replace(TOOLCHAIN, programs=programs), stage="invoke") for programs in ("p", "q"))
    assert differences(old, new) == [{"entry": "program", "old": "p", "new": "q"}]


def test_what_is_the_same_differs_in_nothing() -> None:
    assert differences(compiled(), compiled()) == []
    assert count_shared_entries(compiled(), compiled()) == len(entries(compiled()))


def test_the_most_similar_attempt_shares_the_most_entries_and_is_the_newest_of_equals() -> None:
    far = made("far", 4, compiled(tp=2, flags=["--x"]))
    near = [made(f"near{minute}", minute, compiled(flags=["--y"])) for minute in (2, 3)]
    explanation = explain_run(made("this", 9, compiled()), [far, near[1], near[0]], FREE)
    assert (explanation.reason, explanation.earlier) == (Reason.CHANGED, near[1])
    assert explanation.changes == ({"entry": "settings.flags", "old": ["--y"], "new": []},)


@pytest.mark.parametrize(
    ("earlier", "reason", "said"),
    [
        ([], Reason.FIRST, "no compile had succeeded before"),
        ([made("duplicate", 1, compiled())], Reason.FILES_LOST, "duplicate"),
        (
            [made("duplicate", 1, compiled(), outcome="failed", failure_kind="tool_failed")],
            Reason.NOT_SUCCEEDED,
            "attempt duplicate-1 had failed (tool_failed)",
        ),
        (
            [made("duplicate", 1, compiled(), outcome="failed", failure_kind="input_lost")],
            Reason.FIRST,
            "no compile had succeeded before",
        ),
        ([made("duplicate", 1, compiled(), outcome="cancelled")], Reason.NOT_SUCCEEDED, "had ended as cancelled"),
        ([made("duplicate", 1, compiled(), outcome=None, ended_at=None)], Reason.NOT_SUCCEEDED, "was still running"),
        (
            [made("duplicate", 8, compiled(), ended_at=NOON + timedelta(hours=9))],
            Reason.NOT_SUCCEEDED,
            "was still running",
        ),
        ([made("other", 1, compiled(tp=2), outcome="failed")], Reason.FIRST, "no compile had succeeded before"),
        ([made("old", 1, compiled(tp=2), identity=None)], Reason.FIRST, "no compile"),
    ],
)
def test_earlier_attempts_with_the_same_digest_are_explained(
    earlier: list[AttemptIdentity], reason: Reason, said: str
) -> None:
    explanation = explain_run(made("this", 9, compiled()), earlier, FREE)
    assert explanation.reason is reason
    assert said in explanation.text
    assert explanation.changes == ()


@pytest.mark.parametrize(
    ("stage", "of_job", "fresh", "reason", "said"),
    [
        ("compile", False, STAGES, Reason.NO_CACHE, "--no-cache"),
        ("benchmark", True, ["benchmark"], Reason.MEASURED, "--reuse-measurements"),
        ("invoke", True, ["compile", "invoke", "benchmark"], Reason.FORCED, "--from compile"),
    ],
)
def test_a_task_that_may_not_be_cached_names_the_option_or_rule(
    stage: str, of_job: bool, fresh: list[str], reason: Reason, said: str
) -> None:
    policy = ReusePolicy(of_task=False, of_job=of_job, fresh_stages=frozenset(fresh))
    this = made("this", 9, compiled(stage=stage))
    explanation = explain_run(this, [replace(this, task="duplicate")], policy)
    assert (explanation.reason, explanation.changes) == (reason, ())
    assert said in explanation.text


def test_a_measurement_that_may_be_cached_is_compared_with_the_most_similar_one() -> None:
    old, new = (
        made(name, minute, compiled(stage="benchmark", tp=tp)) for name, minute, tp in (("a", 1, 1), ("b", 9, 2))
    )
    assert explain_run(new, [old], FREE).reason is Reason.CHANGED


def test_a_regenerated_task_names_the_task_that_needed_its_files() -> None:
    explanation = explain_run(
        made("this", 9, compiled()), [made("this", 1, compiled())], FREE, "to make model.vmfb again for x"
    )
    assert (explanation.reason, explanation.text) == (Reason.REGENERATED, "ran again to make model.vmfb again for x")


def test_an_attempt_without_a_stored_identity_is_explained() -> None:
    explanation = explain_run(made("this", 9, compiled(), identity=None), [made("old", 1, compiled(tp=2))], FREE)
    assert "before haloctl stored" in explanation.text
