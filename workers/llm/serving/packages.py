"""The packages of the extra `serve`, which a toolchain may lack."""

from collections.abc import Iterator
from contextlib import contextmanager

from workers.llm.command_line import BadInput


@contextmanager
def packages_for_serving() -> Iterator[None]:
    """A context that imports what serves. Raises BadInput with what to install where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as problem:
        raise BadInput(f"serving needs the package {problem.name}: pip install 'haloctl[serve]'") from None
