"""Slow start: how much a backend may take after it has come back.

It returns with a cold cache and an empty queue, so every policy would send it all new requests. If
it fails again, all of them are lost. So it may have in flight only a share of what a ready backend
of its pool has. The share grows from 10 % to 100 % over `warm_s`, but one request is always
allowed: an idle backend helps nobody. The limit is on requests at a time, not in total. So if the
other backends have long queues, the returned one takes over as much as it can.
"""

from typing import Final

# Envoy's default `min_weight_percent`. HAProxy begins at 1 %, which is less than one request in a
# small pool.
FIRST_SHARE: Final = 0.1


class SlowStart:
    """The ramp of one backend since `began_s`."""

    __slots__ = ("_warm_s", "began_s")

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
