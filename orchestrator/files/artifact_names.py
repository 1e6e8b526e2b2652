"""What a name on the command line may mean: a file, or a variant. Pure."""

import re

DIGEST = re.compile(r"[0-9a-fA-F]{6,64}")


def names_file(name: str) -> bool:
    """Whether it is TASK/NAME or the start of a sha256; what else there is are variants."""
    return "/" in name or DIGEST.fullmatch(name) is not None
