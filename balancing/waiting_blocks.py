"""Blocks of prompts that were sent and are not known to be in the cache yet.

They count for the choice, so that a burst of equal prompts goes to one backend. If their request is
refused, fails or is given up, they go with it and have displaced nothing.

A prompt waits under its first block that is not in the index. Another prompt with the same
continuation looks there, and finds few others.
"""

from collections.abc import Hashable
from itertools import islice
from typing import Final

# Only the youngest prompts under the same block are compared, so that choosing stays cheap however
# many prompts begin alike.
COMPARED_MAX: Final = 32


class WaitingBlocks:
    """Waiting prompts by their first new block."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Hashable, dict[object, tuple[Hashable, ...]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def put(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """Add a prompt. Its first `held` blocks are in the index, but not all of them."""
        group = self._groups.get(blocks[held])
        if group is None:
            self._groups[blocks[held]] = {owner: blocks}
        else:
            group[owner] = blocks

    def remove(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """Remove a prompt that was put."""
        group = self._groups[blocks[held]]
        if len(group) == 1:
            del self._groups[blocks[held]]
        else:
            del group[owner]

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
