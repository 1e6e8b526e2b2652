"""Files of vLLM, of IREE and of people, read as results."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.writes.imports import ImportedCell
from jobs.errors import FileError
from jobs.state import FailureKind
from jobs.toolchains import DEFAULT
from jobs.variants import AXES, Attention, Axes, Precision, Variant, variant_name
from orchestrator.imports import iree, tracker, vllm
from orchestrator.imports.imported_file import ImportedFile, KnownWorkload
from orchestrator.imports.variant_names import parse_variant_name

DAY = datetime(2024, 10, 25, tzinfo=UTC)
NAME = "llama3.1-8B-FP16-TP8"
MODEL, VARIANT = parse_variant_name(NAME, "mi300x")

#: As vllm/benchmarks/serve.py writes it, with --save-detailed and two requests.
SERVED: dict[str, Any] = {
    "date": "20241115-083000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 2, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2, "duration": 1.5, "completed": 2,
    "total_input_tokens": 256, "total_output_tokens": 6, "request_throughput": 1.33, "request_goodput:": None,
    "output_throughput": 4.0, "total_token_throughput": 170.0, "input_lens": [128, 128], "output_lens": [3, 3],
    "ttfts": [0.25, 0.75], "itls": [[0.01, 0.02], [0.03, 0.04]], "generated_texts": ["a", "b"], "errors": ["", ""],
    "mean_ttft_ms": 500.0, "median_ttft_ms": 500.0, "std_ttft_ms": 250.0, "p99_ttft_ms": 745.0,
    "mean_tpot_ms": 25.0, "median_tpot_ms": 25.0, "std_tpot_ms": 10.0, "p99_tpot_ms": 34.8,
    "mean_itl_ms": 25.0, "median_itl_ms": 25.0, "std_itl_ms": 11.2, "p99_itl_ms": 39.7,
    "mean_e2el_ms": 550.0, "median_e2el_ms": 550.0, "std_e2el_ms": 250.0, "p99_e2el_ms": 800.0,
}  # fmt: skip
UNKNOWN = KnownWorkload()
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")
LATENCY = {"avg_latency": 1.1, "std_latency": 0.1, "latencies": [1.0, 1.2], "percentiles": {"50": 1.1}}
THROUGHPUT = {
    "elapsed_time": 10.0, "num_requests": 20, "total_num_tokens": 5120, "requests_per_second": 2.0,
    "tokens_per_second": 512.0,
}  # fmt: skip


def run(name: str, time: float, **changes: Any) -> dict[str, Any]:
    return {"name": name, "run_type": "iteration", "real_time": time, "time_unit": "ms"} | changes


IREE = {
    "context": {"date": "2024-11-01T10:00:00+00:00", "host_name": "n1", "num_cpus": 2},
    "benchmarks": [
        run("BM_prefill_bs4_t2048/process_time/real_time", 201.0, repetition_index=1),
        run("BM_prefill_bs4_t2048/process_time/real_time", 200.0, repetition_index=0),
        run("BM_prefill_bs4_t2048/process_time/real_time_mean", 200.5, run_type="aggregate", aggregate_name="mean"),
        run("BM_decode_bs4_c2080/process_time/real_time", 9600.0, time_unit="us"),
        run("BM_other/real_time", 1.0),
    ],
}

PAGE = """
# Status-Numerics
(MI300X GPU, SPX Mode)
|Item | Generate MLIR | Compile to vmfb | IREE invocation | IREE numeric | Serving numeric |
|---|---|---|---|---|---|
| llama3.1-8B-FP16-decomposed | PASS [TP1 mlir](https://site/8b.mlir) [irpa](https://site/8b.irpa) | PASS | FAIL [OOM](https://site/18864) | | PASS |
| llama-toy-size-FP32-TP2-CPU | Fails in iree, [patch](https://site/18890) | | | FAIL (probably) |
| llama3.1-8B-Q4_1 | PASS |
| grok-1 | PASS |

# Status-Benchmark
|Item | 10/25/24 | 11/1/24 | Target(vLLM-PyTorch)|
|---|---|---|---|
| llama3.1-8B-FP16 | (t1, t2) | (320.5, 9.9) [run](https://site/run) | (300, 9) |
| llama3.1-8B-FP16-TP8 | (60 ms, 4 ms) | | |

# Schedule
| Item | 10/18/24 |
|---|---|
| Sharding | 8 CPU core sharded 2,3 |
"""  # noqa: E501


def numbers(cell: ImportedCell) -> dict[str, tuple[float, ...]]:
    return {measurement.metric: measurement.samples for measurement in cell.measurements}


def read_vllm(folder: Path, content: Any, at: datetime | None = DAY, known: KnownWorkload = UNKNOWN) -> ImportedCell:
    file = folder / "vllm.json"
    file.write_text(json.dumps(content))
    (cell,) = vllm.read(file, MODEL, VARIANT, at, known).cells
    return cell


def test_vllms_served_requests_are_a_benchmark_with_every_sample(tmp_path: Path) -> None:
    cell = read_vllm(tmp_path, SERVED, at=None)
    assert (cell.stage, cell.model, cell.variant.tp) == ("benchmark", "llama3.1-8B", 8)
    assert cell.at == datetime(2024, 11, 15, 8, 30).astimezone()
    assert numbers(cell) == {
        "ttft_ms": (250.0, 750.0),
        "itl_ms": (10.0, 20.0, 30.0, 40.0),
        "e2e_ms": (550.0,),
        "itl_mean_ms": (25.0,),
        "itl_p99_ms": (39.7,),
        "output_tokens_per_s": (4.0,),
    }
    context = cell.measurements[0].context
    assert (context["batch"], context["prompt_tokens"], context["new_tokens"]) == (2, 128, 3)
    assert context["statistics"] == {"mean": 500.0, "median": 500.0, "std": 250.0, "p99": 745.0}
    assert cell.variant.name != NAME  # what IREE made of the same model is another row
    assert "vllm" in cell.variant.name


def test_without_details_vllms_own_median_is_the_sample(tmp_path: Path) -> None:
    cell = read_vllm(tmp_path, {name: value for name, value in SERVED.items() if name not in DETAILS})
    assert (numbers(cell)["ttft_ms"], numbers(cell)["itl_ms"], cell.at) == ((500.0,), (25.0,), DAY)


def test_vllms_latency_and_throughput_are_read_with_what_is_said_of_them(tmp_path: Path) -> None:
    known = KnownWorkload(batch=8, prompt_tokens=32, new_tokens=128)
    latency = read_vllm(tmp_path, LATENCY, known=known)
    assert numbers(latency)["e2e_ms"] == (1000.0, 1200.0)
    assert numbers(latency)["output_tokens_per_s"][0] == 1024.0
    assert latency.measurements[0].context == {"batch": 8, "prompt_tokens": 32, "new_tokens": 128}
    assert numbers(read_vllm(tmp_path, THROUGHPUT, known=known)) == {"output_tokens_per_s": (256.0,)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "vllm.json: should be one JSON object"),
        ({}, "vllm.json: is no result of vllm bench"),
        (LATENCY | {"latencies": []}, "latencies: should be a number, or a list"),
        (LATENCY | {"latencies": [float("nan")]}, "latencies: should be a number, or a list"),
        (SERVED | {"completed": 0}, "completed: is 0"),
        (SERVED | {"ttfts": [None, 1.0]}, "ttfts: should be a number, or a list"),
        (SERVED | {"median_ttft_ms": "fast", "ttfts": []}, "median_ttft_ms: should be a number"),
        (THROUGHPUT, "tokens_per_second: counts prompts and answers together; give --new-tokens"),
    ],
)
def test_a_file_that_vllm_did_not_write_is_told_by_its_key(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(FileError) as error:
        read_vllm(tmp_path, content)
    assert message in str(error.value)


def appended(*results: dict[str, Any], between: str = "\n") -> str:
    """As serve.py leaves a file with --append-result: a line end before each result but the first."""
    return between.join(json.dumps(result) for result in results)


@pytest.mark.parametrize("between", ["\n", "", "\n\n"])
def test_each_result_that_vllm_appended_is_one_of_its_own_time(tmp_path: Path, between: str) -> None:
    file = tmp_path / "vllm.json"
    later = SERVED | {"date": "20241116-083000", "max_concurrency": 16, "median_e2el_ms": 700.0}
    file.write_text(appended(SERVED, later, between=between))
    cells = vllm.read(file, MODEL, VARIANT, None, UNKNOWN).cells
    assert [(cell.at.day, cell.measurements[0].context["batch"]) for cell in cells] == [(15, 2), (16, 16)]
    assert [numbers(cell)["e2e_ms"] for cell in cells] == [(550.0,), (700.0,)]
    file.write_text(appended(SERVED))
    (alone,) = vllm.read(file, MODEL, VARIANT, None, UNKNOWN).cells
    assert alone.digest == cells[0].digest  # it is known when the file has grown
    assert (alone.line, [cell.line for cell in cells]) == (None, [1, 1 + between.count("\n")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (appended(SERVED, {"completed": 1}), "vllm.json:2: is no result of vllm bench"),
        (appended(SERVED, SERVED | {"completed": 0}), "vllm.json:2: completed: is 0"),
        (appended(SERVED) + '\n{"date": "2024', "vllm.json:2: is not JSON"),
        (appended(SERVED) + "\n[]", "vllm.json:2: should be one JSON object"),
        ("", "vllm.json:1: is not JSON"),
    ],
)
def test_an_appended_result_that_can_t_be_read_is_told_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "vllm.json"
    file.write_text(text)
    with pytest.raises(FileError) as error:
        vllm.read(file, MODEL, VARIANT, None, UNKNOWN)
    assert message in str(error.value)


def test_a_file_without_a_date_needs_one(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="give --date"):
        read_vllm(tmp_path, LATENCY, at=None)
    with pytest.raises(FileError, match="should be like 20241115-083000"):
        read_vllm(tmp_path, SERVED | {"date": "today"}, at=None)


def read_iree(folder: Path, content: Any, known: KnownWorkload = UNKNOWN) -> ImportedFile:
    file = folder / "iree.json"
    file.write_text(json.dumps(content))
    return iree.read(file, MODEL, VARIANT, None, known)


def test_irees_prefill_and_decode_are_ttft_and_itl(tmp_path: Path) -> None:
    imported = read_iree(tmp_path, IREE, KnownWorkload(prompt_tokens=2048))
    (cell,) = imported.cells
    assert numbers(cell) == {"ttft_ms": (200.0, 201.0), "itl_ms": (9.6,)}
    assert [measurement.context["batch"] for measurement in cell.measurements] == [4, 4]
    assert {measurement.context["prompt_tokens"] for measurement in cell.measurements} == {2048}
    assert (cell.at, cell.variant.engine) == (datetime(2024, 11, 1, 10, tzinfo=UTC), "iree")
    assert imported.skipped == ("benchmarks[4]: 'BM_other/real_time' is neither prefill nor decode",)


@pytest.mark.parametrize(
    ("benchmarks", "message"),
    [
        (None, "benchmarks: should be a list"),
        ([], "benchmarks: has no single run"),
        ([run("BM_decode_bs1", 1.0, aggregate_name="mean")], "benchmarks: has no single run"),
        ([run("BM_decode_bs1", 1.0, time_unit="h")], "benchmarks[0].time_unit: should be one of"),
        ([run("BM_decode_bs1", 1.0), run("BM_decode_bs1", "9")], "benchmarks[1].real_time: should be a number"),  # type: ignore[arg-type]
        ([run("BM_decode_bs1", 0, error_occurred=True, error_message="OOM")], "benchmarks[0].error_message: OOM"),
    ],
)
def test_a_file_that_iree_did_not_write_is_told_by_its_key(tmp_path: Path, benchmarks: Any, message: str) -> None:
    with pytest.raises(FileError) as error:
        read_iree(tmp_path, {**IREE, "benchmarks": benchmarks})
    assert message in str(error.value)


def read_page(folder: Path, text: str, name: str = "page.md", **changes: Any) -> ImportedFile:
    file = folder / name
    file.write_text(text)
    asked: dict[str, Any] = {"target": "mi300x", "tp": 1, "at": DAY, "workload": KnownWorkload(batch=4)}
    return tracker.read(file, tracker.TrackerDefaults(**asked | changes))


def test_a_page_gives_verdicts_with_their_links_and_times_by_date(tmp_path: Path) -> None:
    imported = read_page(tmp_path, PAGE)
    cells = [
        (cell.variant.name, cell.variant.target, cell.stage, cell.failure and cell.failure.kind)
        for cell in imported.cells
    ]
    eager = "llama3.1-8B-FP16-decomposed-TP1"
    assert cells == [
        (eager, "mi300x", "export", None),
        (eager, "mi300x", "compile", None),
        (eager, "mi300x", "invoke", FailureKind.OUT_OF_MEMORY),
        ("llama-toy-size-FP32-TP2", "cpu", "export", FailureKind.TOOL_FAILED),
        ("llama-toy-size-FP32-TP2", "cpu", "numerics", FailureKind.WRONG_NUMBERS),
        ("llama3.1-8B-FP16-TP1", "mi300x", "benchmark", None),
        ("llama3.1-8B-FP16-TP8", "mi300x", "benchmark", None),
    ]
    assert imported.cells[0].links == (("TP1 mlir", "https://site/8b.mlir"), ("irpa", "https://site/8b.irpa"))
    assert numbers(imported.cells[5]) == {"ttft_ms": (320.5,), "itl_ms": (9.9,)}
    assert imported.cells[5].measurements[0].context == {"batch": 4}
    assert [cell.at for cell in imported.cells[5:]] == [
        datetime(2024, 11, 1).astimezone(),
        DAY.replace(tzinfo=None).astimezone(),
    ]
    assert [text.partition(":")[0] for text in imported.skipped] == ["line 8", "line 9", "line 6"]


def test_one_table_in_csv_is_read_like_a_page(tmp_path: Path) -> None:
    imported = read_page(
        tmp_path, 'Item,2024-10-25,Generate MLIR\nllama3.1-8B-FP16,"(1, 2)",PASS [m](http://x)\n', "a.csv", tp=8
    )
    assert [(cell.variant.name, cell.stage, cell.links) for cell in imported.cells] == [
        (NAME, "benchmark", ()),
        (NAME, "export", (("m", "http://x"),)),
    ]


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("nothing", {}, "page.md: has no table of variants"),
        (PAGE, {"at": None}, "page.md:6: Generate MLIR: has no date; give --date"),
        (PAGE.replace("(320.5, 9.9)", "320.5"), {}, "page.md:14: 11/1/24: should be (TTFT, ITL) in ms, not '320.5'"),
        (PAGE.replace("FP16-TP8", "FP16-TP1").replace("(t1, t2)", "(1, 2)"), {}, "page.md:15: has benchmark"),
        ("a,b\n1,2,3\n", {"name": "a.csv"}, "a.csv:2: has more cells"),
        ("", {"name": "a.csv"}, "a.csv: is empty"),
    ],
)
def test_a_wrong_page_is_told_by_its_line(tmp_path: Path, text: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError) as error:
        read_page(tmp_path, text, **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("llama3.1-8B-FP16", "llama3.1-8B-FP16-TP1"),
        ("llama3.1-405B-FP16-decomposed-TP8", "llama3.1-405B-FP16-decomposed-TP8"),
        ("granite-3-8B-BF16-TP2-2N-torch", "granite-3-8B-BF16-TP2-2N-torch"),
    ],
)
def test_a_variant_is_known_by_its_name(name: str, meant: str) -> None:
    assert parse_variant_name(name, "mi300x")[1].name == meant


#: One of each axis, whatever it is.
EVERY = {
    "tp": st.integers(1, 64),
    "nodes": st.integers(1, 9),
    "toolchain": st.just(DEFAULT),
    **{name: st.sampled_from(list(kind)) for name, kind in AXES.items() if issubclass(kind, StrEnum)},
}


@given(model=st.from_regex(r"[a-z]{1,5}[0-9.]{0,3}(-[0-9]{1,3}B)?", fullmatch=True), axes=st.fixed_dictionaries(EVERY))
def test_every_name_that_haloctl_makes_is_understood(model: str, axes: dict[str, Any]) -> None:
    made = Axes(**axes)
    assert parse_variant_name(variant_name(model, made), "cpu") == (
        model,
        Variant(variant_name(model, made), "cpu", **axes),
    )


def test_what_a_name_says_are_the_variants_axes() -> None:
    model, variant = parse_variant_name("a-b-BF16-decomposed-TP4-MI300X")
    assert (model, variant.precision, variant.attention) == ("a-b", Precision.BF16, Attention.EAGER)
    assert (variant.tp, variant.target) == (4, "mi300x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama3.1-8B", "should be MODEL-PRECISION"),
        ("llama3.1-8B-FP16-TP", "'TP' at the end of"),
        ("llama3.1-8B-FP16-fast", "'fast' at the end of"),
        ("llama3.1-8B-FP16", "give --target"),
    ],
)
def test_a_name_that_says_nothing_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_variant_name(name)
