"""The refusals that a backend gave within a minute or two, and the clients that got them.

A refusal is any answer that does not serve the request: a 4xx, an error inside a 200, a login page,
an answer without a token. `odd_refusals` compares them with those of other backends. The window
before the present one counts too: a backend whose window has just begun would look as if it refused
nothing, and its peers as if they alone did.
"""

from collections.abc import Set
from typing import Final

from penstock.balancing.accusers import Accusers

WINDOW_S: Final = 60.0


class Refusals:
    """The refusals of one backend in the present window and the one before."""

    __slots__ = ("_before", "_given", "_requests", "_requests_before", "_since_s")

    def __init__(self) -> None:
        self._given = Accusers()
        self._before = Accusers()
        self._since_s = float("-inf")
        # The backend's total of requests when each window began.
        self._requests = self._requests_before = 0

    def add(self, client: str, requests_total: int, now_s: float) -> None:
        if now_s - self._since_s > WINDOW_S:
            self._before, self._requests_before = self._given, self._requests
            if not self._recent(now_s):
                self._before, self._requests_before = Accusers(), requests_total - 1
            self._given = Accusers()
            self._since_s = now_s
            self._requests = requests_total - 1  # this request belongs to the window
        self._given.add(client)

    def of(self, client: str, now_s: float) -> int:
        """The refusals that this client got, if it is among the loudest."""
        return self._given.of(client) + self._before.of(client) if self._recent(now_s) else 0

    def clients(self, now_s: float) -> Set[str]:
        """The clients whose refusals are counted by name."""
        return self._given.clients | self._before.clients if self._recent(now_s) else set()

    def count(self, now_s: float) -> int:
        """The refusals that all clients got."""
        return self._given.count + self._before.count if self._recent(now_s) else 0

    def requests(self, requests_total: int) -> int:
        """The number of requests that it was sent in both windows."""
        return max(1, requests_total - self._requests_before)

    def _recent(self, now_s: float) -> bool:
        return now_s - self._since_s <= 2 * WINDOW_S
