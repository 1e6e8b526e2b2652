"""The torch engine through the real programs: ranks on one node and on two, right and with planted faults."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch._inductor.config as inductor

from jobs.engines import ENGINES
from jobs.exporters import stage_of
from jobs.stages.numerics import gate
from jobs.state import FailureKind
from jobs.task import Attempt, Command, Gang, Process, TaskResult
from jobs.toolchains import Toolchain
from jobs.variants import Precision
from tests.integration.attempts import living, make_attempt, until
from tests.integration.corrupted_ranks import FAULTS, PORTS
from workers.agent.ports import free_port
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.environment import gang_variables, stage_environment
from workers.failures import EXIT_BAD_INPUT, EXIT_PEERS_LOST, of_process
from workers.llm.command_line import BadInput
from workers.llm.torch_ranks.torch_compile import set_inductor_options
from workers.processes.cancellation import Cancellation

TOOLCHAIN = Toolchain("default", {})
LOOPBACK = "127.0.0.1"
SETTINGS: dict[str, Any] = {
    "engine": "torch",
    "nodes": 1,
    "model": {"text": "tiny-llama", "digest": "", "revision": None, "overrides": {}},
    "precision": "f16",
    "attention": "sdpa",
    "target": "cpu",
    "tp": 2,
    "batch": [1, 2],
    "prompt_tokens": [32],
    "new_tokens": 8,
}
NUMERICS = {**SETTINGS, "windows": 4, "text": None, "max_perplexity_increase_percent": 1.0}
BENCHMARK = {**SETTINGS, "batch": [1], "warmup": 1, "repetitions": 2}


def of_stage(stage: str, settings: dict[str, Any]) -> Attempt:
    """An attempt as the leader dispatches it."""
    return make_attempt(*stage_of(stage, settings).commands(settings, TOOLCHAIN), stage=stage, settings=settings)


def corrupted(fault: str, original: Attempt) -> Attempt:
    """The attempt with a fault planted in it."""
    (command,) = original.commands
    python, m, _, *flags = command.argv
    return replace(original, commands=(Command((python, m, "tests.integration.corrupted_ranks", fault, *flags)),))


def run_attempts(data: Path, *attempts: Attempt) -> list[TaskResult]:
    """The results of attempts that run at the same time, each with a data folder of its own."""

    def run_attempt(number: int) -> TaskResult:
        folder = data / str(number)
        return run(attempts[number], folder, ArtifactStore(data / "artifacts"), TOOLCHAIN, Cancellation())

    with ThreadPoolExecutor() as threads:
        return list(threads.map(run_attempt, range(len(attempts))))


def node_attempts(whole: Attempt) -> list[Attempt]:
    """A gang's attempt as its two nodes receive it."""
    port = free_port(LOOPBACK)
    return [replace(whole, gang=Gang(rank, 2, LOOPBACK, port)) for rank in (0, 1)]


def measured(result: TaskResult, metric: str) -> list[dict[str, Any]]:
    """The contexts of a metric, with its samples."""
    return [
        {**measurement.context, "samples": measurement.samples}
        for measurement in result.measurements
        if measurement.metric == metric
    ]


@pytest.fixture(scope="module")
def right_and_swapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[TaskResult], Path]]:
    """The shipped model on two ranks, as it is and with two shards swapped, side by side on one machine."""
    data = tmp_path_factory.mktemp("side-by-side")
    right = of_stage("numerics", NUMERICS)
    yield run_attempts(data, right, corrupted("swap", of_stage("numerics", NUMERICS))), data / "artifacts"


def report(result: TaskResult, store: Path) -> dict[str, Any]:
    """The numerics report that an attempt left."""
    (stored_report,) = [artifact for artifact in result.artifacts if artifact.name == "numerics.json"]
    contents: dict[str, Any] = json.loads(ArtifactStore(store).path(stored_report.sha256).read_text())
    return contents


def test_ranks_compute_what_one_process_does(right_and_swapped: tuple[list[TaskResult], Path]) -> None:
    (right, _), _ = right_and_swapped
    assert right.failure is None
    (perplexity,) = measured(right, "perplexity")
    (reference,) = measured(right, "reference_perplexity")
    assert perplexity["samples"] == pytest.approx(reference["samples"], rel=0.01)
    assert perplexity["tokens_scored"] == NUMERICS["windows"] * (NUMERICS["new_tokens"] + 1)


def test_swapped_shards_are_wrong_numbers(right_and_swapped: tuple[list[TaskResult], Path]) -> None:
    """At the widest tolerance too, or they would pass in another precision."""
    (_, swapped), store = right_and_swapped
    assert swapped.failure
    assert swapped.failure.kind is FailureKind.WRONG_NUMBERS
    contents = report(swapped, store)
    assert contents["finite"]
    assert all(gate(contents, precision, NUMERICS["max_perplexity_increase_percent"]) for precision in Precision)


def test_eight_ranks_of_two_nodes_are_timed_as_one(tmp_path: Path) -> None:
    first, second = run_attempts(tmp_path, *node_attempts(of_stage("benchmark", {**BENCHMARK, "tp": 8, "nodes": 2})))
    assert (first.failure, second.failure) == (None, None)
    assert (second.measurements, [artifact.kind for artifact in second.artifacts]) == ((), ["log"])
    assert [artifact.name for artifact in first.artifacts] == ["benchmark_bs1_t32.json", first.attempt + ".log"]
    for metric in ("ttft_ms", "itl_ms"):
        (context,) = measured(first, metric)
        assert [rank["rank"] for rank in context["ranks"]] == list(range(8))
        slowest = map(max, zip(*(rank["samples"] for rank in context["ranks"]), strict=True))
        assert all(whole >= of_rank for whole, of_rank in zip(context["samples"], slowest, strict=True))
        assert (len(context["samples"]), len(context["warmup_ms"])) == (2, 1)
        assert (context["batch"], context["prompt_tokens"], context["backend"]) == (1, 32, "gloo")
    assert [result.environment["PET_NODE_RANK"] for result in (first, second)] == ["0", "1"]


def test_a_compiled_model_is_timed_and_says_how_long_compiling_took(tmp_path: Path) -> None:
    """One layer and one prefill: torch's compiler takes seconds for each."""
    model = {**SETTINGS["model"], "overrides": {"num_hidden_layers": 1}}
    options = {"compile_mode": "default", "inductor": {"cpp.simdlen": 1}}
    settings = {**BENCHMARK, "engine": "torch-compile", "model": model, "tp": 1, "new_tokens": 1, "torch": options}
    (result,) = run_attempts(tmp_path, of_stage("benchmark", settings))
    assert result.failure is None
    (ttft,) = measured(result, "ttft_ms")
    assert (ttft["torch"], ttft["groups"], len(ttft["samples"])) == (options, [2], 2)
    (compiling,) = measured(result, "torch_compile_s")
    assert compiling["samples"][0] > max(ttft["samples"]) / 1e3
    assert not measured(result, "itl_ms")


def test_an_unknown_inductor_option_is_refused_with_the_one_that_was_meant() -> None:
    set_inductor_options(["cpp.simdlen=1"])
    assert inductor.cpp.simdlen == 1
    with pytest.raises(BadInput, match="no option frezing; did you mean freezing"):
        set_inductor_options(["frezing=true"])


def test_a_rank_that_fails_ends_the_ranks_of_both_nodes(tmp_path: Path) -> None:
    """Both nodes report the rank that failed first; no rank waits for a peer that hangs longer than its timeout."""
    for by_fault in outcomes_on_nodes(tmp_path):
        assert by_fault["fail"] == (1, "rank 1 of 2: ArithmeticError: no such number")
        assert by_fault["kill"] == (1, "rank 1 of 2 was ended by SIGKILL, as the kernel does when it is out of memory")
        assert by_fault["hang"][0] == EXIT_PEERS_LOST
        assert by_fault["hang"][1].startswith("rank 0 of 2: RuntimeError: ")
        assert by_fault["refuse"] == (EXIT_BAD_INPUT, "unusable input")
    until(lambda: not living("tests.integration.corrupted_ranks"), "no rank is left")


def outcomes_on_nodes(folder: Path) -> list[dict[str, tuple[int, str]]]:
    """For each node, exit code and message of every fault of corrupted_ranks."""
    (command,) = corrupted("all", of_stage("numerics", NUMERICS)).commands
    gangs = [gang_attempt.gang for gang_attempt in node_attempts(of_stage("numerics", NUMERICS))]
    ports = {PORTS: " ".join(f"{free_port(LOOPBACK)}" for _ in FAULTS)}
    started = [
        subprocess.Popen(
            [sys.executable, *command.argv[1:]],
            env={**os.environ, **stage_environment((), 1), **gang_variables(gang), **ports},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        for gang in gangs
    ]
    lines = [process.communicate()[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    outcomes = [[json.loads(line) for line in of_node if line.startswith("{")] for of_node in lines]
    return [{outcome["fault"]: (outcome["code"], outcome["message"]) for outcome in of_node} for of_node in outcomes]


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (1, "rank 1 of 2: ArithmeticError: no such number", FailureKind.TOOL_FAILED),
        (1, "rank 1 of 2 was ended by SIGKILL, as the kernel does when it is out of memory", FailureKind.OUT_OF_MEMORY),
        (EXIT_PEERS_LOST, "rank 0 of 2: RuntimeError: Timed out waiting", FailureKind.NODE_LOST),
        (EXIT_BAD_INPUT, "unusable input", FailureKind.BAD_INPUT),
    ],
)
def test_what_ranks_die_of_has_a_kind(code: int, message: str, kind: FailureKind) -> None:
    failure = of_process(Process(("python",), code, 1.0, 0), "python", f"loading\nerror: {message}\n")
    assert failure.kind is kind
    assert message in failure.message


def test_every_engine_does_stages_that_there_are() -> None:
    for stages in (engine.stages for engine in ENGINES.values()):
        assert all(stage.name == name for name, stage in stages.items())
        assert all(need in stages for stage in stages.values() for need in stage.needs)
