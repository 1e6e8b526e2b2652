"""Digests: how they look, and those of JSON values."""

import hashlib
import json
import re

SHA256 = re.compile(r"[0-9a-f]{64}")


def digest_of(value: object) -> str:
    """Return the sha256 of a JSON value, which does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
