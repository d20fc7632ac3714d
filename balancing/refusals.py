"""The refusals that a backend gave within a minute, and the clients that got them.

A refusal is any answer that does not serve the request: a 4xx, an error inside a 200, a login page,
an answer without a token. `odd_refusals` compares them with those of other backends.
"""

from typing import Final

from penstock.balancing.accusers import Accusers

WINDOW_S: Final = 60.0


class Refusals:
    """The refusals of one backend in the present window."""

    __slots__ = ("_given", "_requests", "_since_s")

    def __init__(self) -> None:
        self._given = Accusers()
        self._since_s = float("-inf")
        self._requests = 0  # its total of requests when the window began

    def add(self, client: str, requests_total: int, now_s: float) -> None:
        if now_s - self._since_s > WINDOW_S:
            self._since_s = now_s
            self._requests = requests_total - 1  # this request belongs to the window
            self._given.clear()
        self._given.add(client)

    def of(self, client: str, now_s: float) -> int:
        """The refusals that this client got, if it is among the loudest."""
        return self._given.of(client) if now_s - self._since_s <= WINDOW_S else 0

    def others(self, now_s: float) -> int:
        """The refusals that all clients but the loudest got."""
        return self._given.others if now_s - self._since_s <= WINDOW_S else 0

    def requests(self, requests_total: int) -> int:
        """The number of requests that it was sent in the window."""
        return max(1, requests_total - self._requests)
