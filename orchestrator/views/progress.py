"""A job's progress on stderr: a live table on a terminal, a line per change elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Group
from rich.live import Live
from rich.text import Text

from db.reads.reports import TaskRow
from jobs.state import ACTIVE, ENDED, FailureKind, TaskState
from orchestrator.output import message_console, print_message
from orchestrator.tables import TextTable, to_rich_table
from orchestrator.views.rows import format_elapsed, format_remark, shown_state

ShowTasks = Callable[[list[TaskRow]], None]
MAX_HELD_UP = 5
MIN_ENDED = 3
REPORTED = ENDED | {TaskState.RUNNING}  #: states that get a line


@contextmanager
def live_progress() -> Iterator[ShowTasks]:
    """Yield a function to call with a job's tasks whenever they have changed."""
    console = message_console()
    if not console.is_terminal:
        yield _LineProgress().show
        return
    with Live(console=console, auto_refresh=True, refresh_per_second=4, transient=True) as live:
        yield lambda tasks: live.update(_LiveTable(tasks, *console.size))


class _LineProgress:
    """Prints a line when a task starts, ends, is retried or unschedulable, or when nothing of the job can run."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TaskState, int, str | None]] = {}

    def show(self, tasks: Sequence[TaskRow]) -> None:
        held_up = {task.id for task in find_held_up_tasks(tasks)}
        for task in tasks:
            is_waiting = task.is_unschedulable or task.id in held_up
            status = (task.state, task.attempts, task.waits_for if is_waiting else None)
            is_reported = task.state in REPORTED or is_waiting or _is_retried(task)
            if self._known.get(task.id) != status and is_reported:
                if self._ran_unseen(task):
                    running = replace(
                        task, state=TaskState.RUNNING, is_unschedulable=False, started_at=None, warnings=()
                    )
                    print_message(format_task_line(running))
                print_message(format_task_line(task))
            self._known[task.id] = status

    def _ran_unseen(self, task: TaskRow) -> bool:
        """Return whether the latest attempt started and ended between two calls."""
        return task.id in self._known and task.attempts > self._known[task.id][1] and task.state not in ACTIVE


def _is_retried(task: TaskRow) -> bool:
    """Return whether a task runs again after a failure, or because its outputs were lost."""
    if task.failure is None:
        return task.lost_artifacts is not None
    return task.state is TaskState.QUEUED or task.failure.kind is FailureKind.INPUT_LOST


class _LiveTable:
    """The running tasks, the latest ended ones and the counts of all states; rich redraws it, so that times go on."""

    def __init__(self, tasks: Sequence[TaskRow], width: int, height: int) -> None:
        self._tasks, self._width, self._height = tasks, width, height

    def __rich__(self) -> Group:
        running = [task for task in self._tasks if task.state in ACTIVE]
        running = running or find_held_up_tasks(self._tasks)[:MAX_HELD_UP]
        ended = [task for task in self._tasks if task.state in ENDED]
        ended.sort(key=lambda task: task.ended_at or datetime.min.replace(tzinfo=UTC))
        ended_count = max(self._height - len(running) - 5, MIN_ENDED)
        rows = [
            (task.state.value, task.stage, task.subject, format_elapsed(task), format_remark(task))
            for task in (*ended[-ended_count:], *running)
        ]
        table = TextTable(("state", "stage", "for", "time", ""), rows, right=("time",))
        return Group(to_rich_table(table, self._width), Text(_format_counts(self._tasks)))


def find_held_up_tasks(tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Return the tasks that wait for something while nothing of their job runs, so that a person may have to act."""
    if any(task.state in ACTIVE for task in tasks):
        return []
    return [task for task in tasks if task.state is TaskState.QUEUED and task.waits_for and not task.is_unschedulable]


def format_task_line(task: TaskRow) -> str:
    """Return a task in one line."""
    parts = (f"{shown_state(task):<9}", f"{task.stage:<9}", task.subject, format_elapsed(task), format_remark(task))
    return "  ".join(filter(None, parts))


def _format_counts(tasks: Sequence[TaskRow]) -> str:
    unschedulable = sum(task.is_unschedulable for task in tasks)
    counts = Counter(task.state for task in tasks if not task.is_unschedulable)
    named_counts = [*((counts[state], state.value) for state in TaskState), (unschedulable, "unschedulable")]
    return ", ".join(f"{count} {name}" for count, name in named_counts if count)
