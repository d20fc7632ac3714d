"""What of an index was put there by an estimate that no answer has confirmed.

Text that no engine reads looks like a prompt, and who gives up at the first token is never told
how long it was. So each client may fill only a share of an index in that way until the index turns,
and all together not much more: the rest waits for its answer beside it.
"""

from typing import Final

from balancing.prefix_index import PrefixIndex

# Of the index: of one client's, and of all.
OWN_SHARE: Final = 1 / 16
ALL_SHARE: Final = 1 / 4


class UnconfirmedBlocks:
    """Of one index, by client, in blocks of BLOCK_TOKENS."""

    __slots__ = ("_all", "_index", "_own", "_turn")

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._own: dict[str, float] = {}
        self._all = 0.0
        self._turn = 0

    def fits(self, client: str, blocks: float) -> bool:
        """Whether that many more of the client's may be put in before they are told."""
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
        """They are in the index."""
        if blocks and self._index.turns == self._turn:
            self._own[client] = self._own.get(client, 0.0) + blocks
            self._all += blocks

    def confirm(self, client: str, blocks: float, turn: int) -> None:
        """Those put there in that turn have been told."""
        if blocks and turn == self._turn and client in self._own:
            left = self._own[client] - blocks
            self._all = max(0.0, self._all - blocks)
            if left > 0.0:
                self._own[client] = left
            else:
                del self._own[client]
