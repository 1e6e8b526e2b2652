"""Hashes that are the same in every process and on every machine."""

import hashlib
from array import array
from collections.abc import Sequence

SEED_BITS = 31  #: of a seed that a program takes: its arithmetic is in 64 bits without overflow


def seed_of_position(seed: int, position: int) -> int:
    """Return the seed, below 2^31, for the token at a position of a sequence."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - SEED_BITS)


def add_block_keys(keys: list[bytes], tokens: Sequence[int], block_tokens: int) -> None:
    """Append the keys of further whole blocks: two blocks have the same one if all tokens up to their ends agree."""
    for end in range((len(keys) + 1) * block_tokens, len(tokens) + 1, block_tokens):
        block = array("q", tokens[end - block_tokens : end]).tobytes()
        keys.append(hashlib.blake2b((keys[-1] if keys else b"") + block, digest_size=16).digest())
