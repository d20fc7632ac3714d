"""What the backends of each pool cost since the start, and for a thousand tokens.

A backend costs as much when it is idle or out of order. So the cost grows with time alone, at what
the configuration says at that moment. A price is the cost of the last WINDOW_S, over the tokens
whose requests ended in that time. It is unknown while there were none.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

WINDOW_S: Final = 600.0
# How often the present state is remembered: the window is exact to this.
SAMPLE_S: Final = 10.0
HOUR_S: Final = 3_600.0


class _Pool:
    """The cost of one pool until `until_s`, at `per_hour` from then on. None: unknown."""

    def __init__(self) -> None:
        self.per_hour: float | None = None
        self.total = 0.0
        self.until_s = 0.0
        self.samples: deque[tuple[float, float, int]] = deque()  # time, cost and tokens until then

    def grow(self, now_s: float) -> float:
        if self.per_hour is not None:
            self.total += self.per_hour * max(0.0, now_s - self.until_s) / HOUR_S
        self.until_s = max(self.until_s, now_s)
        return self.total


class Costs:
    """The costs of all pools that have ever had one. Their number is that of the configuration."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._sampled_s = float("-inf")

    @property
    def pools(self) -> list[str]:
        """The pools whose cost is known, or was."""
        return list(self._pools)

    def follow(
        self, per_hour: Mapping[str, float], tokens: Callable[[str], int], now_s: float
    ) -> None:
        """Each pool's backends together cost this much from now on. `tokens`: of a pool so far."""
        for name, pool in self._pools.items():
            pool.grow(now_s)
            if name not in per_hour:
                pool.per_hour = None
                pool.samples.clear()
        for name, cost in per_hour.items():
            found = self._pools.setdefault(name, _Pool())
            found.grow(now_s)
            found.per_hour = cost
            if not found.samples:
                found.samples.append((now_s, found.total, tokens(name)))

    def observe(self, tokens: Callable[[str], int], now_s: float) -> None:
        """Remember the present state now and then. Call it at least each SAMPLE_S."""
        if now_s - self._sampled_s < SAMPLE_S:
            return
        self._sampled_s = now_s
        for name, pool in self._pools.items():
            if pool.per_hour is not None:
                pool.samples.append((now_s, pool.grow(now_s), tokens(name)))
                while len(pool.samples) > 1 and pool.samples[1][0] <= now_s - WINDOW_S:
                    pool.samples.popleft()

    def total(self, pool: str, now_s: float) -> float:
        """What the pool has cost since the start."""
        return self._pools[pool].grow(now_s)

    def per_1k_tokens(self, pool: str, tokens: int, now_s: float) -> float | None:
        """The price of a thousand tokens. `tokens`: of the pool so far. None: unknown."""
        found = self._pools[pool]
        if found.per_hour is None or not found.samples:
            return None
        _, cost, before = found.samples[0]
        if tokens <= before:
            return None
        return 1_000.0 * (found.grow(now_s) - cost) / (tokens - before)

    def forget(self, pool: str) -> None:
        """The pool is gone."""
        self._pools.pop(pool, None)
