"""The blocks of a paged KV cache: who holds which, and what those that nobody holds still contain."""

from collections.abc import Iterable, Sequence

NOBODYS_BLOCK = 0  #: rows that pad a batch and the end of a bucket write there


class BlockPool:
    """Blocks 1 to `count - 1`, each held by nobody, one sequence, or several that begin alike.

    A block that is given back keeps its content until it is taken anew, the longest unused first.
    """

    def __init__(self, count: int) -> None:
        self.count = count - 1  #: that can be given out
        self._holders = [0] * count
        self._free = dict.fromkeys(range(1, count))  # in the order in which they are taken
        self._block_of: dict[bytes, int] = {}  # by the content's key
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """Number of blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return blocks with any content. Raises ValueError when there are not as many."""
        if count > self.free:
            raise ValueError(f"{count} blocks are wanted, {self.free} are free")
        blocks = [block for block, _ in zip(self._free, range(count), strict=False)]
        for block in blocks:
            self._hold(block)
            self._forget(block)
        return blocks

    def count_known(self, keys: Iterable[bytes]) -> int:
        """Return how many of the first keys are contents of blocks."""
        count = 0
        for key in keys:
            if key not in self._block_of:
                break
            count += 1
        return count

    def share(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks with these contents, which are known, held once more."""
        blocks = [self._block_of[key] for key in keys]
        for block in blocks:
            self._hold(block)
        return blocks

    def name(self, block: int, key: bytes) -> None:
        """Remember the content of a block that its holder has filled, unless another block has the same."""
        if block not in self._key_of and key not in self._block_of:
            self._block_of[key], self._key_of[block] = block, key

    def give_back(self, blocks: Sequence[int]) -> None:
        """End one holder's use of blocks. The last ones are taken first, since few prompts go on so far alike."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None

    def _hold(self, block: int) -> None:
        self._free.pop(block, None)
        self._holders[block] += 1

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]
