"""Whether the process itself is overloaded: a pure decision on measured figures.

Two things can end a proxy that takes every request: a loop so slow that every stream
waits for every other, and a lack of memory. While one of them is over its limit, new
requests are refused by their heads, before a body is read or a prompt is counted.
Running requests go on. Overload ends at a lower mark than it begins, or the refusals
themselves would switch it on and off. Time and figures are arguments.

The requests of a few holders may make the loop late. So a holder with less than half of an even
share of the requests is still served. Requests that began a moment ago count, too: a flood of
requests that end at once makes the loop as late.
"""

from math import exp
from typing import Final

# Every streamed token waits for a turn of the loop. At this mean lag a stream of 20 tokens/s
# arrives in lumps of five.
LAG_S: Final = 0.25
LAG_OVER_S: Final = 0.125
# The time constant of the mean. Overload lasts longer; a garbage collection or a burst does not.
LAG_TAU_S: Final = 2.0
# The most that one late turn counts. A single one is no overload. After a long one, overload is
# over after three seconds.
LAG_SAMPLE_MAX_S: Final = 0.5
# Shares of the memory limit. The rest must hold what running requests still bring.
MEMORY_SHARE: Final = 0.90
MEMORY_OVER_SHARE: Final = 0.80
# Retry hints: not shorter than an overload lasts, below the limit that SDKs obey (120 s), and no
# longer than clients wait.
HINT_MIN_S: Final = 2.0
HINT_MAX_S: Final = 59.0
# A holder is spared if it has less than this part of an even share.
SPARED: Final = 0.5
# After its beginning a request counts once more, for one to two of these times.
LATELY_S: Final = 1.0


class Overload:
    """Which limit is passed now: `reason` is `lag`, `memory` or empty."""

    def __init__(self) -> None:
        self._late = False
        self._short = False
        self._since_s = self._short_since_s = 0.0
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
        """Look at one period of a timer that fired `late_s` late. True when `reason` changed.

        `worked_s` is the CPU time of the loop in this period. A loop that waits for a CPU used by
        others is late too, but refusing requests would help nobody. `limit_bytes` is 0 when memory
        has no limit.
        """
        late_s = min(late_s, worked_s, LAG_SAMPLE_MAX_S)
        kept = exp(-(period_s + late_s) / LAG_TAU_S)
        self.lag_s = self.lag_s * kept + late_s * (1 - kept)
        self._late = self.lag_s > (LAG_OVER_S if self._late else LAG_S)
        short = self.over_bytes(memory_bytes, limit_bytes) > 0
        if short and not self._short:
            self._short_since_s = now_s
        self._short = short
        before = self.reason
        self.reason = "memory" if short else "lag" if self._late else ""
        if self.reason and not before:
            self._since_s = now_s
        return self.reason != before

    def over_bytes(self, memory_bytes: int, limit_bytes: int) -> int:
        """How many bytes must be freed to end a lack of memory. 0 when there is none."""
        share = MEMORY_OVER_SHARE if self._short else MEMORY_SHARE
        if limit_bytes <= 0 or memory_bytes <= share * limit_bytes:
            return 0
        return memory_bytes - int(MEMORY_OVER_SHARE * limit_bytes)

    def lasted_s(self, now_s: float) -> float:
        """How long the overload has lasted. 0 when there is none."""
        return now_s - self._since_s if self.reason else 0.0

    def short_s(self, now_s: float) -> float:
        """How long memory has been short without a pause. 0 when it is not."""
        return now_s - self._short_since_s if self._short else 0.0

    def hint_s(self, now_s: float) -> float:
        """The time until a retry: as long as the overload has lasted, so that clients back off."""
        return min(HINT_MAX_S, max(HINT_MIN_S, self.lasted_s(now_s)))

    def hopeless(self, now_s: float) -> bool:
        """Whether it has lasted longer than any hint can say. Then retries only add load."""
        return self.lasted_s(now_s) > HINT_MAX_S


class Running:
    """The requests under way and those begun lately, by tenant or address."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._lately: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._since_s = 0.0

    def begin(self, holder: str, now_s: float) -> None:
        if now_s - self._since_s >= LATELY_S:
            recent = now_s - self._since_s < 2 * LATELY_S
            self._before = self._lately if recent else {}
            self._lately = {}
            self._since_s = now_s
        self._running[holder] = self._running.get(holder, 0) + 1
        self._lately[holder] = self._lately.get(holder, 0) + 1

    def end(self, holder: str) -> None:
        left = self._running[holder] - 1
        if left:
            self._running[holder] = left
        else:
            del self._running[holder]

    def has(self, holder: str) -> bool:
        """Whether it has requests under way."""
        return holder in self._running

    @property
    def total(self) -> int:
        """The requests under way."""
        return sum(self._running.values())

    def spares(self, holder: str) -> bool:
        """Whether it has so few that others must be the cause."""
        tables = (self._running, self._lately, self._before)
        own = sum([table.get(holder, 0) for table in tables])
        total = sum([sum(table.values()) for table in tables])
        holders = max([len(table) + (holder not in table) for table in tables])
        return holders > 1 and (own + 1) * holders < SPARED * (total + 1)
