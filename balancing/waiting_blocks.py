"""Blocks of prompts that were sent and are not known to be in the cache yet.

They count for choices, so that a burst of equal prompts goes to one backend; and they are gone
with their request where that is refused, fails or is given up, having displaced nothing.

A prompt waits under its first block that the index does not have: there another prompt that goes
on alike looks for it, and finds little else.
"""

from collections.abc import Hashable
from itertools import islice
from typing import Final

# Of those that wait under the same block the youngest are compared: choosing stays cheap however
# many prompts begin alike.
COMPARED_MAX: Final = 32


class WaitingBlocks:
    """Prompts by the first block that was new."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Hashable, dict[object, tuple[Hashable, ...]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def put(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """The first `held` of a prompt's blocks are in the index, and not all of them are."""
        group = self._groups.get(blocks[held])
        if group is None:
            self._groups[blocks[held]] = {owner: blocks}
        else:
            group[owner] = blocks

    def remove(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """What was put waits no more."""
        group = self._groups[blocks[held]]
        if len(group) == 1:
            del self._groups[blocks[held]]
        else:
            del group[owner]

    def held(self, blocks: tuple[Hashable, ...], held: int) -> int:
        """How many of these leading blocks wait here, where the index holds `held`, not all."""
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
    """How many leading blocks are the same, more than `known`: each names all before it."""
    same, beyond = known + 1, min(len(blocks), len(others)) + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        if blocks[middle - 1] == others[middle - 1]:
            same = middle
        else:
            beyond = middle
    return same
