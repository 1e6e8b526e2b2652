"""Every command that README.md and docs/ show: those in `bash` blocks run, those in `console` blocks are parsed."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from jobs.job_file.spec import JobSpec
from tests.acceptance.haloctl import ROOT, Haloctl
from tests.acceptance.job_specs import EVERYTHING

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIANT, OTHER_VARIANT = "tiny-llama-FP16-TP1", "tiny-llama-FP16-TP2"
#: Exit codes beside 0 of commands that say something about a job that has ended, and about a machine that is busy.
OTHER_ENDS = {"retry": {2, 5}, "cancel": {2, 5}, "verify": {3}, "nodes": {3}}


class Shown(NamedTuple):
    """One command of a page."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(kind: str) -> list[tuple[Path, int, str]]:
    """Each fenced block of a kind: its page, the line that it begins at, its text."""
    return [
        (page, text[: block.start(2)].count("\n") + 1, block[2])
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for block in BLOCK.finditer(text)
        if block[1] == kind
    ]


def commands(kind: str, prompt: str = "") -> list[Shown]:
    """The commands of haloctl in all blocks of a kind, without their comments."""
    return [
        Shown(page.name, line + number, tuple(shlex.split(text.removeprefix(prompt), comments=True)[1:]))
        for page, line, block in blocks(kind)
        for number, text in enumerate(block.splitlines())
        if text.startswith(f"{prompt}haloctl ")
    ]


RUN = commands("bash")
PARSED = commands("console", "$ ")


def test_pages_show_commands() -> None:
    assert len(RUN) > 40
    assert len(PARSED) > 5


@pytest.mark.parametrize("page", sorted({command.page for command in RUN}))
def test_commands_of_a_page_run(copied: Haloctl, page: str) -> None:
    (copied.folder / "llama.yaml").write_text(yaml.safe_dump(EVERYTHING))
    job = copied.only_job()["job"]
    tasks = {task["stage"]: task["task"] for task in copied.json("show", job)["tasks"] if task["state"] == "succeeded"}
    words = {
        "JOB": job,
        "TASK": tasks["benchmark"],
        "TASK/NAME": f"{tasks['compile']}/model.vmfb",
        "VARIANT": VARIANT,
        "OTHER_VARIANT": OTHER_VARIANT,
        "variant:VARIANT": f"variant:{VARIANT}",
        "variant:OTHER_VARIANT": f"variant:{OTHER_VARIANT}",
    }
    for command in (command for command in RUN if command.page == page):
        done = copied.run(*(words.get(word, word) for word in command.words))
        assert done.code in {0, *OTHER_ENDS.get(command.words[0], ())}, f"{command}: {done.err}"


@pytest.mark.parametrize("command", PARSED, ids=str)
def test_commands_for_other_machines_are_parsed(fresh: Haloctl, command: Shown) -> None:
    fresh.answer(*command.words, "--help")


@pytest.mark.parametrize("shown", blocks("yaml"), ids=lambda shown: f"{shown[0].name}:{shown[1]}")
def test_job_files_are_right(shown: tuple[Path, int, str]) -> None:
    value = yaml.safe_load(shown[2])
    if "model" in value:
        JobSpec.model_validate(value)
