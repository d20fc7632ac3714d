"""Limits the work done at once in one turn of the loop, for all users of the budget together."""

import asyncio


class TurnBudget:
    """The work that is `left` for this turn. It may be overdrawn. The next turn begins anew."""

    __slots__ = ("_called", "_loop", "_most", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = most
        self._called = False  # the loop will renew it
        self.left = most

    def spend(self, cost: int) -> None:
        self.left -= cost
        if not self._called:
            self._called = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._called = False
        self.left = self._most
