"""How long a backend's server takes from the moment it is seen to the first token that it serves.

The time holds the loading of weights, the probes that must pass, and the wait for a request that is
sent there. A server that was ready when it was first looked at started before: nothing is known of
its start.
"""

from typing import Final

# What probes find at a server that was just started and accepts connections.
LOADING: Final = frozenset({"loading", "timeout", "status_503"})


class ColdStart:
    """The starts of one backend's server. `last_s`: how long the last one took. None: unknown."""

    __slots__ = ("_awaited", "_seen_s", "last_s")

    def __init__(self) -> None:
        self._awaited = False
        self._seen_s: float | None = None
        self.last_s: float | None = None

    def gone(self) -> None:
        """Nobody is there: who comes next has just started."""
        self._awaited = True
        self._seen_s = None

    def probed(self, reason: str, now_s: float, *, starting: bool) -> None:
        """A probe found this, or that it is ready (""). `starting`: it never was, so far."""
        if starting and reason == "unreachable":
            self.gone()
        elif not reason or reason in LOADING:
            self._awaited = self._awaited or (starting and bool(reason))
            self.seen(now_s)

    def seen(self, now_s: float) -> None:
        """Somebody is there."""
        if self._awaited and self._seen_s is None:
            self._seen_s = now_s

    def served(self, now_s: float) -> None:
        """A request has had its first token there."""
        if self._seen_s is not None:
            self.last_s = now_s - self._seen_s
            self._awaited, self._seen_s = False, None
