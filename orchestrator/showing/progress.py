"""A job's progress on stderr: a live table for a terminal, a line per change elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from db.reports import TaskRow
from jobs.state import ACTIVE, ENDED, FailureKind, TaskState
from orchestrator.output import make_table, note
from orchestrator.showing.rows import remark, took

Show = Callable[[list[TaskRow]], None]
MOST_HELD_UP = 5
SAID = ENDED | {TaskState.RUNNING}  #: the states that are worth a line


@contextmanager
def shown() -> Iterator[Show]:
    """A function to be given a job's tasks whenever they changed."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield _Lines().show
        return
    with Live(console=console, auto_refresh=True, refresh_per_second=4, transient=True) as live:
        yield lambda tasks: live.update(_Board(tasks, console.size.height))


class _Lines:
    """One line for every task that started, ended, waits for another try, or waits while nothing of the job runs."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TaskState, int, str | None]] = {}

    def show(self, tasks: Sequence[TaskRow]) -> None:
        held_up = {task.id for task in held_up_of(tasks)}
        for task in tasks:
            now = (task.state, task.attempts, task.waits_for if task.is_stuck or task.id in held_up else None)
            is_said = task.state in SAID or task.is_stuck or _waits_again(task) or task.id in held_up
            if self._known.get(task.id) != now and is_said:
                if self._has_run_unseen(task):
                    note(line(_as_it_began(task)))
                note(line(task))
            self._known[task.id] = now

    def _has_run_unseen(self, task: TaskRow) -> bool:
        """Whether its latest attempt began and ended between two looks."""
        return task.id in self._known and task.attempts > self._known[task.id][1] and task.state not in ACTIVE


def _as_it_began(task: TaskRow) -> TaskRow:
    return replace(task, state=TaskState.RUNNING, is_stuck=False, started_at=None, warnings=())


def _waits_again(task: TaskRow) -> bool:
    """Whether it failed and is to be tried again, for whatever reason, or was done and is to be done again."""
    if task.failure is None:
        return task.lost is not None
    return task.state is TaskState.QUEUED or task.failure.kind is FailureKind.INPUT_LOST


class _Board:
    """The tasks that run, those that ended last, and how many there are of each state; clocks go on by themselves."""

    def __init__(self, tasks: Sequence[TaskRow], height: int) -> None:
        self._tasks, self._height = tasks, height

    def __rich__(self) -> Group:
        running = [task for task in self._tasks if task.state in ACTIVE] or held_up_of(self._tasks)[:MOST_HELD_UP]
        ended = [task for task in self._tasks if task.state in ENDED]
        ended.sort(key=lambda task: task.ended_at or datetime.min.replace(tzinfo=UTC))
        room = max(self._height - len(running) - 5, 3)
        columns = ("state", "stage", "for", "time", "")
        rows = [_row(task) for task in (*ended[-room:], *running)]
        return Group(make_table(columns, rows, right=("time",)), Text(_counts(self._tasks)))


def held_up_of(tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Queued tasks that wait for something while nothing of their job runs: a person may have to do something."""
    if any(task.state in ACTIVE for task in tasks):
        return []
    return [task for task in tasks if task.state is TaskState.QUEUED and task.waits_for and not task.is_stuck]


def _row(task: TaskRow) -> tuple[str, ...]:
    return (task.state.value, task.stage, task.subject, took(task), remark(task))


def line(task: TaskRow) -> str:
    """A task in one line."""
    state = "waits" if task.is_stuck else task.state.value
    return "  ".join(
        part for part in (f"{state:<9}", f"{task.stage:<9}", task.subject, took(task), remark(task)) if part
    )


def _counts(tasks: Sequence[TaskRow]) -> str:
    stuck = sum(task.is_stuck for task in tasks)
    parts = [f"{sum(task.state is state and not task.is_stuck for task in tasks)} {state.value}" for state in TaskState]
    parts = [part for part in parts if not part.startswith("0 ")]
    return ", ".join([*parts, *([f"{stuck} waiting for what the cluster lacks"] if stuck else [])])
