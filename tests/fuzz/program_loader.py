"""Loading and calling a compiled program with nothing but its config.json and IREE's runtime."""

import json
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import torch

_DEVICES: list[Any] = []  #: kept until the process ends, as IREE 3.13 needs


class LoadedProgram:
    """A program in `outputs` and its module, on CPU devices; its caller chooses the blocks of a paged cache."""

    def __init__(self, outputs: Path, module: Path) -> None:
        self.config: dict[str, Any] = json.loads((outputs / "config.json").read_text())
        devices = [iree.runtime.get_device("local-task", cache=False) for _ in range(self.config["devices"])]
        _DEVICES.extend(devices)
        instance = iree.runtime.VmInstance()
        index = iree.runtime.ParameterIndex()
        for name in self.config["parameter_files"]:
            index.load(str(outputs / name))
        provider = index.create_provider(scope=self.config["parameter_scope"])
        hal = (
            iree.runtime.create_hal_module(instance, devices=devices)
            if len(devices) > 1
            else iree.runtime.create_hal_module(instance, devices[0])
        )
        self._module = iree.runtime.VmModule.copy_buffer(instance, module.read_bytes())
        parameters = iree.runtime.create_io_parameters_module(instance, provider)
        self._context = iree.runtime.VmContext(instance=instance, modules=[hal, parameters, self._module])
        self._device = devices[0]

    def entry(self, kind: str, least: int) -> dict[str, Any]:
        """Return the smallest entry point of a kind with so many prompt tokens, or so much context."""
        size = {"prefill": "prompt_tokens", "decode": "context"}[kind]
        entries = [entry for entry in self.config["entry_points"] if entry["kind"] == kind and entry[size] >= least]
        chosen: dict[str, Any] = min(entries, key=lambda entry: entry[size])
        return chosen

    def call(self, entry: dict[str, Any], arguments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the logits [B, 1, V] of one call; arguments are given by name."""
        function = self._module.lookup_function(entry["name"])
        invoke = iree.runtime.FunctionInvoker(self._context, self._device, function)
        arrays = [
            iree.runtime.asdevicearray(self._device, arguments[argument["name"]].contiguous().numpy())
            for argument in entry["arguments"]
        ]
        results = invoke(*arrays)
        results = results if isinstance(results, tuple | list) else (results,)
        (logits,) = [
            result for result, facts in zip(results, entry["results"], strict=True) if facts["name"] == "logits"
        ]
        return torch.from_numpy(logits.to_host().astype(np.float32))


def run_rows(program: LoadedProgram, tokens: torch.Tensor, lengths: torch.Tensor, bucket: int) -> torch.Tensor:
    """Return the logits [B, steps + 1, V] after each prompt and each token [B, bucket + steps] that follows it.

    Behind a prompt stands garbage, and a paged cache has its blocks anywhere in the pool.
    """
    generator = torch.Generator().manual_seed(len(tokens))
    steps, rows = tokens.shape[1] - bucket, torch.arange(len(tokens))
    prompts = torch.randint(0, program.config["vocab_size"], (len(tokens), bucket), generator=generator)
    for row, length in enumerate(lengths.tolist()):
        prompts[row, :length] = tokens[row, :length]
    table = _table(program, len(tokens), generator)
    logits = [program.call(program.entry("prefill", bucket), {"tokens": prompts, "lengths": lengths, **table})]
    for step in range(steps):
        at = lengths + step
        entry = program.entry("decode", int(at.max()) + 1)
        arguments = {"tokens": tokens[rows, at][:, None], "positions": at}
        if table:
            columns = next(facts["shape"][1] for facts in entry["arguments"] if facts["name"] == "block_table")
            arguments["block_table"] = table["block_table"][:, :columns]
        logits.append(program.call(entry, arguments))
    return torch.cat(logits, dim=1)


def _table(program: LoadedProgram, batch: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return a block table of the widest entry point; block 0 is nobody's."""
    tables = [
        argument
        for entry in program.config["entry_points"]
        for argument in entry["arguments"]
        if argument["name"] == "block_table"
    ]
    if not tables:
        return {}
    widest = max(tables, key=lambda facts: facts["shape"][1])
    columns = widest["shape"][1]
    blocks = torch.randperm(widest["pool_blocks"] - 1, generator=generator)[: batch * columns] + 1
    return {"block_table": blocks.view(batch, columns)}
