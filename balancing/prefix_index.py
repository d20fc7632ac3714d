"""What one backend's prefix cache holds, as far as our own traffic tells: its shadow.

Blocks are hashes of text, each chained to all before it (`prompt_blocks`), so a prompt's leading
blocks are held together or not at all, and the longest match is found by halving.

An engine forgets what was used longest ago. Here two generations do it: what is used is put into
the young one, and when that holds as much as the engine it becomes the old one and the old one is
forgotten. So as much as the engine holds is remembered, and up to twice that; each use costs one
`set.update`, and nothing is kept per block but its hash. (Half of it to all of it, the other way to
cut, loses a third of the hits of conversations that fill the caches: bench/RESULTS.md.)

A block of text that is few tokens fills as little of it as of the engine's: a megabyte of blanks
must not make us forget what the engine still has.
"""

from collections.abc import Hashable
from typing import Final

# A block of prompt_blocks.BLOCK_BYTES at the usual 3.2 bytes a token.
BLOCK_TOKENS: Final = 160
# Until an engine tells its size: the 400,000 tokens of one on a large GPU.
BLOCKS_PRIOR: Final = 400_000 // BLOCK_TOKENS
# Whatever an engine says: the 16 million tokens of a few dozen large GPUs, 17 MiB here.
BLOCKS_MAX: Final = 100_000


class PrefixIndex:
    """As many blocks as the engine's cache has, `capacity`, to twice as many."""

    __slots__ = ("_filled", "_old", "_young", "capacity", "turns")

    def __init__(self, capacity: int = BLOCKS_PRIOR) -> None:
        self.capacity = capacity
        self.turns = 0  # how often it forgot its older half
        # Of integers; told to the compiler, it would box and unbox them at every look.
        self._young: set[Hashable] = set()
        self._old: set[Hashable] = set()
        self._filled = 0.0  # by the young ones, in blocks of BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def held(self, blocks: tuple[Hashable, ...]) -> int:
        """How many of these leading blocks are here."""
        return _leading(blocks, self._young, self._old)

    def use(self, blocks: tuple[Hashable, ...], weight: float = 1.0) -> float:
        """A prompt of these blocks is there, each so much of one. Returns what it filled."""
        blocks = blocks[: int(self.capacity / weight)]
        room = (self.capacity - self._filled) / weight
        if len(blocks) > room and len(blocks) - _leading(blocks, self._young, _NONE) > room:
            self._turn()
        before = len(self._young)
        self._young.update(blocks)
        filled = (len(self._young) - before) * weight
        self._filled += filled
        return filled

    def correct(self, blocks: tuple[Hashable, ...], kept: int, less: float, turn: int) -> None:
        """Blocks used in that turn are `less` than was thought, and those past `kept` are none."""
        if turn == self.turns:
            self._filled = max(0.0, self._filled - less)
            if kept < len(blocks):
                self._young.difference_update(blocks[kept:])

    def resize(self, blocks: int) -> None:
        """The engine's cache has that many."""
        self.capacity = min(max(1, blocks), BLOCKS_MAX)

    def clear(self) -> None:
        """The engine started anew: it holds nothing."""
        self._turn()
        self._old = set()

    def _turn(self) -> None:
        self._old = self._young
        self._young = set()
        self._filled = 0.0
        self.turns += 1


_NONE: Final[set[Hashable]] = set()


def _leading(blocks: tuple[Hashable, ...], young: set[Hashable], old: set[Hashable]) -> int:
    """How many of these leading blocks are in either."""
    if not blocks or not (blocks[0] in young or blocks[0] in old):
        return 0
    held, beyond = 1, len(blocks) + 1
    while beyond - held > 1:
        middle = (held + beyond) // 2
        if blocks[middle - 1] in young or blocks[middle - 1] in old:
            held = middle
        else:
            beyond = middle
    return held
