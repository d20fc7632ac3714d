"""The simulated KV cache: blocks in use, blocks that still hold a prefix, and which go first.

As in vLLM, a full block is known by the hash of all tokens up to its end, blocks in use are
shared between sequences with the same beginning, and a known block that nobody uses keeps its
content until its place is needed. Free blocks that nobody can share are taken first; of the others
the one free for longest, and of one sequence the last block was freed first. (vLLM 0.32,
`BlockPool.free_blocks`.)
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class KvCache:
    """`capacity_blocks` blocks; a hash stands for a block's tokens and all before them."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self._users: dict[Hashable, int] = {}  # of known blocks in use
        self._unknown = 0  # blocks in use whose content nobody can share
        self._blank = capacity_blocks  # free, with nothing that anybody could share
        self._freed: OrderedDict[Hashable, None] = OrderedDict()  # known, oldest first

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self._blank + len(self._freed)

    @property
    def usage(self) -> float:
        """Share in use, 0 to 1."""
        return 1.0 - self.free / self.capacity_blocks

    def cached(self, hashes: Sequence[Hashable]) -> tuple[int, int]:
        """(leading blocks of these that are here, how many of them are free ones)."""
        hits = free = 0
        for each in hashes:
            if each in self._freed:
                free += 1
            elif each not in self._users:
                break
            hits += 1
        return hits, free

    def share(self, hashes: Sequence[Hashable]) -> None:
        """Use blocks that are here."""
        for each in hashes:
            self._freed.pop(each, None)
            self._users[each] = self._users.get(each, 0) + 1

    def take(self, count: int) -> None:
        """Use `count` more blocks, which forget what they held."""
        assert count <= self.free
        self._unknown += count
        blank = min(count, self._blank)
        self._blank -= blank
        for _ in range(count - blank):
            self._freed.popitem(last=False)

    def forget(self) -> None:
        """Every free block is as if never used; those in use stay."""
        self._blank += len(self._freed)
        self._freed.clear()

    def know(self, block: Hashable) -> bool:
        """A taken block is full and can be shared; False when another already holds the same."""
        if block in self._users or block in self._freed:
            return False
        self._unknown -= 1
        self._users[block] = 1
        return True

    def release(self, known: Sequence[Hashable], unknown: int) -> None:
        """A sequence lets go of its blocks: those it shares, first to last, and others."""
        self._unknown -= unknown
        self._blank += unknown
        for block in reversed(known):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._freed[block] = None
        assert self._unknown >= 0
