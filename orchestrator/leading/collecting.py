"""When Python looks for cycles of garbage: it takes part of every decision where many values live for long."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collected_later() -> Iterator[None]:
    """Look for none meanwhile: for what makes many values at once, and no cycles of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_what_is_there() -> None:
    """Never look at what exists now again: modules, classes and functions are not garbage."""
    gc.collect()
    gc.freeze()
