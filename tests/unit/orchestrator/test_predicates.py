"""What a bisection looks for: how it is written, what it takes, and when it holds."""

from dataclasses import replace
from typing import Any

import pytest

from db.reads.reports import TaskRow
from jobs.errors import BadSetting
from jobs.metrics import METRICS
from jobs.stages import STAGES
from jobs.state import Failure, FailureKind, TaskState
from jobs.toolchain_table import TOOLCHAINS
from orchestrator.reruns.bisection import Mark
from orchestrator.reruns.predicates import (
    Predicate,
    ProbeJudgement,
    expect_toolchain_matters,
    judge_metric,
    judge_stage,
    parse,
    stages_for,
    work_for,
)
from orchestrator.toolchains.releases import between

ALL = list(STAGES)
WORSE = Predicate("", "benchmark", "ttft_ms", 5.0)
MORE = Predicate("", "benchmark", "prefill_tokens_per_s", 5.0)
KEY = (1, 64, None)
RELEASES = ["3.13.0", "3.12.0", "3.12.0rc20260101", "3.10.0", "3.9.0", "3.8.0", "3.7.1", "3.7.0", "3.6.0"]


def task(stage: str, state: TaskState, failure: Failure | None = None, **changes: Any) -> TaskRow:
    blank = dict.fromkeys(TaskRow.__dataclass_fields__)
    return replace(TaskRow(**blank), stage=stage, state=state, failure=failure, **changes)  # type: ignore[arg-type]


def test_every_metric_has_a_stage() -> None:
    assert {metric.stage for metric in METRICS.values()} <= STAGES.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("compile fails", Predicate("compile fails", "compile")),
        (" numerics  fail ", Predicate("numerics fail", "numerics")),
        ("ttft_ms worse by 5%", Predicate("ttft_ms worse by 5%", "benchmark", "ttft_ms", 5.0)),
        ("vmfb_bytes worse by 2.5 %", Predicate("vmfb_bytes worse by 2.5 %", "compile", "vmfb_bytes", 2.5)),
        ("kernels: spills > 0", Predicate("kernels: spills > 0", "analyse", fact="spills", comparison=">", limit=0.0)),
        (
            "kernels:  min_waves<=1",
            Predicate("kernels: min_waves<=1", "analyse", fact="min_waves", comparison="<=", limit=1.0),
        ),
    ],
)
def test_predicates_are_written_as_they_are_said(text: str, expected: Predicate) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tuning fails", "no stage is called 'tuning'"),
        ("speed worse by 5%", "no metric is called 'speed'"),
        ("it is bad", "is none of 'compile fails'"),
        ("ttft_ms worse by -5%", "is none of"),
        ("kernels: beauty > 0", "kernels have no 'beauty': choose one of floor_ms"),
        ("kernels: spills = 0", "is none of"),
    ],
)
def test_what_is_no_predicate_is_told(text: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        parse(text)


def test_no_more_stages_than_it_takes() -> None:
    assert stages_for(parse("compile fails"), "iree", ALL) == ["export", "compile"]
    assert stages_for(parse("numerics fail"), "iree", ALL) == ["export", "compile", "numerics"]
    assert stages_for(parse("itl_ms worse by 3%"), "torch", ALL) == ["benchmark"]
    with pytest.raises(BadSetting, match="the engine torch has no stage compile"):
        stages_for(parse("compile fails"), "torch", ALL)
    with pytest.raises(BadSetting, match="the job has no stage benchmark"):
        stages_for(parse("itl_ms worse by 3%"), "iree", ["export", "compile"])


def test_what_no_toolchain_changes_is_not_looked_for() -> None:
    with pytest.raises(BadSetting, match="export run under default whatever the toolchain"):
        expect_toolchain_matters(parse("export fails"), ["iree-3.12"], ["export"], "iree", TOOLCHAINS)
    expect_toolchain_matters(
        parse("compile fails"), ["default", "iree-3.12"], ["export", "compile"], "iree", TOOLCHAINS
    )


def failed(kind: FailureKind) -> Failure:
    return Failure(kind, "error: no\nmore")


@pytest.mark.parametrize(
    ("tasks", "judgement"),
    [
        ([task("compile", TaskState.SUCCEEDED)], ProbeJudgement(Mark.GOOD)),
        ([task("compile", TaskState.CACHED)], ProbeJudgement(Mark.GOOD)),
        (
            [task("compile", TaskState.FAILED, failed(FailureKind.TOOL_FAILED))],
            ProbeJudgement(Mark.BAD, "error: no"),
        ),
        (
            [task("compile", TaskState.FAILED, failed(FailureKind.TOOLCHAIN))],
            ProbeJudgement(Mark.SKIP, "error: no"),
        ),
        (
            [
                task("export", TaskState.FAILED, failed(FailureKind.TOOL_FAILED)),
                task("compile", TaskState.BLOCKED, blocked_by="export failed"),
            ],
            ProbeJudgement(Mark.SKIP, "export: error: no"),
        ),
        (
            [task("compile", TaskState.QUEUED, waits_for="needs 1 x mi300x")],
            ProbeJudgement(Mark.SKIP, "needs 1 x mi300x"),
        ),
    ],
)
def test_only_what_blames_the_stage_itself_is_bad(tasks: list[TaskRow], judgement: ProbeJudgement) -> None:
    assert judge_stage(parse("compile fails"), tasks) == judgement


def test_what_a_compiler_made_is_its_work_wherever_it_is_timed() -> None:
    plan = [
        planned("1", "export"),
        planned("2", "compile", "1", toolchain="iree-compiler-3.11"),
        planned("3", "compile", "1", toolchain="iree-compiler-3.12"),
        planned("4", "compile", "1"),
        planned("5", "benchmark", "1", "2"),
        planned("6", "benchmark", "1", "3"),
        planned("7", "benchmark", "1", "4"),
    ]
    work = {
        name: [task.id for task in work_for(name, "benchmark", plan)]
        for name in ("iree-compiler-3.11", "iree-compiler-3.12", "default")
    }
    assert work == {
        "iree-compiler-3.11": ["1", "2", "5"],
        "iree-compiler-3.12": ["1", "3", "6"],
        "default": ["1", "4", "7"],
    }


def planned(name: str, stage: str, *needs: str, toolchain: str = "default") -> TaskRow:
    return task(stage, TaskState.PENDING, id=name, needs=needs, toolchain=toolchain)


def test_what_fails_can_not_be_timed() -> None:
    tasks = [task("benchmark", TaskState.FAILED, failed(FailureKind.TOOL_FAILED))]
    assert judge_stage(WORSE, tasks).mark is Mark.SKIP


@pytest.mark.parametrize(
    ("predicate", "by", "mark"),
    [
        (WORSE, 1.2, Mark.BAD),
        (WORSE, 1.01, Mark.GOOD),
        (WORSE, 0.7, Mark.GOOD),
        (MORE, 0.8, Mark.BAD),
        (MORE, 1.3, Mark.GOOD),
    ],
)
def test_timings_are_worse_beyond_doubt_or_not_at_all(predicate: Predicate, by: float, mark: Mark) -> None:
    """Whatever both sides of a round suffer from does not count."""
    rounds = [(10 * drift, 10 * drift * by * wobble) for drift, wobble in ((1, 1.01), (3, 0.99), (2, 1.0), (9, 1.01))]
    judgement = judge_metric(predicate, {KEY: rounds}, is_last=False)
    assert judgement is not None
    assert judgement.mark is mark


def test_what_scatters_takes_more_rounds_and_is_not_decided_by_the_last() -> None:
    rounds = [(10.0, 8.0), (10.0, 13.0), (10.0, 9.0), (10.0, 14.0)]
    assert judge_metric(WORSE, {KEY: rounds}, is_last=False) is None
    judgement = judge_metric(WORSE, {KEY: rounds}, is_last=True)
    assert judgement is not None
    assert judgement.mark is Mark.SKIP
    assert judgement.why.startswith("not decided: batch 1 prompt 64: ")


def test_one_workload_that_is_worse_is_enough() -> None:
    same, worse = [(10.0, 10.0)] * 4, [(10.0, 12.0)] * 4
    judgement = judge_metric(WORSE, {(1, 32, None): same, KEY: worse}, is_last=False)
    assert judgement is not None
    assert judgement.mark is Mark.BAD


def test_matrix_instructions_that_are_gone_are_worse() -> None:
    gone = judge_metric(parse("mfma_prefill worse by 10%"), {(None, None, None): [(96.0, 0.0)]}, is_last=True)
    assert gone is not None
    assert gone.mark is Mark.BAD


@pytest.mark.parametrize(
    ("good", "bad", "inner"),
    [
        ("3.9", "3.13", ["3.10", "3.12"]),
        ("3.13", "3.9", ["3.12", "3.10"]),
        ("3.6", "3.8", ["3.7.0", "3.7.1"]),
        ("3.7", "3.9", ["3.8"]),
        ("3.7.0", "3.8.0", ["3.7.1"]),
        ("3.12", "3.13", []),
    ],
)
def test_the_releases_between_two_are_in_their_order(good: str, bad: str, inner: list[str]) -> None:
    names = between(f"iree-{good}", f"iree-{bad}", good, bad, RELEASES)
    assert names == tuple(f"iree-{release}" for release in (good, *inner, bad))


@pytest.mark.parametrize(
    ("text", "values", "mark", "why"),
    [
        ("kernels: spills > 0", [("prefill_spills", 0.0), ("decode_spills", 0.0)], Mark.GOOD, ""),
        ("kernels: spills > 0", [("prefill_spills", 0.0), ("decode_spills", 12.0)], Mark.BAD, "decode_spills 12"),
        ("kernels: min_waves < 2", [("decode_min_waves", 1.0), ("decode_min_waves", 8.0)], Mark.BAD, "min_waves 1"),
        ("kernels: spills > 0", [("prefill_bytes", 7.0)], Mark.SKIP, "its target has no spills"),
    ],
)
def test_a_fact_about_kernels_is_judged_by_any_entry_point(
    text: str, values: list[tuple[str, float]], mark: Mark, why: str
) -> None:
    judgement = judge_stage(parse(text), [task("analyse", TaskState.SUCCEEDED)], values)
    assert judgement.mark is mark
    assert why in judgement.why


def test_a_program_that_is_not_analysed_is_skipped() -> None:
    failed = task("analyse", TaskState.FAILED, Failure(FailureKind.TOOL_FAILED, "no"))
    assert judge_stage(parse("kernels: spills > 0"), [failed]).mark is Mark.SKIP
