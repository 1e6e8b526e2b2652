"""What raises for one task is that task's failure, and everything else goes on."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from jobs.errors import Unreachable
from jobs.state import Failure, internal_failure

T = TypeVar("T")


def failures_of_each(items: Iterable[T], handle: Callable[[T], None]) -> list[tuple[T, Failure]]:
    """Handle each item by itself; return those for which that raised, with the failure.

    What can't be reached concerns all items: Unreachable is raised.
    """
    failures = []
    for item in items:
        try:
            handle(item)
        except Unreachable:
            raise
        except Exception as error:
            failures.append((item, internal_failure(error)))
    return failures
