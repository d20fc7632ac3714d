"""Limits the work done at once in one turn of the loop, for all users of the budget together."""

import asyncio


class TurnBudget:
    """The work that is `left`. It may be overdrawn. It is renewed in the turn after more than
    `unwatched` was spent."""

    __slots__ = ("_called", "_loop", "_most", "_watched", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, unwatched: int = 0) -> None:
        """`unwatched`: with 0 each turn begins anew. With more, most turns are spared a call of the
        loop."""
        self._loop = loop
        self._most = most
        self._watched = most - unwatched
        self._called = False  # the loop will renew it
        self.left = most

    def spend(self, cost: int) -> None:
        self.left -= cost
        if self.left < self._watched and not self._called:
            self._called = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._called = False
        self.left = self._most
