"""A job that can't work is refused in one message that names file, line and key, and nothing is stored of it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from jobs.models import SHIPPED
from tests.acceptance.haloctl import Done, Haloctl, opened
from tests.acceptance.job_specs import ONE_EXPORT

TINY = SHIPPED / "tiny-llama"

#: A job file, and what has to be said of it: `{file}` is its path.
BAD_FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a wrong key": (
        "name: x\nmodle: tiny-llama\n",
        ("{file}:2: modle: is not a key of a job file here", "did you mean model?"),
    ),
    "a wrong key in a section": (
        "name: x\nmodel: tiny-llama\nvariants:\n  tp: 1\n  precison: f16\n",
        ("{file}:5: variants.precison:", "did you mean precision?"),
    ),
    "a key given twice": ("name: x\nmodel: tiny-llama\nname: y\n", ("{file}:3: name: occurs twice",)),
    "a missing key": ("name: x\n", ("{file}: model: is missing",)),
    "a wrong type": (
        "name: x\nmodel: tiny-llama\nworkload:\n  batch: many\n",
        ("{file}:4: workload.batch", "integer", "'many'"),
    ),
    "a section that is no mapping": ("name: x\nmodel: tiny-llama\nworkload: 4\n", ("{file}:3: workload:", "4")),
    "a wrong value": (
        "name: x\nmodel: tiny-llama\nvariants: {precision: [f16, f17]}\n",
        ("{file}:3: variants.precision", "'f17'", "'f32'"),
    ),
    "an unknown target": (
        "name: x\nmodel: tiny-llama\nvariants: {target: mi3000x}\n",
        ("{file}:3: variants.target", "mi3000x", "mi300x"),
    ),
    "an unknown stage": (
        "name: x\nmodel: tiny-llama\nstages: [exprot]\n",
        ("{file}:3: stages", "exprot", "quantize, export"),
    ),
    "a number out of range": ("name: x\nmodel: tiny-llama\nvariants: {tp: 0}\n", ("{file}:3: variants.tp", "0")),
    "a value given twice": (
        "name: x\nmodel: tiny-llama\nvariants: {tp: [1, 1]}\n",
        ("{file}:3: variants.tp: should name each value once",),
    ),
    "a duration that is none": ("name: x\nmodel: tiny-llama\ntimeout: soon\n", ("{file}:3: timeout:", "30m", "soon")),
    "a flag that is none": (
        "name: x\nmodel: tiny-llama\ncompile: {flags: ['; rm -rf /']}\n",
        ("{file}:3: compile.flags[0]",),
    ),
    "a stage without what it needs": (
        "name: x\nmodel: tiny-llama\nstages: [export, invoke]\n",
        ("{file}:3: stages: invoke needs compile",),
    ),
    "an exclusion of everything": (
        "name: x\nmodel: tiny-llama\nvariants: {tp: [1, 2], exclude: [{precision: f16}]}\n",
        ("{file}", "variants.exclude: leaves no variant"),
    ),
    "an exclusion of nothing": (
        "name: x\nmodel: tiny-llama\nvariants: {exclude: [{}]}\n",
        ("{file}:3: variants.exclude", "at least one"),
    ),
    "no YAML": ("name: [x\nmodel: tiny-llama\n", ("{file}:2: is not YAML",)),
    "a list": ("- name: x\n", ("{file}: should be a mapping",)),
    "nothing": ("", ("{file}: should be a mapping",)),
    "an unknown model": ("name: x\nmodel: tiny-lama\n", ("{file}:2: model: no model is called 'tiny-lama'",)),
    "an unknown shape": (
        "name: x\nmodel: shape:llama9-1b\n",
        ("{file}:2: model: no shape is called 'llama9-1b'", "llama3.1-70b"),
    ),
    "a model folder that is not there": ("name: x\nmodel: ./nowhere\n", ("{file}:2: model:", "does not exist")),
    "a model folder without a config": ("name: x\nmodel: ./empty\n", ("{file}:2: model:", "has no config.json")),
    "a text that is not there": (
        "name: x\nmodel: tiny-llama\nnumerics: {text: ./nowhere.txt}\n",
        ("{file}:3: numerics.text: the file", "does not exist"),
    ),
}


@pytest.fixture(scope="module")
def haloctl(temporary: Path, known_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A haloctl that is to stay unused."""
    with opened(tmp_path_factory.mktemp("refusing"), temporary, known_model) as cli:
        (cli.folder / "empty").mkdir()
        yield cli


def assert_refused(haloctl: Haloctl, done: Done, *phrases: str) -> None:
    """One message, exit code 2, and nothing stored or left."""
    assert (done.code, done.out) == (2, ""), done.err
    (line,) = done.err.splitlines()
    assert line.startswith("haloctl: ")
    for words in phrases:
        assert words in line
    assert {path.name for path in haloctl.data.iterdir()} == {"cache"}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_job_file_is_refused_with_line_and_key(haloctl: Haloctl, name: str) -> None:
    text, phrases = BAD_FILES[name]
    file = haloctl.folder / "job.yaml"
    file.write_text(text)
    done = haloctl.run("submit", str(file), "--wait")
    assert_refused(haloctl, done, *(words.format(file=file) for words in phrases))


def test_a_binary_file_is_refused(haloctl: Haloctl) -> None:
    done = haloctl.run("submit", str(TINY / "model.safetensors"))
    assert_refused(haloctl, done, "model.safetensors", "is larger than 256 KiB: give a job file")


def test_a_folder_is_refused(haloctl: Haloctl) -> None:
    assert_refused(haloctl, haloctl.run("submit", str(haloctl.folder)), "is a folder; give a job file")


def test_an_unknown_recipe_is_refused_with_those_there_are(haloctl: Haloctl) -> None:
    assert_refused(haloctl, haloctl.run("submit", "dmeo"), "'dmeo'", "demo", "tiny-llama")


def test_a_shape_is_refused_where_weights_are_needed(haloctl: Haloctl) -> None:
    job = haloctl.job(name="x", model="shape:llama3.1-8b", stages=["export", "compile", "invoke"])
    assert_refused(haloctl, haloctl.run("submit", job), "stages: shape:llama3.1-8b has no weights", "export, compile")


def test_a_damaged_model_is_refused_at_submit(haloctl: Haloctl) -> None:
    folder = Path(shutil.copytree(TINY, haloctl.folder / "damaged"))
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 1000)
    job = haloctl.job(**{**ONE_EXPORT, "model": ["tiny-llama", str(folder)]})
    phrases = ("model[1]: ", str(folder), "model.safetensors is truncated", "fetch it again")
    assert_refused(haloctl, haloctl.run("submit", job, "--wait"), *phrases)


@pytest.mark.parametrize(
    ("keys", "phrases"),
    [
        ({"variants": {"tp": [1, 3]}}, ("tp 3: model.layers.*.", "not divisible by tp 3")),
        (
            {"variants": {"precision": "int4", "tp": [2, 8]}},
            (
                "tp 8: model.layers.*.mlp.down_proj: each device holds 64 of its 512 columns",
                "group_size 32 (and 1 more)",
            ),
        ),
        ({"overrides": {"num_hidden_layerz": 1}}, ("num_hidden_layerz", "did you mean num_hidden_layers?")),
    ],
)
def test_what_a_model_can_t_do_is_refused_at_submit(
    haloctl: Haloctl, keys: dict[str, Any], phrases: tuple[str, ...]
) -> None:
    job = haloctl.job(name="x", model="tiny-llama", **keys)
    assert_refused(haloctl, haloctl.run("submit", job, "--wait"), "tiny-llama: ", *phrases)


def test_after_all_that_there_is_still_no_job(haloctl: Haloctl) -> None:
    assert haloctl.json("list") == []
