"""Mistakes in job files are reported with file, line and key; valid files are read unchanged."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import HaloError, JobFileError, UnknownRecipe
from jobs.job_file.spec import JobSpec
from jobs.variants import BenchmarkPlacement
from orchestrator.submission.job_file import load, recipes

GOOD = "name: x\nmodel: tiny-llama\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("name: x\nmodle: tiny-llama\n", 2, "modle", "did you mean model?"),
        (GOOD + "variants:\n  precison: f32\n", 4, "variants.precison", "did you mean precision?"),
        (GOOD + "variants:\n  precision: fp16\n", 4, "variants.precision", "'bf16', 'fp8', 'int8' or 'int4'"),
        (GOOD + "variants:\n  tp: [1, 3.5]\n", 4, "variants.tp[1]", "integer"),
        (GOOD + "variants: {tp: [1, 1]}\n", 3, "variants.tp", "should name each value once"),
        (GOOD + "variants: {target: mi300}\n", 3, "variants.target", "mi300x"),
        (
            GOOD + "variants: {target: h100, precision: fp8}\n",
            3,
            "variants.precision",
            "{precision: fp8, target: h100}",
        ),
        (GOOD + "variants:\n  exclude:\n  - {tq: 3}\n", 5, "variants.exclude[0].tq", "precision, tp"),
        (GOOD + "name: y\n", 3, "name", "twice"),
        (GOOD + "stages: [compile]\n", 3, "stages", "compile needs export"),
        (GOOD + "stages: [export, link]\n", 3, "stages[1]", "should be one of finetune, quantize, export"),
        (GOOD + "timeout: 3 days\n", 3, "timeout", "30m"),
        (GOOD + "timeout: 0\n", 3, "timeout", "greater than 0"),
        (GOOD + "workload: {batch: 0}\n", 3, "workload.batch", "greater than or equal to 1"),
        (GOOD + "numerics: {text: nowhere.txt}\n", 3, "numerics.text", "does not exist"),
        (GOOD + "job_timeout: 1 day\n", 3, "job_timeout", "30m"),
        (GOOD + "priority: high\n", 3, "priority", "integer"),
        (GOOD + "priority: 1001\n", 3, "priority", "less than or equal to 1000"),
        (GOOD + "benchmark:\n  exclusive: maybe\n", 4, "benchmark.exclusive", "boolean"),
        (GOOD + "benchmark:\n  on: every_node\n", 4, "benchmark.on", "'each_node'"),
        (GOOD + "benchmark:\n  warmup: 1\n  on: each_node\nstages: [export]\n", 5, "benchmark.on", "needs the stage"),
        (GOOD + "benchmark: {on: each_device}\nvariants: {tp: 2}\n", 3, "benchmark.on", "tp 2 takes 2: use each_node"),
        (
            GOOD + "benchmark: {on: each_node}\nvariants: {tp: 2, nodes: 2, engine: torch}\n",
            3,
            "benchmark.on",
            "nodes 2 spans several",
        ),
        (
            GOOD + "variants: {engine: onnx}\n",
            3,
            "variants.engine",
            "should be one of iree, torch, torch-compile, vllm",
        ),
        (GOOD + "variants: {nodes: 2, tp: 2}\n", 3, "variants.nodes", "{engine: iree, nodes: 2} with exclude"),
        (GOOD + "variants: {nodes: 3, tp: 8, engine: torch}\n", 3, "variants.tp", "{tp: 8, nodes: 3} with exclude"),
        (GOOD + "variants: {engine: torch}\nstages: [export]\n", 4, "stages", "numerics, benchmark"),
        (
            GOOD + "torch: {tunable_op: true}\n",
            3,
            "torch.tunable_op",
            "of the engines torch, torch-compile, and no variant has one",
        ),
        (
            GOOD + "variants: {engine: torch}\ntorch: {inductor: {freezing: true}}\n",
            4,
            "torch.inductor",
            "torch-compile",
        ),
        (GOOD + "variants: {engine: torch}\ntorch: {tunable_op: true}\n", 4, "torch.tunable_op", "no target is one"),
        (
            GOOD + "variants: {attention: flash_attention_2}\n",
            3,
            "variants.attention",
            "only for the engines torch, torch-compile",
        ),
        (
            GOOD + "variants: {attention: flash_attention_2, engine: torch}\n",
            3,
            "variants.engine",
            "{engine: torch, target: cpu, attention: flash_attention_2} with exclude",
        ),
        (GOOD + "variants: {engine: vllm, attention: eager}\n", 3, "variants.engine", "has only attention sdpa"),
        (GOOD + "benchmark: {order: random}\n", 3, "benchmark.order", "'interleaved'"),
        (GOOD + "compile: {flags: ['rm -rf']}\n", 3, "compile.flags[0]", "match"),
        ("name: x\nmodel: shape:llama9\n", 2, "model", "llama3.1-70b"),
        ("name: x\nmodel: ./nowhere\n", 2, "model", "does not exist"),
        ("name: x\nmodel: .\n", 2, "model", "config.json"),
        ("name: x\nmodel: nonsense\n", 2, "model", "tiny-llama"),
        ("name: [\n", 2, "", "not YAML"),
        ("- a\n", None, "", "mapping"),
        ("", None, "", "mapping"),
        ("name: x\n", None, "model", "missing"),
    ],
)
def test_a_mistake_names_its_line_and_key(job: Path, text: str, line: int | None, key: str, says: str) -> None:
    job.write_text(text)
    with pytest.raises(JobFileError, match=re.escape(says)) as caught:
        load(str(job))
    assert (caught.value.line, caught.value.key) == (line, key)
    assert str(caught.value).startswith(str(job))


def test_a_file_that_is_not_text_is_refused(job: Path) -> None:
    job.write_bytes(b"\x80\x81\xff")
    with pytest.raises(JobFileError, match="not YAML"):
        load(str(job))


def test_an_unknown_name_lists_the_recipes() -> None:
    with pytest.raises(UnknownRecipe, match="tiny-llama"):
        load("tiny-lama")


def test_every_recipe_loads() -> None:
    assert {"demo", "tiny-llama"} <= set(recipes())
    for name in recipes():
        load(name)


def test_a_single_value_stands_for_a_list(job: Path) -> None:
    job.write_text(GOOD + "variants: {tp: 8, precision: bf16}\nworkload: {batch: 4}\ntimeout: 1h30m\n")
    spec = load(str(job)).spec
    assert (spec.variants.tp, spec.workload.batch, spec.timeout) == ([8], [4], 5400.0)


def test_a_job_says_how_urgent_it_is_how_long_it_may_take_and_where_it_is_timed(job: Path) -> None:
    job.write_text(GOOD + "priority: -3\njob_timeout: 12h\nbenchmark: {exclusive: off, on: each_node}\n")
    spec = load(str(job)).spec
    assert (spec.priority, spec.job_timeout) == (-3, 43_200.0)
    assert (spec.benchmark.exclusive, spec.benchmark.on) == (False, BenchmarkPlacement.EACH_NODE)
    job.write_text(GOOD)
    spec = load(str(job)).spec
    assert (spec.priority, spec.job_timeout, spec.benchmark.exclusive, spec.benchmark.on) == (
        0,
        None,
        None,
        BenchmarkPlacement.ANY,
    )


def test_a_model_folder_is_taken_from_the_job_files_folder(job: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    job.write_text("name: x\nmodel: ./m\n")
    (source,) = load(str(job)).sources
    assert source.folder == tmp_path / "m"


@pytest.mark.parametrize(
    ("models", "key", "says"),
    [
        ("[tiny-llama, shape:llama3.1-9b]", "model[1]", "no shape is called"),
        ("[shape:llama3.1-8b, shape:llama3.1-8B]", "model[1]", "has the same name, llama3.1-8B, as shape:llama3.1-8b"),
        ("tiny-llama\nvariants:\n  exclude: [{model: tiny-lama}]", "variants.exclude[0].model", "one of tiny-llama"),
        ("[tiny-llama, shape:llama3.1-8b]\nrevision: main", "revision", "is for a job with one model"),
    ],
)
def test_each_model_is_looked_at(job: Path, models: str, key: str, says: str) -> None:
    job.write_text(f"name: x\nmodel: {models}\n")
    with pytest.raises(JobFileError) as raised:
        load(str(job))
    assert (raised.value.key, says in str(raised.value)) == (key, True), raised.value


@given(st.text(max_size=200))
def test_no_text_is_anything_but_a_job_or_one_clear_error(text: str) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8", errors="surrogatepass") as file:
        file.write(text)
        file.flush()
        try:
            spec = load(file.name).spec
        except HaloError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(spec, JobSpec)
