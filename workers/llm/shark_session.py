"""A program that sharktank exported, compiled and loaded: its caller keeps the pages of keys and values."""

from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import torch

from workers.llm.program import BadInput
from workers.llm.session import Session, entry_point, read_program
from workers.llm.shark_program import STRIDE, blocks_for, page_table

NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}  #: zero has the same bits in all of them


class SharkSession(Session):
    """As a Session; a row's pages are its own for good, so a prefill starts it anew.

    Each device of a pipeline keeps the pages of its own layers.
    """

    def __init__(self, program: Path, module: Path, devices: list[str]) -> None:
        super().__init__(program, module, devices)
        self._pages = self.program["pages"]
        kind = NUMPY.get(str(self._pages["dtype"]))
        if kind is None:
            what = self._pages["dtype"]
            raise BadInput(f"keys and values in {what} are not known here: export them in float32 or float16")
        shapes = [(self._pages["count"], elements) for elements in self._pages["elements"]]
        self._caches = [
            iree.runtime.asdevicearray(device, np.zeros(shape, dtype=kind))
            for device, shape in zip(self._devices, shapes, strict=True)
        ]

    def prefill(self, tokens: torch.Tensor, lengths: torch.Tensor, *table: torch.Tensor) -> torch.Tensor:
        """As Session's; the prompt is filled up to whole pages."""
        batch, size = tokens.shape
        blocks = blocks_for(size)
        filled = torch.nn.functional.pad(tokens, (0, blocks * STRIDE - size))
        name = entry_point(self.program, "prefill", batch, size)
        return self._run(name, filled, lengths, self._table(batch, blocks))

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, *table: torch.Tensor) -> torch.Tensor:
        """As Session's; it reads as many pages as the longest row has."""
        batch = len(tokens)
        name = entry_point(self.program, "decode", batch)
        blocks = blocks_for(int(positions.max()) + 1)
        return self._run(name, tokens, positions + 1, positions, self._table(batch, blocks))

    def _table(self, batch: int, blocks: int) -> torch.Tensor:
        return torch.tensor(page_table(self._pages, batch, blocks))

    def _run(self, name: str, *arguments: torch.Tensor) -> torch.Tensor:
        if name not in self._functions:
            function: Any = self._module.lookup_function(name)
            if function is None:
                raise BadInput(f"the module has no function {name}: it was not compiled from this program's export")
            self._functions[name] = iree.runtime.FunctionInvoker(self._context, self._devices[0], function)
        inputs = [iree.runtime.asdevicearray(self._devices[0], one.contiguous().numpy()) for one in arguments]
        result = self._functions[name](*inputs, *self._caches).to_host()
        return torch.from_numpy(result.astype(np.float32))


def load_session(program: Path, module: Path, devices: list[str]) -> Session:
    """A program on its devices, called as what exported it would have it."""
    kind = SharkSession if read_program(program).get("exporter") == "sharktank" else Session
    return kind(program, module, devices)
