"""The inputs of a program that sharktank exported: tokens, and the pages of keys and values that its caller owns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

STRIDE = 16  #: tokens of a page
FEWEST_BLOCKS = 2  #: of a row: torch.export takes a dimension of 1 for a constant
TOKEN = 5  #: every token of a prompt in a timed workload
TYPES = {"int64": "i64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}  #: torch's names, and IREE's

Pages = Mapping[str, Any]


def blocks_for(tokens: int) -> int:
    """Return how many pages a row of so many tokens needs."""
    return max(FEWEST_BLOCKS, -(-tokens // STRIDE))


def most_tokens(positions: int) -> int:
    """Return the most tokens of a row in a model with so many positions: sharktank leaves out the last page."""
    return (-(-positions // STRIDE) - 1) * STRIDE


def pages_of(service: Mapping[str, Any], batch: int, cache_length: int) -> dict[str, Any]:
    """Return the pages that a program needs on each device for its largest batch, from sharktank's `service` config.

    Page 0 belongs to no row.
    """
    cache, blocks = service["paged_kv_cache"], blocks_for(cache_length)
    return {
        "tokens": STRIDE,
        "elements": list(cache["paged_kv_block_size_elements_per_device"]),
        "dtype": cache["kv_cache_dtype"],
        "blocks_of_row": blocks,
        "count": batch * blocks + 1,
    }


def page_table(pages: Pages, batch: int, blocks: int) -> list[list[int]]:
    """Return the first pages of each row, which are fixed."""
    return [[1 + row * pages["blocks_of_row"] + block for block in range(blocks)] for row in range(batch)]


def entry_points(
    prefill_batches: Iterable[int], decode_batches: Iterable[int], prompts: Sequence[int], pages: Pages
) -> Iterator[dict[str, Any]]:
    """Yield the entry points with their inputs.

    One prefill serves prompts of any length; a decode step is at the first position after the longest prompt.
    """
    for batch, tokens in product(sorted(prefill_batches), sorted(prompts)):
        yield {**timed("prefill", batch, tokens, pages), "prompt_tokens": tokens}
    for batch in sorted(decode_batches):
        yield {**timed("decode", batch, max(prompts), pages), "label": f"decode_bs{batch}"}


def timed(kind: str, batch: int, prompt: int, pages: Pages) -> dict[str, Any]:
    """Return an entry point with the inputs of one workload; `label` distinguishes those of one function."""
    inputs = _prefill(batch, prompt, pages) if kind == "prefill" else _decode(batch, prompt, pages)
    caches = [
        _argument(f"cache{device}", (pages["count"], elements), pages["dtype"], 0, device)
        for device, elements in enumerate(pages["elements"])
    ]
    return {
        "name": f"{kind}_bs{batch}",
        "label": f"{kind}_bs{batch}_t{prompt}",
        "kind": kind,
        "batch": batch,
        "arguments": [*inputs, *caches],
    }


def _prefill(batch: int, prompt: int, pages: Pages) -> list[dict[str, Any]]:
    blocks = blocks_for(prompt)
    return [
        _argument("tokens", (batch, blocks * STRIDE), "int64", TOKEN),
        _argument("lengths", (batch,), "int64", prompt),
        _table(batch, blocks, pages),
    ]


def _decode(batch: int, prompt: int, pages: Pages) -> list[dict[str, Any]]:
    return [
        _argument("tokens", (batch, 1), "int64", TOKEN),
        _argument("lengths", (batch,), "int64", prompt + 1),
        _argument("positions", (batch,), "int64", prompt),
        _table(batch, blocks_for(prompt + 1), pages),
    ]


def _table(batch: int, blocks: int, pages: Pages) -> dict[str, Any]:
    table = page_table(pages, batch, blocks)
    return _argument("pages", (batch, blocks), "int64", ",".join(str(page) for row in table for page in row))


def _argument(name: str, shape: Sequence[int], dtype: str, value: object, device: int = 0) -> dict[str, Any]:
    """Return an argument; `input` is its value as a flag of IREE's programs."""
    text = f"{'x'.join(map(str, shape))}x{TYPES.get(dtype, dtype)}={value}"
    return {"name": name, "shape": list(shape), "dtype": dtype, "device": device, "input": text}


def flags(entry: Mapping[str, Any]) -> str:
    """Return the contents of a `--flagfile` of IREE's programs: one flag per line."""
    inputs = [f"--input={argument['input']}" for argument in entry["arguments"]]
    return "\n".join([f"--function={entry['name']}", *inputs, ""])
