"""Tells names of artifacts from names of variants on the command line. Pure."""

import re

DIGEST = re.compile(r"[0-9a-fA-F]{6,64}")


def is_file_name(name: str) -> bool:
    """Whether a name is TASK/NAME or the start of a sha256, else it is a variant's."""
    return "/" in name or DIGEST.fullmatch(name) is not None
