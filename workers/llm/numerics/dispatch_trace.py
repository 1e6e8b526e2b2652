"""What a program's dispatches returned, from the text that IREE prints of them, in a few numbers each.

A tensor is kept as a sketch: each element is added, with a sign, to one of SKETCH numbers, and place and sign follow
from its index alone. The distance of two sketches is about that of the tensors, however large these are, and exact
where one element differs (M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", 2002).
"""

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

SKETCH = 64  #: numbers of a sketch: the distance is then right to about a fifth
#: What IREE's compiler is told so that its programs print; a name stands for a function of all ranks and layers.
TRACE_FLAG = "--iree-flow-trace-dispatch-tensors"
HEADER = re.compile(r"=== (?P<executable>\S+?)::(?P<name>\S+) (?P<side>inputs|outputs) ===")
TENSOR = re.compile(r"(?P<type>(?:\d+x)*[a-z]+\d+\w*)=(?P<values>.*)", re.DOTALL)
BRACKETS = str.maketrans("[]", "  ")

#: `type`, `rms`, `sketch`, and what no layout of a tensor changes, `moments`: the mean, and mean and largest magnitude;
#: all but the type are null where a value is not finite.
Sketch = dict[str, Any]


def read_calls(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the calls of dispatches in the order in which their outputs are printed: `dispatch` and `outputs`.

    What they are given is left out: it is returned by others, or a parameter, or a buffer with any content.
    """
    calls: list[dict[str, Any]] = []
    outputs: list[Sketch] | None = None
    for line in lines:
        if header := HEADER.match(line):
            outputs = [] if header["side"] == "outputs" else None
            if outputs is not None:
                calls.append({"dispatch": header["name"], "outputs": outputs})
        elif outputs is not None and (match := TENSOR.fullmatch(line.strip())):
            outputs.append(sketch(match["type"], match["values"]))
    return calls


def sketch(kind: str, text: str) -> Sketch:
    """Return a tensor's sketch from its values as they are printed."""
    return sketch_of(kind, np.fromstring(text.translate(BRACKETS), np.float64, sep=" "))


def sketch_of(kind: str, values: NDArray[np.float64]) -> Sketch:
    """Return the sketch of a tensor of a type, such as 2x128xf32, from all its values."""
    if not len(values) or not np.isfinite(values).all():
        return {"type": kind, "rms": None, "sketch": None, "moments": None}
    magnitudes = np.abs(values)
    moments = (values.mean(), magnitudes.mean(), magnitudes.max())
    return {
        "type": kind,
        "rms": float(np.sqrt(np.square(values).mean())),
        "sketch": [float(part) for part in _parts(values)],
        "moments": [float(moment) for moment in moments],
    }


def _parts(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the signed sums. Fibonacci hashing, whose bits are the same wherever a program runs."""
    hashes = np.arange(1, len(values) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    signs = 1.0 - 2.0 * ((hashes >> np.uint64(12)) & np.uint64(1)).astype(np.float64)
    places = (hashes % np.uint64(SKETCH)).astype(np.int64)
    return np.bincount(places, signs * values, SKETCH).astype(np.float64)


def _read_all(lines: Iterable[str], calls: list[dict[str, Any]]) -> None:
    try:
        calls.extend(read_calls(lines))
    finally:
        deque(lines, maxlen=0)  # whoever prints would wait for ever


@contextmanager
def traced_calls() -> Iterator[list[dict[str, Any]]]:
    """Collect the calls that IREE prints to this process's stderr meanwhile; the list is filled at the end."""
    calls: list[dict[str, Any]] = []
    reading, writing = os.pipe()
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as lines:
        reader = threading.Thread(target=_read_all, args=(lines, calls))
        reader.start()
        try:
            yield calls
        finally:
            os.dup2(kept, 2)  # the last writer of the pipe is gone
            os.close(kept)
            reader.join()
