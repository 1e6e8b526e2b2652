"""A compiled program with a paged cache, called with as little Python as iree.runtime allows.

Inputs are made straight from numpy arrays, and of the results only those are read that are wanted: logits stay on the
device. One thread calls: the cache is the program's own. The interpreter's lock is free during a call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
from numpy.typing import NDArray

from workers.llm.command_line import BadInput
from workers.llm.runtime.iree_session import IreeSession
from workers.llm.serving.batching import CallShape
from workers.llm.serving.paged_program import PagedProgram

_USAGE = int(iree.runtime.BufferUsage.DEFAULT) | int(iree.runtime.BufferUsage.MAPPING)
_DEVICE_LOCAL = int(iree.runtime.MemoryType.DEVICE_LOCAL)
_ELEMENT_TYPES = {
    np.dtype(np.int64): iree.runtime.HalElementType.INT_64,
    np.dtype(np.float32): iree.runtime.HalElementType.FLOAT_32,
}
_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class EntryPointInfo:
    """What the program's config says of an entry point."""

    function: Any
    arguments: tuple[str, ...]  #: names, in order
    table_blocks: int  #: columns of its block table; 0 without one
    results: Mapping[str, tuple[int, np.dtype[Any], bool]]  #: index, dtype and whether it is bfloat16, by name


class DeviceResults:
    """What a call of a compiled program returned."""

    def __init__(self, entry: EntryPointInfo, values: Any) -> None:
        self._entry, self._values = entry, values

    def buffer(self, name: str) -> Any:
        """Return a result as it is on the device."""
        return self._values.get_as_object(self._entry.results[name][0], iree.runtime.HalBufferView)

    def read(self, name: str) -> NDArray[Any]:
        """Return a result on the host; bfloat16 as float32."""
        _, dtype, is_bfloat16 = self._entry.results[name]
        view = self.buffer(name)
        values: NDArray[Any] = view.map().asarray(view.shape, dtype)
        return (values.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else values.copy()


class CompiledProgram(IreeSession, PagedProgram):
    """The entry points of one program by shape."""

    def __init__(self, program: Path, module: Path, devices: list[str]) -> None:
        super().__init__(program, module, devices)
        if "block_tokens" not in self.program:
            raise BadInput("this program's KV cache is not paged, which serving needs: export it with kv_cache: paged")
        self._entries = {shape_of(entry): self._look_up(entry) for entry in self.program["entry_points"]}

    @property
    def shapes(self) -> list[CallShape]:
        """The shapes of all entry points."""
        return list(self._entries)

    @property
    def pool_blocks(self) -> int:
        """Blocks of the cache, the one that is nobody's included."""
        tables = (entry["arguments"][-1].get("pool_blocks") for entry in self.program["entry_points"])
        return int(next(blocks for blocks in tables if blocks))

    def table_blocks(self, shape: CallShape) -> int:
        """Return the columns of an entry point's block table."""
        return self._entries[shape].table_blocks

    def run(self, shape: CallShape, **inputs: Any) -> DeviceResults:
        """Call an entry point with those of the inputs that it takes: numpy arrays, or results of other calls."""
        entry = self._entries[shape]
        arguments = iree.runtime.VmVariantList(len(entry.arguments))
        for name in entry.arguments:
            value = inputs[name]
            arguments.push_ref(self._buffer(value) if isinstance(value, np.ndarray) else value)
        results = iree.runtime.VmVariantList(len(entry.results))
        self._context.invoke(entry.function, arguments, results)
        return DeviceResults(entry, results)

    def _buffer(self, array: NDArray[Any]) -> Any:
        return self._devices[0].allocator.allocate_buffer_copy(
            memory_type=_DEVICE_LOCAL,
            allowed_usage=_USAGE,
            device=self._devices[0],
            buffer=array,
            element_type=_ELEMENT_TYPES[array.dtype],
        )

    def _look_up(self, entry: Mapping[str, Any]) -> EntryPointInfo:
        tables = [argument["shape"][1] for argument in entry["arguments"] if argument["name"] == "block_table"]
        results = {
            result["name"]: (index, _DTYPES[result["dtype"]], result["dtype"] == "bfloat16")
            for index, result in enumerate(entry["results"])
        }
        arguments = tuple(argument["name"] for argument in entry["arguments"])
        return EntryPointInfo(self._function(entry["name"]), arguments, sum(tables), results)


def shape_of(entry: Mapping[str, Any]) -> CallShape:
    """Return the shape of an entry point that a program's config describes."""
    tokens = entry.get("prompt_tokens", 1)
    return CallShape(entry["kind"], entry["batch"], tokens, entry.get("context", 0))
