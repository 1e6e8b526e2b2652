"""Masks credentials in texts that are stored or printed: `user:password@host`, with or without a scheme."""

import re
from typing import Any

MASK = "***"

IN_URL = re.compile(r"(?<=://)[^/\s]+@")
#: Without a scheme, as proxies are often given; at the beginning of a word, or of the value of an option.
WITHOUT_SCHEME = re.compile(r"""(?<![^\s=,;'"])[^\s/:@=,;'"]+:(?!//)[^\s/]+@(?=[^\s/@])""")


def has_userinfo(text: str) -> bool:
    """Whether a text holds a user name, with or without a password, in front of a host."""
    return bool(IN_URL.search(text) or WITHOUT_SCHEME.search(text))


def mask_userinfo(text: str) -> str:
    """Return a text without the user names and passwords in front of hosts."""
    return WITHOUT_SCHEME.sub(f"{MASK}@", IN_URL.sub(f"{MASK}@", text))


def masked(value: Any) -> Any:
    """Return a JSON value with each of its texts masked."""
    match value:
        case str():
            return mask_userinfo(value)
        case dict():
            return {name: masked(item) for name, item in value.items()}
        case list() | tuple():
            return [masked(item) for item in value]
    return value
