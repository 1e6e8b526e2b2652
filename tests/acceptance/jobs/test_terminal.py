"""A person at a terminal: progress that moves, and a Ctrl-C that asks."""

from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import ONE_EXPORT
from tests.acceptance.terminal import CTRL_C, Terminal

QUESTION = "Cancel job "


def interrupted(haloctl: Haloctl, terminal: Terminal) -> None:
    """Submit, press Ctrl-C while the export runs, wait for the question."""
    terminal.until_shows("running  export")
    terminal.press(CTRL_C)
    terminal.until_shows(QUESTION)


def test_answering_no_leaves_the_job_queued(fresh: Haloctl) -> None:
    with Terminal(fresh, "submit", fresh.job(**ONE_EXPORT), "--wait") as terminal:
        interrupted(fresh, terminal)
        terminal.press("n\n")
        assert terminal.end() == 130
    assert terminal.words.count(QUESTION) == 1
    fresh.until_gone()

    job = fresh.only_job()
    assert job["state"] == "queued"
    assert f"`haloctl wait {job['job']}` goes on with it" in terminal.words


def test_answering_yes_cancels_the_job(fresh: Haloctl) -> None:
    with Terminal(fresh, "submit", fresh.job(**ONE_EXPORT), "--wait") as terminal:
        interrupted(fresh, terminal)
        terminal.press("y\n")
        assert terminal.end() == 130
    assert terminal.words.count(QUESTION) == 1
    fresh.until_gone()
    assert fresh.only_job()["state"] == "cancelled"


def test_pressing_ctrl_c_again_cancels_the_job(fresh: Haloctl) -> None:
    with Terminal(fresh, "submit", fresh.job(**ONE_EXPORT), "--wait") as terminal:
        interrupted(fresh, terminal)
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    fresh.until_gone()
    assert fresh.only_job()["state"] == "cancelled"


def test_a_terminal_gets_colours_and_a_file_does_not(fresh: Haloctl) -> None:
    job = fresh.answer("submit", fresh.job(**ONE_EXPORT)).strip()
    fresh.answer("cancel", job)
    with Terminal(fresh, "show", job) as terminal:
        assert terminal.end() == 0
    assert "\x1b[" in terminal.text
    assert "\x1b[" not in fresh.answer("show", job)


def test_a_row_that_is_too_wide_stands_upright_and_no_colour_is_shown_to_who_wants_none(fresh: Haloctl) -> None:
    plain = fresh.but_with(NO_COLOR="1")
    arguments = ("ttft_ms", "9.6", "--source", f"https://site/{'page' * 40}")
    plain.answer("targets", "set", "llama*", *arguments)
    with Terminal(plain, "targets") as terminal:
        assert terminal.end() == 0
    assert [line.split()[:2] for line in terminal.words.splitlines()[:3]] == [
        ["variant", "llama*"],
        ["metric", "ttft_ms"],
        ["value", "9.6"],
    ]
    assert "\x1b[3" not in terminal.text
