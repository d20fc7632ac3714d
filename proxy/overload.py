"""Whether the process itself has too much to do: a pure decision on measured figures.

Two things end a proxy that takes whatever comes: a loop that turns too slowly,
so that every stream waits for every other, and memory. Both are watched, and
while either is over its limit new requests are refused by their head alone,
before a body is read or a prompt is counted; what runs goes on. Each limit is
left at a lower mark than it is reached at, or the refusing itself would switch
it on and off. Time and figures are arguments.
"""

from math import exp
from typing import Final

# A turn of the loop is what every streamed token waits for; at this mean lateness a stream of
# 20 tokens/s comes in lumps of five.
LAG_S: Final = 0.25
LAG_OVER_S: Final = 0.125
# Time constant of the mean: an overload lasts, a collection or a burst does not.
LAG_TAU_S: Final = 2.0
# What one late turn counts as, at most: alone it is no overload, and one that lasted is over
# three seconds after its end.
LAG_SAMPLE_MAX_S: Final = 0.5
# Shares of the memory limit. What is left must hold what running requests still bring.
MEMORY_SHARE: Final = 0.90
MEMORY_OVER_SHARE: Final = 0.80
# Retry hints: no less than an overload takes to pass, and below what SDKs obey (120 s) and
# clients wait for.
HINT_MIN_S: Final = 2.0
HINT_MAX_S: Final = 59.0


class Overload:
    """What is over its limit now; `reason` is `lag`, `memory`, or empty."""

    __slots__ = ("_late", "_short", "_since_s", "lag_s", "reason")

    def __init__(self) -> None:
        self._late = False
        self._short = False
        self._since_s = 0.0
        self.lag_s = 0.0
        self.reason = ""

    def observe(
        self,
        now_s: float,
        period_s: float,
        late_s: float,
        worked_s: float,
        memory_bytes: int,
        limit_bytes: int,
    ) -> bool:
        """Look at one period of a timer that came `late_s` late; True when `reason` changed.

        `worked_s` is the CPU time that the loop used in it: a loop that waited for a CPU which
        others have is late too, but refusing its requests would help nobody. `limit_bytes` is
        0 where memory has no limit.
        """
        late_s = min(late_s, worked_s, LAG_SAMPLE_MAX_S)
        kept = exp(-(period_s + late_s) / LAG_TAU_S)
        self.lag_s = self.lag_s * kept + late_s * (1 - kept)
        self._late = self.lag_s > (LAG_OVER_S if self._late else LAG_S)
        share = MEMORY_OVER_SHARE if self._short else MEMORY_SHARE
        self._short = limit_bytes > 0 and memory_bytes > share * limit_bytes
        before, self.reason = self.reason, self._told()
        if self.reason and not before:
            self._since_s = now_s
        return self.reason != before

    def lasted_s(self, now_s: float) -> float:
        """How long it has lasted; 0 when nothing is over its limit."""
        return now_s - self._since_s if self.reason else 0.0

    def hint_s(self, now_s: float) -> float:
        """When to try again: in as long as it has lasted, so that clients back off with it."""
        return min(HINT_MAX_S, max(HINT_MIN_S, self.lasted_s(now_s)))

    def hopeless(self, now_s: float) -> bool:
        """Whether it has lasted longer than any hint could say: retries only add to it."""
        return self.lasted_s(now_s) > HINT_MAX_S

    def _told(self) -> str:
        return "memory" if self._short else "lag" if self._late else ""
