"""A program that sharktank exported, compiled and loaded: its caller keeps the pages of keys and values."""

from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import torch

from workers.llm.program import BadInput
from workers.llm.session import Session, entry_point

NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}  #: zero has the same bits in all of them


class SharkSession(Session):
    """As a Session; a row's pages are its own for good, so a prefill starts it anew."""

    def __init__(self, program: Path, module: Path, devices: list[str]) -> None:
        super().__init__(program, module, devices)
        pages = self.program["pages"]
        kind = NUMPY.get(str(pages["dtype"]))
        if kind is None:
            raise BadInput(f"keys and values in {pages['dtype']} are not known here: export them in float32 or float16")
        shape = (pages["count"], pages["elements"])
        self._cache = iree.runtime.asdevicearray(self._devices[0], np.zeros(shape, dtype=kind))
        self._page_tokens: int = pages["tokens"]
        self._blocks: int = pages["blocks_of_row"]

    def prefill(self, tokens: torch.Tensor, lengths: torch.Tensor, *table: torch.Tensor) -> torch.Tensor:
        """As Session's; the prompt is filled up to whole pages."""
        batch, size = tokens.shape
        blocks = max(2, -(-size // self._page_tokens))
        filled = torch.nn.functional.pad(tokens, (0, blocks * self._page_tokens - size))
        name = entry_point(self.program, "prefill", batch, size)
        return self._run(name, filled, lengths, self._pages(batch, blocks))

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, *table: torch.Tensor) -> torch.Tensor:
        """As Session's."""
        batch = len(tokens)
        name = entry_point(self.program, "decode", batch)
        return self._run(name, tokens, positions + 1, positions, self._pages(batch, self._blocks))

    def _pages(self, batch: int, blocks: int) -> torch.Tensor:
        """The first pages [B, blocks] of each row; page 0 is nobody's."""
        return 1 + torch.arange(batch)[:, None] * self._blocks + torch.arange(blocks)[None]

    def _run(self, name: str, *arguments: torch.Tensor) -> torch.Tensor:
        if name not in self._functions:
            function: Any = self._module.lookup_function(name)
            if function is None:
                raise BadInput(f"the module has no function {name}: it was not compiled from this program's export")
            self._functions[name] = iree.runtime.FunctionInvoker(self._context, self._devices[0], function)
        inputs = [iree.runtime.asdevicearray(self._devices[0], one.contiguous().numpy()) for one in arguments]
        result = self._functions[name](*inputs, self._cache).to_host()
        return torch.from_numpy(result.astype(np.float32))
