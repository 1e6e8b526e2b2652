"""What commands that ask and record do, in this process: targets, import, schedule, db export and import."""

from pathlib import Path

import pytest

from db.connection.engine import open_database
from db.schema.actors import current_actor
from db.store import Store
from tests.integration.commands.in_process import Command, Said, haloctl, rows
from tests.stored_jobs import submit

__all__ = ["haloctl"]

PAGE = """
|Item | Generate MLIR | IREE numeric |
|---|---|---|
| llama3.1-8B-FP16 | PASS [mlir](https://site/8b.mlir) | FAIL [issue](https://site/1) |

|Item | 10/25/24 | 11/1/24 | Target(vLLM-PyTorch)|
|---|---|---|---|
| llama3.1-8B-FP16 | (320, 9.9) | (310, 9.7) | (300, 9.1) |
"""
WORKLOAD = ("--target", "mi300x", "--batch", "4", "--prompt-tokens", "2048")


def test_a_trackers_page_is_its_matrix_and_its_benchmark_table_again(haloctl: Command, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    done = haloctl("import", "tracker", "page.md", "--date", "2024-10-25", *WORKLOAD)
    assert (done.code, len(done.out.split())) == (0, 2)
    assert "4 cells imported" in done.err
    assert haloctl("targets", "import", "page.md", *WORKLOAD).code == 0
    shown = haloctl("results", "--pivot", "date").out
    for text in ("llama3.1-8B-FP16-TP1", "(320, 9.9) *", "(310, 9.7) *", "(300, 9.1)", "* imported from page.md"):
        assert text in shown
    matrix = haloctl("matrix").out
    assert "PASS *" in matrix
    assert "FAIL wrong_numbers *" in matrix
    assert "* imported from page.md" in matrix
    listed = haloctl("list")
    assert listed.out.count("imported from page.md") == 2
    (job,) = (row["job"] for row in rows(haloctl, "list") if row["state"] == "failed")
    assert "https://site/8b.mlir" in haloctl("show", f"{job}-01").out
    for command in ("retry", "verify", "reproduce"):
        refused = haloctl(command, job if command == "retry" else f"{job}-01")
        assert (refused.code, "was imported" in refused.err) == (5, True)
    assert "was imported" in haloctl("why", f"{job}-01").out
    assert "no log" in haloctl("logs", f"{job}-01").err
    again = haloctl("import", "tracker", "page.md", "--date", "2024-10-25", *WORKLOAD)
    assert (again.code, again.out) == (0, "")
    assert f"imported before, as job {job}" in again.err
    assert haloctl("import", "remove", job).code == 0
    assert len(rows(haloctl, "list")) == 1


def test_targets_are_recorded_listed_and_removed(haloctl: Command) -> None:
    assert haloctl("targets", "set", "llama*-FP8*", "itl_ms", "9.6", "--source", "CI", "--target", "mi300x").code == 0
    assert haloctl("targets", "set", "llama*-FP8*", "itl_ms", "9.5", "--source", "CI", "--target", "mi300x").code == 0
    (row,) = rows(haloctl, "targets")
    assert (row["variant"], row["value"], row["unit"], row["source"]) == ("llama*-FP8*", 9.5, "ms", "CI")
    assert [target["value"] for target in rows(haloctl, "targets", "list", "--all")] == [9.6, 9.5]
    assert haloctl("targets", "--csv").out.startswith("variant,target,metric,value")
    assert haloctl("targets", "remove", "llama*-FP8*", "itl_ms").code == 4
    assert haloctl("targets", "remove", "llama*-FP8*", "itl_ms", "--target", "mi300x").code == 0
    assert rows(haloctl, "targets") == []


def test_a_database_is_moved_in_a_file(haloctl: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    haloctl("targets", "set", "v", "itl_ms", "9.6", "--source", "CI")
    assert haloctl("db", "export", "all.gz").code == 0
    assert haloctl("db", "export", "all.gz").code == 2
    assert (haloctl("db", "import", "all.gz").code, list(tmp_path.glob("*.part"))) == (5, [])
    assert haloctl("db", "export", "all.jsonl").code == 0
    assert "sqlite" not in (tmp_path / "all.jsonl").read_text()
    monkeypatch.setenv("HALOCTL_DATA", str(tmp_path / "other"))
    done = haloctl("db", "import", "all.gz")
    assert (done.code, done.out.split()) == (0, ["changes", "1", "targets", "1"])
    assert [row["value"] for row in rows(haloctl, "targets")] == [9.6]


def test_a_job_shows_who_cancelled_and_retried_it_whatever_the_environment_says(
    haloctl: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LOGNAME", "USER"):
        monkeypatch.setenv(name, "mallory")
    haloctl("list")  # makes the database
    with open_database(f"sqlite:///{tmp_path / 'data' / 'haloctl.db'}", create=False) as database:
        job = submit(Store(database))
    assert haloctl("cancel", job).code == 0
    assert haloctl("retry", job).code == 0
    me = current_actor()
    shown = haloctl("show", job).out
    assert f"cancelled by {me} at " in shown
    assert f"retried by {me} at " in shown
    assert "mallory" not in shown
    assert f"cancelled by {me} at " in haloctl("show", f"{job}-01").out
    (asked,) = rows(haloctl, "query", f"SELECT DISTINCT actor FROM events WHERE job = '{job}'")
    assert asked == {"actor": me}


def test_a_trend_until_a_day_has_that_day(haloctl: Command, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    haloctl("import", "tracker", "page.md", "--date", "2024-10-25", *WORKLOAD)
    for day, medians in (("2024-10-24", []), ("2024-10-25", [9.9]), ("2024-11-01", [9.9, 9.7])):
        series = rows(haloctl, "trend", "itl_ms", "--until", day)
        assert [run["median"] for row in series for run in row["runs"]] == medians


@pytest.mark.parametrize("group", ["schedule", "targets"])
def test_a_group_without_a_command_lists(haloctl: Command, group: str) -> None:
    assert haloctl(group, "--json") == haloctl(group, "list", "--json") == Said(0, "[]\n", "")


def test_an_empty_answer_says_whether_filters_or_the_database_are_the_reason(haloctl: Command, tmp_path: Path) -> None:
    assert haloctl("results").err.startswith("no measurements yet: run `haloctl submit demo --wait`")
    assert haloctl("matrix").err.startswith("no variants yet: run `haloctl submit demo --wait`")
    (tmp_path / "page.md").write_text(PAGE)
    haloctl("import", "tracker", "page.md", "--date", "2024-10-25", *WORKLOAD)
    for command in (("matrix",), ("results",), ("results", "--pivot", "date"), ("trend", "itl_ms")):
        done = haloctl(*command, "--variant", "none")
        assert (done.code, "match: run it without filters" in done.err) == (0, True)


@pytest.mark.parametrize("form", [("matrix", "--svg"), ("matrix", "--parquet"), ("report", "--output")])
def test_a_file_that_cannot_be_written_is_told_with_the_remedy(haloctl: Command, form: tuple[str, str]) -> None:
    done = haloctl(*form, f"none/x{'.md' if form[0] == 'report' else form[1].replace('--', '.')}")
    assert done.code == 6
    assert "No such file or directory; name another file" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("targets", "set", "v", "speed", "1", "--source", "x"), "METRIC: no metric is called 'speed'"),
        (("targets", "set", "v", "itl_ms", "inf", "--source", "x"), "VALUE: input should be a finite number"),
        (("targets", "set", "v", "itl_ms", "1", "--source", " "), "--source: should not be empty"),
        (("targets", "set", "v", "itl_ms", "1"), "Missing option '--source'"),
        (("targets", "import", "none.csv"), "none.csv: can't be read"),
        (("import", "vllm", "x.json", "--variant", "llama", "--target", "mi300x"), "--variant: 'llama' should be"),
        (("import", "iree", "x.json", "--variant", "m-FP16", "--target", "gpu"), "--target: unknown target 'gpu'"),
        (("import", "iree", "x.json", "--variant", "m-FP16", "--target", "cpu"), "x.json: can't be read"),
        (("import", "tracker", "x.md", "--target", "cpu", "--date", "soon"), "--date: 'soon' is neither a date"),
        (("import", "tracker", "late.md", "--target", "cpu"), "late.md:4: 2999-01-01"),
        (("trend", "itl_ms", "--until", "soon"), "--until: 'soon' is neither a date"),
        (("schedule", "add", "x.yaml", "--cron", "0 2 * *"), "--cron: should be minute, hour, day"),
        (("schedule", "add", "x.yaml", "--cron", "0 2 * * *", "--timezone", "Mars"), "--timezone: unknown time zone"),
        (("schedule", "add", "x.yaml", "--cron", "0 2 * * *", "--name", "a b"), "--name: should consist of letters"),
        (("schedule", "add", "x.yaml", "--cron", "0 2 * * *", "--if-missed", "cry"), "--if-missed: should be run or"),
        (("schedule", "add", "x.yaml", "--cron", "0 2 * * *"), "no job file or recipe is called 'x.yaml'"),
        (("db", "import", "none.gz"), "none.gz: can't be read"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_message(
    haloctl: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "late.md").write_text("\n|Item|1/1/2999|\n|-|-|\n|m-FP16|(1, 2)|\n")
    done = haloctl(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
