"""Quoted targets: which one a result is held against, and the files that they are read from."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from db.writes.targets import QuotedTarget, target_for
from jobs.errors import FileError
from orchestrator.imports.target_files import read
from tests.stored_jobs import NOON

PAGE = """
# Status-Benchmark
(MI300X GPU, SPX Mode)
|Item | 10/25/24 | Target(vLLM-PyTorch)|
|---|---|---|
| llama3.1-8B-FP16 | (t1, t2) | (320, 9.9 ms) [run](https://site/run) |
| llama3.1-70B-FP16 |
| llama3.1-405B-FP16 | | TBD |
"""


def quoted(value: float = 1.0, **changes: Any) -> QuotedTarget:
    row: dict[str, Any] = {"variant": "llama-8B-FP16-TP1", "target": "", "metric": "itl_ms", "unit": "ms"}
    open_workload: dict[str, Any] = {"batch": None, "prompt_tokens": None, "new_tokens": None}
    return QuotedTarget(
        **row | open_workload | {"value": value, "source": "s", "recorded_by": "ada", "since": NOON} | changes
    )


def value_for(targets: Iterable[QuotedTarget], **changes: Any) -> float | None:
    asked: dict[str, Any] = {"variant": "llama-8B-FP16-TP1", "target": "mi300x", "metric": "itl_ms", "batch": 4}
    target = target_for(targets, **asked | changes)
    return None if target is None else target.value


#: From the one that counts most to the one that counts least.
BY_SPECIFICITY = [
    quoted(1, batch=4, target="mi300x"),
    quoted(2, batch=4),
    quoted(3, target="mi300x"),
    quoted(4),
    quoted(5, variant="llama-8B-FP16-*", batch=4),
    quoted(6, variant="llama-8B-FP16-*"),
    quoted(7, variant="llama-*", batch=4),
]


def test_the_most_specific_target_that_fits_counts() -> None:
    for start, target in enumerate(BY_SPECIFICITY):
        assert value_for(reversed(BY_SPECIFICITY[start:])) == target.value


@pytest.mark.parametrize(
    "unfit",
    [
        quoted(variant="llama-8B-FP16"),
        quoted(variant="mistral*"),
        quoted(metric="ttft_ms"),
        quoted(target="h100"),
        quoted(batch=1),
        quoted(prompt_tokens=64),  # the result does not say
    ],
)
def test_a_target_of_something_else_does_not_count(unfit: QuotedTarget) -> None:
    assert value_for([unfit]) is None


def test_of_one_kind_the_target_that_began_last_holds() -> None:
    early, late = quoted(1), quoted(2, since=NOON + timedelta(days=7))
    assert value_for([late, early]) == 2
    assert value_for([late, early], at=NOON + timedelta(days=6)) == 1
    assert value_for([late, early], at=NOON - timedelta(days=1)) is None


def rows_of(folder: Path, name: str, text: str, **defaults: Any) -> list[QuotedTarget]:
    file = folder / name
    file.write_text(text)
    return read(file, defaults, "ada", NOON)


def test_a_trackers_page_gives_the_targets_of_its_benchmark_table(tmp_path: Path) -> None:
    targets = rows_of(tmp_path, "page.md", PAGE, target="mi300x", batch=4)
    assert [
        (target.variant, target.target, target.batch, target.metric, target.value, target.unit) for target in targets
    ] == [
        ("llama3.1-8B-FP16-TP1", "mi300x", 4, "ttft_ms", 320.0, "ms"),
        ("llama3.1-8B-FP16-TP1", "mi300x", 4, "itl_ms", 9.9, "ms"),
    ]
    assert {target.source for target in targets} == {"Target(vLLM-PyTorch) in page.md https://site/run"}
    targets = rows_of(tmp_path, "page.md", PAGE, source="https://wiki/halo")
    assert {target.source for target in targets} == {"Target(vLLM-PyTorch) in https://wiki/halo https://site/run"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "variant,metric,value,source,batch\nv,itl_ms,9.6,CI,4\n"),
        ("a.json", '[{"variant": "v", "metric": "itl_ms", "value": 9.6, "source": "CI", "batch": 4, "target": ""}]'),
        ("a.md", "|variant|metric|value|source|batch|\n|-|-|-|-|-|\n|v|itl_ms|9.6|CI|4|\n"),
    ],
)
def test_targets_are_read_from_csv_json_and_markdown_alike(tmp_path: Path, name: str, text: str) -> None:
    (target,) = rows_of(tmp_path, name, text, source="elsewhere", target="mi300x")
    assert target == quoted(9.6, variant="v", batch=4, source="CI", target="mi300x")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "variant,metric,value\nv,itl_ms,1\n", "a.csv:2: source: is missing; give --source for all rows"),
        ("a.csv", "variant,metric,value,source\nv,itl_ms,1,s\nv,speed,1,s\n", "a.csv:3: metric: no metric is called"),
        ("a.csv", "variant,metric,value,source\nv,itl_ms,soon,s\n", "a.csv:2: value: input should be a valid number"),
        ("a.csv", "variant,metric,value,source\nv,itl_ms,nan,s\n", "a.csv:2: value: input should be a finite number"),
        ("a.csv", "variant,metric,value,source\nv,itl_ms,1,s,more\n", "a.csv:2: has more cells"),
        ("a.csv", "variant,metric,value,source,hue\nv,itl_ms,1,s,x\n", "a.csv:2: hue: is an unknown column"),
        ("a.csv", "variant,metric,value,source,unit\nv,itl_ms,1,s,s\n", "a.csv:2: unit: itl_ms is in ms, not s"),
        ("a.csv", "variant,metric,value,source,target\nv,itl_ms,1,s,gfx9\n", "a.csv:2: target: no target is called"),
        ("a.csv", "", "a.csv: has no target"),
        ("a.json", "[1,\n}", "a.json:2: is not JSON"),
        ("a.json", "{}", "a.json: should be a list of objects"),
        (
            "a.json",
            '[{"variant": "v", "metric": "itl_ms", "value": "x", "source": "s"}]',
            "a.json: [0].value: input should",
        ),
        ("a.md", PAGE.replace("TBD", "320 / 10 / 2"), "a.md:8: Target(vLLM-PyTorch): should be (TTFT, ITL) in ms"),
        ("a.yaml", "", "a.yaml: should end in .csv"),
    ],
)
def test_a_wrong_file_is_told_by_its_line_and_column(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(FileError) as error:
        rows_of(tmp_path, name, text)
    assert str(error.value).startswith(f"{tmp_path}/{message}")
