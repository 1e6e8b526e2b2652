"""What the engine asks of a program with a paged KV cache."""

from abc import abstractmethod
from typing import Any, Protocol

from numpy.typing import NDArray

from workers.llm.serving.batching import CallShape


class Results(Protocol):
    """What a call returned, on the device until it is read."""

    @abstractmethod
    def buffer(self, name: str) -> Any:
        """Return a result as it is on the device, for another call."""

    @abstractmethod
    def read(self, name: str) -> NDArray[Any]:
        """Return a result on the host; bfloat16 as float32."""


class PagedProgram(Protocol):
    """A program whose sequences hold blocks of one cache."""

    program: dict[str, Any]  #: the config.json of export

    @property
    @abstractmethod
    def shapes(self) -> list[CallShape]:
        """The shapes of all entry points."""

    @property
    @abstractmethod
    def pool_blocks(self) -> int:
        """Blocks of the cache, the one that is nobody's included."""

    @abstractmethod
    def table_blocks(self, shape: CallShape) -> int:
        """Return the columns of an entry point's block table."""

    @abstractmethod
    def run(self, shape: CallShape, **inputs: Any) -> Results:
        """Call an entry point with those of the inputs that it takes: numpy arrays, or results of other calls."""
