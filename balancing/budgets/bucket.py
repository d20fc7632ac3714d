"""A bucket that holds what may still be used. It refills evenly: from empty to full in a period.

A full bucket has room for any amount, and is below zero after a large one. Otherwise a prompt that
is larger than a minute's budget could never be sent.
"""


class Bucket:
    """`limit`: what it holds when it is full. `period_s`: the time in which it fills."""

    __slots__ = ("_at_s", "_level", "limit", "period_s", "taken")

    def __init__(self, limit: int, period_s: float, now_s: float) -> None:
        self.limit = limit
        self.period_s = period_s
        self._level = float(limit)
        self._at_s = now_s
        self.taken = 0.0  # all that was ever used, for whoever keeps accounts

    def level(self, now_s: float) -> float:
        """What may be used now. Negative: more was used than it held."""
        if now_s > self._at_s:
            filled = self._level + (now_s - self._at_s) * self.limit / self.period_s
            self._level = min(float(self.limit), filled)
            self._at_s = now_s
        return self._level

    def has(self, amount: float, now_s: float) -> bool:
        """Whether so much may be used now."""
        return self.level(now_s) >= min(amount, self.limit)

    def take(self, amount: float, now_s: float) -> None:
        """It is used. A negative amount gives back what was taken too much."""
        self._level = min(float(self.limit), self.level(now_s) - amount)
        self.taken += amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """When it will have so much."""
        missing = min(amount, self.limit) - self.level(now_s)
        return max(0.0, missing * self.period_s / self.limit)

    def resume(self, used: float, now_s: float) -> None:
        """So much was used before this process began."""
        self._level = self.level(now_s) - used

    def resize(self, limit: int, now_s: float) -> None:
        """Take another limit. The same share of it is left."""
        self._level = self.level(now_s) * limit / self.limit
        self.limit = limit
