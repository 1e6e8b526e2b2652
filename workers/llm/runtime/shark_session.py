"""A compiled program that sharktank exported; its caller owns the pages of keys and values."""

from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import torch
from torch import Tensor

from workers.llm.command_line import BadInput
from workers.llm.runtime.iree_session import IreeSession, entry_point, read_program, to_host
from workers.llm.shark.shark_program import STRIDE, blocks_for, page_table

NUMPY = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}  #: of the initial zeros, which have the same bits in all of them


class SharkSession(IreeSession):
    """A session that owns the program's pages; every row has fixed pages of its own, which a prefill overwrites.

    Each device of a pipeline holds the pages of its own layers.
    """

    def __init__(self, program: Path, module: Path, devices: list[str]) -> None:
        super().__init__(program, module, devices)
        self._pages = self.program["pages"]
        numpy_type = NUMPY.get(str(self._pages["dtype"]))
        if numpy_type is None:
            dtype = self._pages["dtype"]
            raise BadInput(f"keys and values in {dtype} are not supported: export them in float32 or float16")
        shapes = [(self._pages["count"], elements) for elements in self._pages["elements"]]
        self._caches = [
            iree.runtime.asdevicearray(device, np.zeros(shape, dtype=numpy_type))
            for device, shape in zip(self._devices, shapes, strict=True)
        ]

    def prefill(self, tokens: Tensor, lengths: Tensor, table: Tensor | None = None) -> Tensor:
        """Return logits as `IreeSession.prefill` does; the prompt is padded to whole pages."""
        batch, size = tokens.shape
        blocks = blocks_for(size)
        padded = torch.nn.functional.pad(tokens, (0, blocks * STRIDE - size))
        name = entry_point(self.program, "prefill", batch, size)
        return self._run(name, padded, lengths, self._table(batch, blocks))

    def decode(self, tokens: Tensor, positions: Tensor, table: Tensor | None = None) -> Tensor:
        """Return logits as `IreeSession.decode` does; it reads as many pages as the longest row has."""
        batch = len(tokens)
        name = entry_point(self.program, "decode", batch)
        blocks = blocks_for(int(positions.max()) + 1)
        return self._run(name, tokens, positions + 1, positions, self._table(batch, blocks))

    def outputs(self, entry: dict[str, Any], *arguments: Tensor) -> dict[str, Tensor]:
        """Return the logits of an entry point: one function serves prompts of several lengths."""
        return {"logits": (self.prefill if entry["kind"] == "prefill" else self.decode)(*arguments)}

    def prefill_greedily(self, tokens: Tensor, lengths: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the next tokens [B, 1], chosen on the host: sharktank's programs return logits alone."""
        return self.prefill(tokens, lengths).argmax(-1)

    def decode_greedily(self, tokens: Tensor, positions: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the next tokens [B, 1], chosen on the host."""
        return self.decode(tokens, positions).argmax(-1)

    def _table(self, batch: int, blocks: int) -> Tensor:
        return torch.tensor(page_table(self._pages, batch, blocks))

    def _run(self, name: str, *arguments: Tensor) -> Tensor:
        (logits,) = self._invoke(name, [*map(self._to_device, arguments), *self._caches])
        return to_host(logits)


def load_session(program: Path, module: Path, devices: list[str]) -> IreeSession:
    """Load a program on its devices, with the session class of its exporter."""
    session_class = SharkSession if read_program(program).get("exporter") == "sharktank" else IreeSession
    return session_class(program, module, devices)
