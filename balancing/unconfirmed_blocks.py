"""Limits blocks in an index that rest on an estimate and were not confirmed by an answer.

Text that no engine reads looks like a prompt, and a client that leaves at the first token never
gets a report of its length. So until the index turns, each client may fill only a share of it this
way, and all clients together not much more. Other blocks wait for their answer beside the index.
"""

from typing import Final

from penstock.balancing.prefix_index import PrefixIndex

# Shares of the index: for one client, and for all.
OWN_SHARE: Final = 1 / 16
ALL_SHARE: Final = 1 / 4


class UnconfirmedBlocks:
    """The unconfirmed blocks of one index by client, in blocks of BLOCK_TOKENS."""

    __slots__ = ("_all", "_index", "_own", "_turn")

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._own: dict[str, float] = {}
        self._all = 0.0
        self._turn = 0

    def fits(self, client: str, blocks: float) -> bool:
        """Whether this many more of the client's blocks may go in unconfirmed."""
        index = self._index
        if index.turns != self._turn:
            self._turn = index.turns
            self._own.clear()
            self._all = 0.0
        own = self._own.get(client, 0.0) + blocks
        return (
            own <= OWN_SHARE * index.capacity and self._all + blocks <= ALL_SHARE * index.capacity
        )

    def add(self, client: str, blocks: float) -> None:
        """These blocks are in the index now."""
        if blocks and self._index.turns == self._turn:
            self._own[client] = self._own.get(client, 0.0) + blocks
            self._all += blocks

    def confirm(self, client: str, blocks: float, turn: int) -> None:
        """Blocks that were put in during that turn are confirmed."""
        if blocks and turn == self._turn and client in self._own:
            left = self._own[client] - blocks
            self._all = max(0.0, self._all - blocks)
            if left > 0.0:
                self._own[client] = left
            else:
                del self._own[client]
