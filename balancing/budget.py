"""One tenant's budget: what its requests may use, and what each of them was charged.

A request is charged beforehand what it should take, in the same step in which it is admitted. So
requests that come at once cannot all pass on the same tokens. A stream that gets longer is
charged for it when the next request asks. At the end the charge is settled, once, by what the
request took.
"""

from dataclasses import dataclass
from typing import Final

from penstock.balancing.lease import Lease


class Bucket:
    """What may still be used. It refills evenly, from empty to its `limit` in `period_s`.

    A full bucket has room for any amount, and is below zero after a large one. Otherwise a prompt
    that is larger than a minute's budget could never be sent.
    """

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


MINUTE_S: Final = 60.0
DAY_S: Final = 86_400.0
# Running streams are looked at for what they have got no more often than this.
LOOK_S: Final = 0.1
# When a request that runs may end, nobody knows.
CONCURRENT_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may use. None: no limit."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None


class OverBudget(Exception):
    """A limit is reached. `limit`: its name in the configuration. `wait_s`: until there is room."""

    def __init__(self, limit: str, allowed: int, wait_s: float) -> None:
        super().__init__(limit, allowed, wait_s)
        self.limit = limit
        self.allowed = allowed
        self.wait_s = wait_s


class Budget:
    """The buckets of one tenant. `requests` and `tokens` are by the names of their limits."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        self.requests: dict[str, Bucket] = {}
        self.tokens: dict[str, Bucket] = {}
        self.running: dict[Charge, None] = {}
        self._looked_s = now_s
        self.follow(limits, now_s)

    def follow(self, limits: Limits, now_s: float) -> None:
        """Take other limits. What was used stays used, and what runs goes on."""
        self.concurrent = limits.concurrent
        _follow(self.requests, "requests_per_minute", limits.requests_per_minute, MINUTE_S, now_s)
        _follow(self.requests, "requests_per_day", limits.requests_per_day, DAY_S, now_s)
        _follow(self.tokens, "tokens_per_minute", limits.tokens_per_minute, MINUTE_S, now_s)
        _follow(self.tokens, "tokens_per_day", limits.tokens_per_day, DAY_S, now_s)

    def check(self, tokens: float, now_s: float) -> None:
        """Raises OverBudget if a request of so many tokens may not be sent now.

        Of several limits it names the one that takes longest.
        """
        self._look(now_s)
        over = None
        if self.concurrent is not None and len(self.running) >= self.concurrent:
            over = OverBudget("concurrent", self.concurrent, CONCURRENT_WAIT_S)
        for amount, buckets in ((1.0, self.requests), (tokens, self.tokens)):
            for name, bucket in buckets.items():
                if not bucket.has(amount, now_s):
                    wait_s = bucket.wait_s(amount, now_s)
                    if over is None or wait_s > over.wait_s:
                        over = OverBudget(name, bucket.limit, wait_s)
        if over is not None:
            raise over

    def reserve(self, tokens: float, now_s: float) -> "Charge":
        """Charge a request that should take so many tokens. Raises OverBudget."""
        self.check(tokens, now_s)
        charge = Charge(self, tokens)
        self.running[charge] = None
        self.take(1, tokens, now_s)
        return charge

    def take(self, requests: float, tokens: float, now_s: float) -> None:
        for bucket in self.requests.values():
            bucket.take(requests, now_s)
        for bucket in self.tokens.values():
            bucket.take(tokens, now_s)

    def _look(self, now_s: float) -> None:
        if now_s - self._looked_s < LOOK_S or not self.tokens:
            return
        self._looked_s = now_s
        for charge in self.running:
            more = charge.unpaid
            if more > 0.0:
                charge.correct(charge.tokens + more, now_s)


class Charge:
    """What one request was charged. `lease`: of its last attempt. It ends once."""

    __slots__ = ("_budget", "lease", "tokens")

    def __init__(self, budget: Budget, tokens: float) -> None:
        self._budget = budget
        self.tokens = tokens
        self.lease: Lease | None = None

    @property
    def unpaid(self) -> float:
        """What its answer took so far beyond what was charged."""
        lease = self.lease
        if lease is None or lease.first_token_s is None:
            return 0.0
        return lease.taken_tokens + lease.generated_tokens - self.tokens

    def correct(self, tokens: float, now_s: float) -> None:
        """Replace the tokens charged so far by this count."""
        self._budget.take(0, tokens - self.tokens, now_s)
        self.tokens = tokens

    def settle(self, requests: int, tokens: float, now_s: float) -> None:
        """It has ended, and took so much: 0 requests if nobody served it. Does nothing twice."""
        running = self._budget.running
        if self in running:
            del running[self]
            self._budget.take(requests - 1, 0.0, now_s)
            self.correct(tokens, now_s)


def _follow(
    buckets: dict[str, Bucket], name: str, limit: int | None, period_s: float, now_s: float
) -> None:
    bucket = buckets.get(name)
    if limit is None:
        buckets.pop(name, None)
    elif bucket is None:
        buckets[name] = Bucket(limit, period_s, now_s)
    else:
        bucket.resize(limit, now_s)
