"""Attempts with real processes, from inputs to result."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from jobs.errors import BadSetting
from jobs.state import FailureKind
from jobs.task import Attempt, Command, Device, Measurement, TaskResult
from jobs.toolchains import Toolchain
from tests.integration.attempts import FINITE_INVOCATION, make_attempt, python, until
from tests.integration.disks import SMALL_DISK_BYTES, fill, small_disk
from workers.artifacts import ArtifactStore
from workers.attempts import publishing
from workers.attempts.folders import log_path
from workers.attempts.run_task import run
from workers.measurement.measuring import Measure, run_measured
from workers.measurement.sampling import Sampler
from workers.processes.cancellation import Cancellation

__all__ = ["small_disk"]

#: Leaves a benchmark's report as soon as another process has computed for a fifth of a second more.
BENCHMARK_BESIDE = """
import json, os, sys, time
def ticks():
    with open(f"/proc/{sys.argv[2]}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[11])
enough = ticks() + os.sysconf("SC_CLK_TCK") // 5
while ticks() < enough:
    time.sleep(0.01)
run = {"run_type": "iteration", "repetition_index": 0, "real_time": 2.0, "time_unit": "ms"}
json.dump({"benchmarks": [run]}, open(f"outputs/{sys.argv[1]}.json", "w"))
"""
TOOLCHAIN = Toolchain("default", {"iree-base-compiler": "3.13.0"})
COMPILE = {"target": "cpu", "tp": 1, "flags": [], "prefill_rows": 8, "decode_rows": 1}
WRITE_VMFB = python("open('outputs/model.vmfb', 'wb').write(b'program')")
WRITE_MUCH = python(f"open('outputs/model.vmfb', 'wb').write(bytes({2 * SMALL_DISK_BYTES}))")


def carried_out(
    data: Path, attempt: Attempt, *, store: Path | None = None, measure: Measure = run_measured
) -> TaskResult:
    artifacts = ArtifactStore(store or data / "artifacts")
    return run(attempt, data, artifacts, TOOLCHAIN, Cancellation(), measure=measure)


def failure(result: TaskResult) -> tuple[FailureKind, str]:
    assert result.failure
    return result.failure.kind, result.failure.message


def log_of(data: Path, attempt: Attempt) -> str:
    return log_path(data, attempt.id).read_text()


def nothing_is_left(data: Path) -> bool:
    parts = [path for path in data.rglob("*") if path.name.endswith((".part", ".lock"))]
    return not list((data / "work").iterdir()) and not parts


def test_what_a_stage_made_is_measured_stored_and_named(tmp_path: Path) -> None:
    attempt = make_attempt(python(FINITE_INVOCATION))
    result = carried_out(tmp_path, attempt)
    assert (result.attempt, result.epoch, result.failure) == (attempt.id, 1, None)
    assert result.measurements == (Measurement("load_s", (0.5,)),)
    assert [(artifact.name, artifact.kind) for artifact in result.artifacts] == [
        ("invoke.json", "report"),
        (f"{attempt.id}.log", "log"),
    ]
    assert all(ArtifactStore(tmp_path / "artifacts").verify(artifact) for artifact in result.artifacts)


def test_a_result_says_how_it_was_made(tmp_path: Path) -> None:
    result = carried_out(tmp_path, make_attempt(python(FINITE_INVOCATION)))
    (process,) = result.processes
    assert Path(process.argv[0]).is_absolute()
    assert process.argv[1:] == ("-c", FINITE_INVOCATION)
    assert result.versions == TOOLCHAIN.versions
    assert result.environment["PYTHONUNBUFFERED"] == "1"
    assert (result.duration_s or 0.0) >= process.wall_s > 0


def test_secrets_of_the_agent_reach_no_stage_no_result_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"https_proxy": "user:hush@host:3128", "CUDA_PRIVATE_KEY": "hush", "TORCH_PAT": "hush"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HSA_ENABLE_SDMA", "1")
    attempt = make_attempt(python("import os; print(sorted(os.environ.items()))", "--proxy=user:hush@host:3128"))
    result = carried_out(tmp_path, attempt)
    assert "hush" not in log_of(tmp_path, attempt)
    assert "--proxy=***@host:3128" in log_of(tmp_path, attempt)
    assert "('HSA_ENABLE_SDMA', '1')" in log_of(tmp_path, attempt)
    assert "hush" not in str(dict(result.environment))


def test_a_working_folder_is_removed_and_its_log_kept(tmp_path: Path) -> None:
    attempt = make_attempt(python("print('hello'); import tempfile; print(tempfile.mkstemp()[1])"))
    carried_out(tmp_path, attempt)
    assert nothing_is_left(tmp_path)
    title, hello, temporary = log_of(tmp_path, attempt).splitlines()[:3]
    assert title.startswith("$ /")
    assert hello == "hello"
    assert not Path(temporary).exists()
    assert str(tmp_path) in temporary


def test_inputs_lie_by_the_stage_that_made_them(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text("module {}")
    mlir = ArtifactStore(tmp_path / "artifacts").put(tmp_path / "model.mlir", "mlir")
    attempt = make_attempt(python("print(open('inputs/export/model.mlir').read())"), inputs={"export": (mlir,)})
    carried_out(tmp_path, attempt)
    assert log_of(tmp_path, attempt).splitlines()[1] == "module {}"


def test_inputs_that_are_gone_or_damaged_are_all_named_and_blame_nobody(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    files = {name: tmp_path / name for name in ("gone.irpa", "flipped.irpa", "short.mlir", "model.mlir")}
    for name, file in files.items():
        file.write_text(f"module {{}} of {name}")
    gone, flipped, short, kept = made = [store.put(file, "mlir") for file in files.values()]
    store.path(gone.sha256).unlink()
    for artifact, content in ((flipped, b"X" * flipped.size_bytes), (short, b"module")):
        store.path(artifact.sha256).unlink()
        store.path(artifact.sha256).write_bytes(content)
    result = carried_out(tmp_path, make_attempt(python(""), inputs={"export": tuple(made)}))
    assert result.lost == (gone, flipped, short)
    kind, message = failure(result)
    assert kind is FailureKind.INPUT_LOST
    assert all(f"{artifact.name}, which export made: " in message for artifact in (gone, flipped, short))
    assert str(tmp_path / "artifacts" / "damaged") in message
    assert store.missing(made) == {gone, flipped, short}, "what is damaged is in nobody's way"
    assert store.verify(kept)
    assert nothing_is_left(tmp_path)


def test_no_secret_of_the_agent_reaches_a_stage_or_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_hush")
    monkeypatch.setenv("HALOCTL_DATABASE_URL", "postgresql://halo:hush@db/halo")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    attempt = make_attempt(python("import os; print(dict(os.environ))"))
    result = carried_out(tmp_path, attempt)
    assert "hush" not in log_of(tmp_path, attempt)
    assert "hush" not in str(result)
    assert result.environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "iree-compile: inputs/export/model.mlir:1:18: error: "),
        (("--iree-no-such-flag",), "iree-compile: Unknown command line argument '--iree-no-such-flag'"),
    ],
)
def test_a_compilers_error_is_what_the_failure_says(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    (tmp_path / "model.mlir").write_text("func.func @f() { wrong }")
    mlir = ArtifactStore(tmp_path / "artifacts").put(tmp_path / "model.mlir", "mlir")
    command = Command(("iree-compile", "inputs/export/model.mlir", "-o", "outputs/model.vmfb", *flags))
    result = carried_out(tmp_path, make_attempt(command, stage="compile", settings=COMPILE, inputs={"export": (mlir,)}))
    kind, message = failure(result)
    assert kind is FailureKind.TOOL_FAILED
    assert message.startswith(said)
    assert result.failure
    assert said.removeprefix("iree-compile: ") in result.failure.log_tail
    assert [artifact.kind for artifact in result.artifacts] == ["log"]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("import sys; sys.stderr.write('error: layer 3 is missing: ask again\\n'); sys.exit(2)",
         FailureKind.BAD_INPUT, "layer 3 is missing: ask again"),
        ("import sys; sys.exit('usage: export --model M')", FailureKind.TOOL_FAILED, "python: usage: export --model M"),
        ("raise SystemExit(2)", FailureKind.TOOL_FAILED, "python: ended with exit code 2 and printed nothing"),
        ("int('x')", FailureKind.TOOL_FAILED,
         "python: ValueError: invalid literal for int() with base 10: 'x'"),
        ("import os; os.abort()", FailureKind.TOOL_FAILED, "python: ended by SIGABRT"),
        ("import os; print('loaded'); os.kill(os.getpid(), 11)", FailureKind.TOOL_FAILED,
         "python: ended by SIGSEGV: loaded"),
        ("raise SystemExit(256 - 11)", FailureKind.TOOL_FAILED, "python: ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", FailureKind.OUT_OF_MEMORY,
         "python was killed, as the kernel does when memory runs out"),
        ("raise SystemExit(256 - 9)", FailureKind.OUT_OF_MEMORY,
         "python was killed, as the kernel does when memory runs out"),
        ("bytearray(1 << 62)", FailureKind.OUT_OF_MEMORY, "python: MemoryError"),
        ("print('RESOURCE_EXHAUSTED; hipErrorOutOfMemory'); raise SystemExit(1)",
         FailureKind.OUT_OF_MEMORY, "python: RESOURCE_EXHAUSTED; hipErrorOutOfMemory"),
        ("import os; os.write(os.open('/dev/full', os.O_WRONLY), b'x')", FailureKind.OUT_OF_DISK,
         "python: OSError: [Errno 28] No space left on device"),
        ("print('warning: invoke.json: No space left on device')",
         FailureKind.OUT_OF_DISK, "the commands succeeded but left no outputs/invoke.json"),
    ],
)  # fmt: skip
def test_a_failure_blames_what_the_process_says(tmp_path: Path, code: str, kind: FailureKind, message: str) -> None:
    assert failure(carried_out(tmp_path, make_attempt(python(code)))) == (kind, message)


def test_a_tool_that_is_not_installed_blames_the_toolchain(tmp_path: Path) -> None:
    kind, message = failure(carried_out(tmp_path, make_attempt(Command(("iree-levitate",)))))
    assert kind is FailureKind.TOOLCHAIN
    assert message.startswith("iree-levitate is neither beside")


def test_an_attempt_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    attempt = make_attempt(python("print('begun', flush=True); import time; time.sleep(600)"), timeout_s=0.5)
    result = carried_out(tmp_path, attempt)
    assert failure(result) == (FailureKind.TIMED_OUT, "python timed out after 0.5 s")
    assert nothing_is_left(tmp_path)


def test_an_attempt_that_is_cancelled_before_it_begins_starts_nothing(tmp_path: Path) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    result = run(make_attempt(python("")), tmp_path, ArtifactStore(tmp_path / "artifacts"), TOOLCHAIN, cancellation)
    assert failure(result) == (FailureKind.CANCELLED, "cancelled")
    assert result.processes == ()


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("", FailureKind.TOOL_FAILED, "the commands succeeded but left no outputs/invoke.json"),
        ("open('outputs/invoke.json', 'w').write('{')", FailureKind.TOOL_FAILED, "an output of invoke can't be read"),
        ("open('outputs/invoke.json', 'w').write('{}')", FailureKind.INTERNAL,
         "a report of invoke is not as expected: KeyError: 'calls'"),
    ],
)  # fmt: skip
def test_a_report_that_cannot_be_read_is_a_failure(tmp_path: Path, code: str, kind: FailureKind, message: str) -> None:
    result = carried_out(tmp_path, make_attempt(python(code)))
    found_kind, found_message = failure(result)
    assert found_kind is kind
    assert found_message.startswith(message)
    assert result.failure
    assert "Traceback" in result.failure.log_tail
    assert nothing_is_left(tmp_path)


def test_wrong_numbers_are_kept_to_be_looked_at(tmp_path: Path) -> None:
    result = carried_out(tmp_path, make_attempt(python(FINITE_INVOCATION.replace("True", "False"))))
    assert failure(result) == (FailureKind.WRONG_NUMBERS, "logits are not finite from prefill_bs1_t8")
    assert [artifact.kind for artifact in result.artifacts] == ["report", "log"]
    assert [measurement.metric for measurement in result.measurements] == ["load_s"]


def test_a_compilation_is_measured_from_outside(tmp_path: Path) -> None:
    result = carried_out(tmp_path, make_attempt(WRITE_VMFB, stage="compile", settings=COMPILE))
    metrics = {measurement.metric: measurement.samples[0] for measurement in result.measurements}
    assert metrics["vmfb_bytes"] == 7
    assert metrics["compile_s"] == result.processes[0].wall_s
    assert metrics["compile_peak_bytes"] == result.processes[0].peak_rss_bytes


def test_a_benchmarks_memory_is_told_for_each_workload(tmp_path: Path) -> None:
    def benchmark(name: str, device_bytes: int) -> Command:
        run = {"run_type": "iteration", "repetition_index": 0, "real_time": 2.0, "time_unit": "ms"}
        report = json.dumps({"benchmarks": [run]})
        printed = f"DEVICE_LOCAL: {device_bytes}B peak / {device_bytes}B allocated"
        return python(f"open('outputs/{name}.json', 'w').write({report!r}); print({printed!r})")

    settings = {
        "target": "cpu",
        "tp": 1,
        "batch": [1, 4],
        "prompt_tokens": [8],
        "new_tokens": 8,
        "warmup": 0,
        "repetitions": 1,
    }
    names = ["prefill_bs1_t8", "decode_bs1_t8", "prefill_bs4_t8", "decode_bs4_t8"]
    commands = [benchmark(name, number * 100) for number, name in enumerate(names)]
    result = carried_out(tmp_path, make_attempt(*commands, stage="benchmark", settings=settings))
    memory = [measurement for measurement in result.measurements if measurement.metric.endswith("memory_bytes")]
    assert [(m.metric, m.context["batch"], m.context["prompt_tokens"]) for m in memory] == [
        ("host_memory_bytes", 1, 8),
        ("device_memory_bytes", 1, 8),
        ("host_memory_bytes", 4, 8),
        ("device_memory_bytes", 4, 8),
    ]
    assert [m.samples for m in memory if m.metric == "device_memory_bytes"] == [(100.0,), (300.0,)]
    assert memory[0].samples[0] == max(process.peak_rss_bytes for process in result.processes[:2])


def test_outputs_that_no_stage_asked_for_are_not_kept(tmp_path: Path) -> None:
    notes = python("open('outputs/notes.txt', 'w'); import os; os.symlink('/etc/passwd', 'outputs/other.vmfb')")
    result = carried_out(tmp_path, make_attempt(WRITE_VMFB, notes, stage="compile", settings=COMPILE))
    assert [artifact.kind for artifact in result.artifacts] == ["vmfb", "log"]


def test_a_disk_that_fills_up_under_a_stage_blames_the_disk(small_disk: Path) -> None:
    result = carried_out(small_disk, make_attempt(WRITE_MUCH, stage="compile", settings=COMPILE))
    assert failure(result)[0] is FailureKind.OUT_OF_DISK
    assert nothing_is_left(small_disk)


def test_a_store_without_room_blames_the_store_and_keeps_no_part(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(publishing.VARIABLE, "0")
    attempt = make_attempt(WRITE_MUCH, stage="compile", settings=COMPILE)
    result = carried_out(tmp_path, attempt, store=small_disk / "artifacts")
    kind, message = failure(result)
    assert kind is FailureKind.STORE_UNUSABLE
    assert message.startswith(f"artifact store {small_disk / 'artifacts'}: no space is left on it; free some")
    assert [artifact.kind for artifact in result.artifacts] == ["log"]
    assert result.measurements == ()
    assert len(result.processes) == 1
    assert nothing_is_left(tmp_path)
    assert not list(small_disk.rglob("*.part"))


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
def test_a_wait_for_the_store_that_is_no_time_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(publishing.VARIABLE, text)
    with pytest.raises(BadSetting, match=publishing.VARIABLE):
        publishing.store_wait_s()


def test_a_disk_that_was_full_before_blames_the_disk(small_disk: Path) -> None:
    store = small_disk / "artifacts"
    ArtifactStore(store)
    fill(small_disk)
    assert failure(carried_out(small_disk, make_attempt(python(""))))[0] is FailureKind.OUT_OF_DISK
    until(lambda: not list((small_disk / "work").glob("*")), "nothing is left")


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_report_with_a_number_that_is_none_fails_the_attempt_and_names_the_metric(
    tmp_path: Path, number: str
) -> None:
    report = f'{{"load_s": {number}, "calls": []}}'
    result = carried_out(tmp_path, make_attempt(python(f"open('outputs/invoke.json', 'w').write('{report}')")))
    kind, message = failure(result)
    assert kind is FailureKind.TOOL_FAILED
    assert message.startswith("an output of invoke can't be read: load_s should be finite numbers, and is [")
    assert result.measurements == ()


def test_a_benchmark_beside_a_busy_loop_is_run_again_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by the kernel's books of processor time: the benchmark ends when the loop has had enough of it.

    And in each spell of it, of which none is as long as it would have to be by itself.
    """
    monkeypatch.setenv("HALOCTL_MAX_FOREIGN_CPU_PERCENT", "0.1")
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    create_sampler = partial(Sampler, interval_s=0.01, max_cpu_share=1.0)
    measure = partial(run_measured, create_sampler=create_sampler, window_s=0.1)
    settings = {
        "target": "cpu",
        "tp": 1,
        "batch": [1],
        "prompt_tokens": [8],
        "new_tokens": 8,
        "warmup": 0,
        "repetitions": 1,
    }
    with subprocess.Popen([sys.executable, "-IS", "-c", "while True: pass"]) as busy:
        try:
            commands = [python(BENCHMARK_BESIDE, name, str(busy.pid)) for name in ("prefill_bs1_t8", "decode_bs1_t8")]
            attempt = make_attempt(
                *commands,
                stage="benchmark",
                settings={**settings, "max_disturbed_reruns": 1},
                devices=(Device("cpu", 0),),
            )
            result = carried_out(tmp_path, attempt, measure=measure)
        finally:
            busy.kill()
    assert result.failure is None
    (warning,) = result.warnings
    assert warning.startswith("disturbed in 2 runs in a row: other processes used ")
    ttft = next(measurement for measurement in result.measurements if measurement.metric == "ttft_ms")
    assert [len(ttft.context["disturbed_runs"]), len(ttft.samples)] == [1, 1]
    assert ttft.context["variables"]["OMP_DYNAMIC"] == "true", "what may change a number is recorded with it"
    machine = ttft.context["machine"]
    assert machine["foreign_cpu_s"] > machine["own_cpu_s"] > 0
    assert machine["samples"] > 1
    assert machine["peak_foreign_cpu_percent"] > 1
    assert machine["node"] == "local"
