"""Slow start: what a backend may take after it has come back.

It returns with a cold cache and an empty queue, so every policy would send it all that comes at
once; if it fails again, all of that is lost. So it may have in flight a share of what a ready
backend of its pool has, growing from 10 % to all of it over `warm_s`; but one request at any time:
an idle backend helps nobody. What bounds the loss is what it has at a time, not how much it has
done: where the others have long queues, those who are back take of them what they can.
"""

from typing import Final

# Envoy's default `min_weight_percent`; HAProxy begins at 1 %, which is less
# than one request for a small pool.
FIRST_SHARE: Final = 0.1


class SlowStart:
    """The ramp of one backend since `began_s`."""

    __slots__ = ("_warm_s", "began_s")

    def __init__(self, now_s: float, warm_s: float) -> None:
        self.began_s = now_s
        self._warm_s = warm_s

    def share(self, now_s: float) -> float:
        """What part of a ready backend's requests it may have now, 0.1 to 1.0."""
        if self._warm_s <= 0:
            return 1.0
        done = (now_s - self.began_s) / self._warm_s
        return min(1.0, max(0.0, FIRST_SHARE + (1.0 - FIRST_SHARE) * done))

    def over(self, now_s: float) -> bool:
        """Whether it may take all that comes."""
        return now_s - self.began_s >= self._warm_s

    def admits(self, in_flight: int, fair: float, now_s: float) -> bool:
        """Whether one that has so many in flight may take another.

        `fair`: what a ready backend of its weight has.
        """
        return in_flight + 1 <= max(1.0, self.share(now_s) * fair)
