"""Parses the cells of a tracker's page. Pure."""

import re

#: TTFT and ITL, with or without brackets.
PAIR = re.compile(r"\(?\s*(\d+(?:\.\d+)?)\s*(?:ms)?\s*[,;/]\s*(\d+(?:\.\d+)?)\s*(?:ms)?\s*\)?")
NUMBER = re.compile(r"(?<![A-Za-z\d])\d")


def parse_latencies(text: str) -> dict[str, float]:
    """Parse `(200.2, 9.6)`, TTFT and ITL in ms; empty for text without a number, as `(t1, t2)`. Raises ValueError."""
    pair = PAIR.fullmatch(text.strip())
    if pair:
        return {"ttft_ms": float(pair[1]), "itl_ms": float(pair[2])}
    if NUMBER.search(text):
        raise ValueError(f"should be (TTFT, ITL) in ms, not {text!r}")
    return {}
