"""The starts of a backend: how much it may take after it has come back, and how long they take.

It returns with a cold cache and an empty queue, so every policy would send it all new requests. If
it fails again, all of them are lost. The limit is on requests at a time, not in total: it takes
over as much as it can from backends with long queues.
"""

from typing import Final

# Envoy's default `min_weight_percent`. HAProxy begins at 1 %, which is less than one request in a
# small pool.
FIRST_SHARE: Final = 0.1


class SlowStart:
    """Slow start: the ramp of one backend since `began_s`."""

    def __init__(self, now_s: float, warm_s: float) -> None:
        self.began_s = now_s
        self._warm_s = warm_s

    def share(self, now_s: float) -> float:
        """The share of a ready backend's requests that it may have now, 0.1 to 1.0."""
        if self._warm_s <= 0:
            return 1.0
        done = (now_s - self.began_s) / self._warm_s
        return min(1.0, max(0.0, FIRST_SHARE + (1.0 - FIRST_SHARE) * done))

    def over(self, now_s: float) -> bool:
        """Whether it may take any number of requests."""
        return now_s - self.began_s >= self._warm_s

    def admits(self, in_flight: int, fair: float, now_s: float) -> bool:
        """Whether a backend with `in_flight` requests may take another one.

        `fair`: what a ready backend of its weight has.
        """
        return in_flight + 1 <= max(1.0, self.share(now_s) * fair)


# What probes find at a server that was just started and accepts connections.
LOADING: Final = frozenset({"loading", "timeout", "status_503"})


class ColdStart:
    """How long a server takes from the moment it is seen to the first token that it serves.

    The time holds the loading of weights, the probes that must pass, and the wait for a request
    that is sent there. A server that was ready when it was first looked at started before: nothing
    is known of its start. `last_s`: how long the last one took. None: unknown.
    """

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
