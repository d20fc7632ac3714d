"""What a backend's prefix cache probably holds, by our own traffic, and what it soon will.

Blocks are hashes of text, each chained to all blocks before it (`blocks`). So the leading blocks of
a prompt are held together or not at all, and a binary search finds the longest match.
"""

from collections.abc import Hashable
from itertools import islice
from typing import Final

# A block of blocks.BLOCK_BYTES, at the usual 3.2 bytes for a token.
BLOCK_TOKENS: Final = 160
# Until an engine reports its size: the 400,000 tokens of one on a large GPU.
BLOCKS_PRIOR: Final = 400_000 // BLOCK_TOKENS
# The limit, whatever an engine reports: 16 million tokens of a few dozen large GPUs, 17 MiB here.
BLOCKS_MAX: Final = 100_000
# Only the youngest waiting prompts under the same block are compared, so that choosing stays cheap
# however many prompts begin alike.
COMPARED_MAX: Final = 32


class PrefixIndex:
    """The blocks of computed prompts: as many as the engine's cache holds, up to twice that.

    An engine forgets what was not used for longest. Here two generations do the same. Used blocks
    are put into the young one. When it holds as much as the engine, it becomes the old one, and
    the previous old one is forgotten. Each use costs one `set.update`, and only the hash of a block
    is kept. (An index of half to all of the cache loses a third of the hits when conversations fill
    the caches.)

    A block of text with few tokens fills as little of the index as of the engine's cache. A
    megabyte of blanks must not make us forget what the engine still has.
    """

    __slots__ = ("_filled", "_old", "_young", "capacity", "turns")

    def __init__(self, capacity: int = BLOCKS_PRIOR) -> None:
        self.capacity = capacity
        self.turns = 0  # how often the old generation was forgotten
        # Sets of integers. With that type mypyc would box and unbox them at every look.
        self._young: set[Hashable] = set()
        self._old: set[Hashable] = set()
        self._filled = 0.0  # by the young generation, in blocks of BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def held(self, blocks: tuple[Hashable, ...]) -> int:
        """How many of these leading blocks are in the index."""
        return _leading(blocks, self._young, self._old)

    def use(self, blocks: tuple[Hashable, ...], weight: float = 1.0) -> float:
        """Put a prompt's blocks in; each fills `weight` of a block. Returns what they filled."""
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
        """Blocks put in during `turn` fill `less`. Those after the first `kept` do not exist."""
        if turn == self.turns:
            self._filled = max(0.0, self._filled - less)
            if kept < len(blocks):
                self._young.difference_update(blocks[kept:])

    def resize(self, blocks: int) -> None:
        """Set the size of the engine's cache, in blocks."""
        self.capacity = min(max(1, blocks), BLOCKS_MAX)

    def clear(self) -> None:
        """The engine restarted: its cache is empty."""
        self._turn()
        self._old = set()

    def _turn(self) -> None:
        self._old = self._young
        self._young = set()
        self._filled = 0.0
        self.turns += 1


class WaitingBlocks:
    """The blocks of prompts that were sent and are not computed yet.

    They count for the choice, so that a burst of equal prompts goes to one backend. If their
    request is refused, fails or is given up, they go with it and have displaced nothing.

    A prompt waits under its first block that is not in the index. Another prompt with the same
    continuation looks there, and finds few others.
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Hashable, dict[object, tuple[Hashable, ...]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def put(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """Add a prompt. Its first `held` blocks are in the index, but not all of them."""
        self._groups.setdefault(blocks[held], {})[owner] = blocks

    def remove(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """Remove a prompt that was put."""
        group = self._groups[blocks[held]]
        del group[owner]
        if not group:
            del self._groups[blocks[held]]

    def held(self, blocks: tuple[Hashable, ...], held: int) -> int:
        """How many leading blocks the index and one waiting prompt hold. The index holds `held`."""
        group = self._groups.get(blocks[held])
        if group is None:
            return held
        best = held
        for waiting in islice(reversed(group.values()), COMPARED_MAX):
            if best < len(waiting) and waiting[best] == blocks[best]:
                best = _common(blocks, waiting, best)
                if best == len(blocks):
                    break
        return best


_NONE: Final[set[Hashable]] = set()


def _leading(blocks: tuple[Hashable, ...], young: set[Hashable], old: set[Hashable]) -> int:
    """How many of these leading blocks are in either set."""
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


def _common(blocks: tuple[Hashable, ...], others: tuple[Hashable, ...], known: int) -> int:
    """How many leading blocks are equal, more than `known`. Each hash covers all before it."""
    same, beyond = known + 1, min(len(blocks), len(others)) + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        if blocks[middle - 1] == others[middle - 1]:
            same = middle
        else:
            beyond = middle
    return same
