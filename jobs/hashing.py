"""Digests of plain values."""

import hashlib
import json


def digest_of(value: object) -> str:
    """The sha256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
