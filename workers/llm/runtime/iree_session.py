"""A compiled program with its parameters, loaded on its devices."""

import json
import mmap
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import torch
from torch import Tensor

from workers.llm.command_line import BadInput
from workers.llm.program_format import FORMAT

#: open devices, kept until the process ends: IREE 3.13 crashes when a device's own worker thread drops the last
#: reference to it, and that thread may still be freeing buffers when a session is gone
_OPENED: list[Any] = []


def read_program(path: Path) -> dict[str, Any]:
    """Read the config.json that export wrote. Raises BadInput when it is missing or of another format."""
    try:
        program: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist: --program takes the config.json that export wrote") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a config.json that export wrote: {error}") from None
    if not isinstance(program, dict) or program.get("format") != FORMAT:
        raise BadInput(f"{path} is not a config.json of format {FORMAT}: export the model again with this version")
    return program


def entry_point(program: dict[str, Any], kind: str, batch: int, prompt_tokens: int | None = None) -> str:
    """Return the name of the entry point of this kind (prefill, decode) and shape. Raises BadInput without one."""
    for entry in program["entry_points"]:
        if (entry["kind"], entry["batch"], entry.get("prompt_tokens")) == (kind, batch, prompt_tokens):
            return str(entry["name"])
    size = f"batch {batch}" + (f" and {prompt_tokens} prompt tokens" if prompt_tokens else "")
    raise _no_entry_point(program, f"{kind} for {size}")


def decode_entry_point(program: dict[str, Any], batch: int, position: int) -> str:
    """Return the name of the decode with the smallest context that holds `position`; of the largest where none does.

    Raises BadInput without any for the batch.
    """
    decodes = [entry for entry in program["entry_points"] if (entry["kind"], entry["batch"]) == ("decode", batch)]
    if not decodes:
        raise _no_entry_point(program, f"decode for batch {batch}")
    holding = (entry for entry in decodes if entry["context"] > position)
    by_context = itemgetter("context")
    return str(min(holding, key=by_context, default=max(decodes, key=by_context))["name"])


def _no_entry_point(program: dict[str, Any], what: str) -> BadInput:
    names = ", ".join(entry["name"] for entry in program["entry_points"])
    return BadInput(f"the program has no {what}, only {names}: export it with that size")


def to_host(array: Any) -> Tensor:
    """Return an array of a device as integers, or as float32 whatever the program's precision."""
    values = array.to_host()
    # a copy; torch does not know numpy's bfloat16
    return torch.from_numpy(values.astype(values.dtype if values.dtype.kind in "iu" else np.float32))


class IreeSession:
    """One program on its devices, with its KV cache. A prefill starts a new batch.

    `devices` are IREE device URIs, one for each logical device of the program: `local-task` may be repeated. The
    parameters lie beside the program, or in the folder `parameters`.
    """

    def __init__(self, program: Path, module: Path, devices: list[str], parameters: Path | None = None) -> None:
        self.program = read_program(program)
        if len(devices) != self.program["devices"]:
            wanted = self.program["devices"]
            raise BadInput(f"the program runs on {wanted} devices, {len(devices)} were given: repeat --device for each")
        self._devices = [_device(uri) for uri in devices]
        self._instance = iree.runtime.VmInstance()
        self._module = _module(self._instance, module)
        modules = [self._hal(), *self._parameters(parameters or program.parent), self._module]
        self._context = iree.runtime.VmContext(instance=self._instance, modules=modules)
        self._functions: dict[str, Any] = {}
        self._described = {entry["name"]: entry for entry in self.program["entry_points"]}
        self._folder = program.parent
        self._tables: dict[str, Any] = {}

    def prefill(self, tokens: Tensor, lengths: Tensor, table: Tensor | None = None) -> Tensor:
        """Return logits, float32 [B, 1, V], after the last of each row's `lengths` [B] tokens [B, T]; T is a bucket."""
        return to_host(self.call(self.prefill_name(tokens), tokens, lengths, table=table)["logits"])

    def decode(self, tokens: Tensor, positions: Tensor, table: Tensor | None = None) -> Tensor:
        """Return logits, float32 [B, 1, V], after one more token [B, 1] at `positions` [B], which count from 0."""
        return to_host(self.call(self.decode_name(positions), tokens, positions, table=table)["logits"])

    def prefill_greedily(self, tokens: Tensor, lengths: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the next tokens [B, 1] after a prefill; the logits stay on the device."""
        return to_host(self.call(self.prefill_name(tokens), tokens, lengths, table=table)["next_tokens"])[:, None]

    def decode_greedily(self, tokens: Tensor, positions: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the next tokens [B, 1] after a decode; the logits stay on the device."""
        return to_host(self.call(self.decode_name(positions), tokens, positions, table=table)["next_tokens"])[:, None]

    def outputs(self, entry: dict[str, Any], *arguments: Tensor) -> dict[str, Tensor]:
        """Return all results of an entry point of the program, on the host."""
        return {name: to_host(result) for name, result in self.call(entry["name"], *arguments).items()}

    def call(self, name: str, *arguments: Any, table: Tensor | None = None) -> dict[str, Any]:
        """Call an entry point and return its results by name, as arrays on the device.

        `arguments` are all but the block table, on the host or as an earlier call returned them. Where the cache is
        paged, a call without `table` uses the one that export wrote for the entry point; of a longer table, it takes
        the first columns.
        """
        entry, given = self._described[name], iter(arguments)
        inputs = [
            self._block_table(argument, table)
            if argument["name"] == "block_table"
            else self._to_device(next(given), argument["dtype"])
            for argument in entry["arguments"]
        ]
        results = self._invoke(name, inputs)
        return dict(zip((result["name"] for result in entry["results"]), results, strict=True))

    def prefill_name(self, tokens: torch.Tensor) -> str:
        """Return the name of the entry point that prefills such tokens [B, T]."""
        return entry_point(self.program, "prefill", *tokens.shape)

    def decode_name(self, positions: torch.Tensor) -> str:
        """Return the name of the entry point that decodes a token at such positions [B]."""
        return decode_entry_point(self.program, len(positions), int(positions.max()))

    def _to_device(self, value: Any, dtype: str = "int64") -> Any:
        if isinstance(value, iree.runtime.DeviceArray):
            return value
        return iree.runtime.asdevicearray(self._devices[0], np.ascontiguousarray(value.numpy().astype(dtype)))

    def _invoke(self, name: str, inputs: list[Any]) -> tuple[Any, ...]:
        """Call a function with arrays on devices."""
        if name not in self._functions:
            function = self._function(name)
            self._functions[name] = iree.runtime.FunctionInvoker(self._context, self._devices[0], function)
        results = self._functions[name](*inputs)
        return results if isinstance(results, tuple) else (results,)

    def _function(self, name: str) -> Any:
        """Return a function of the module. Raises BadInput where it has none of this name."""
        function = self._module.lookup_function(name)
        if function is None:
            raise BadInput(f"the module has no function {name}: it was not compiled from this program's export")
        return function

    def _block_table(self, argument: dict[str, Any], table: Tensor | None) -> Any:
        """Return a block table on the device; that of export is read once."""
        if table is not None:
            return self._to_device(table[:, : argument["shape"][1]])
        name = argument["file"]
        if name not in self._tables:
            path = self._folder / name
            try:
                contents = np.load(path)
            except (OSError, ValueError) as error:
                raise BadInput(f"the block table {path} cannot be read, export the model again: {error}") from None
            self._tables[name] = iree.runtime.asdevicearray(self._devices[0], contents)
        return self._tables[name]

    def _hal(self) -> Any:
        first, *others = self._devices
        if others:
            return iree.runtime.create_hal_module(self._instance, devices=self._devices)
        return iree.runtime.create_hal_module(self._instance, first)

    def _parameters(self, folder: Path) -> list[Any]:
        index = iree.runtime.ParameterIndex()
        for name in self.program["parameter_files"]:
            _load(index, folder / name)
        provider = index.create_provider(scope=self.program["parameter_scope"])
        return [iree.runtime.create_io_parameters_module(self._instance, provider)]


def set_runtime_flags(flags: Sequence[str]) -> None:
    """Set flags of the runtime, as its tools take them, before devices are opened. Raises BadInput."""
    try:
        iree.runtime.flags.parse_flags(*flags)
    except ValueError as error:
        raise BadInput(
            f"this release of IREE's runtime refuses a flag: {str(error).rpartition(';')[2].strip()}"
        ) from None


def _load(index: Any, path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"the parameter file {path} does not exist: export the model again")
    try:
        index.load(str(path))
    except (IndexError, ValueError, RuntimeError) as error:
        raise BadInput(f"the parameter file {path} is corrupted, export the model again: {error}") from None


def _module(instance: Any, path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"{path} does not exist: --module takes the vmfb that iree-compile made")
    try:
        # not VmModule.mmap: in IREE 3.13 that opens the file to be written too, which a file of the store is not
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return iree.runtime.VmModule.wrap_buffer(instance, content, close_buffer=True)
    except ValueError as error:
        raise BadInput(f"{path} is not a module that this IREE can load: {str(error).splitlines()[0]}") from None


def _device(uri: str) -> Any:
    try:
        # from the cache, repeated local-task devices would be one and the same
        _OPENED.append(iree.runtime.get_device(uri, cache=False))
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"the device {uri} cannot be opened: {str(error).splitlines()[0]}") from None
    return _OPENED[-1]
