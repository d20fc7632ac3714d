"""What the requests of one pool showed: of the pool, of each backend, and of each model there.

Names of models come from clients and backends, so their number has limits. Beyond them a backend's
requests are counted as `other`. Its first model is always told.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from http import HTTPStatus
from operator import add
from typing import Final

from penstock.balancing.slo.windows import bound_of, bounds_of

LATENCY_S: Final[tuple[float, ...]] = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 600.0,
)  # fmt: skip
ITL_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
OVERHEAD_S: Final[tuple[float, ...]] = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0,
)  # fmt: skip
RATIO: Final[tuple[float, ...]] = (
    0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0,
)  # fmt: skip
# Predicted over true waits.
WAIT_RATIO: Final[tuple[float, ...]] = (
    0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0,
)  # fmt: skip

_bisect_left: Final = bisect_left  # a constant is found faster than an imported name


class Histogram:
    """Counts per bucket; `bounds` are upper bounds, the last bucket is +Inf."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` samples of `value`."""
        self.counts[_bisect_left(self.bounds, value)] += count
        self.total += value * count

    def take(self, other: "Histogram") -> None:
        """Add all samples of one with the same bounds."""
        self.counts = list(map(add, self.counts, other.counts))
        self.total += other.total

    def buckets(self, bounds: Iterable[float] = ()) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition wants them. `bounds`: only these."""
        told = frozenset(bounds)
        cumulative = 0
        rows = []
        for bound, count in zip(self.bounds, self.counts[:-1], strict=True):
            cumulative += count
            if not told or bound in told:
                rows.append((str(bound), float(cumulative)))
        rows.append(("+Inf", float(cumulative + self.counts[-1])))
        return rows


SLOT_S: Final = 60
SLOTS: Final = 3
BOUNDS_S: Final = bounds_of(())


class Lately:
    """What one backend did in the present minute and the two before. `failure`: the reason of the
    last error, or empty.

    For people only: nothing is decided by it. A backend has some 1.4 KB of it, whatever its clients
    do. Whoever has most of a backend's requests has most of its percentile, too.
    """

    def __init__(self) -> None:
        # The last bucket also has all that is longer.
        self._ttfts = [array("I", bytes(4 * len(BOUNDS_S))) for _ in range(SLOTS)]
        self._failures = [0] * SLOTS
        self._slot = 0  # number of the present minute since the clock's start
        self.failure = ""
        self.failed_s = 0.0  # when that was

    def first_token(self, ttft_s: float, now_s: float) -> None:
        """Count the first token of a stream."""
        if now_s >= (self._slot + 1) * SLOT_S:
            self.advance(now_s)
        at = min(bisect_left(BOUNDS_S, ttft_s), len(BOUNDS_S) - 1)
        self._ttfts[self._slot % SLOTS][at] += 1

    def failed(self, reason: str, now_s: float) -> None:
        """Count an attempt that failed."""
        self.advance(now_s)
        self._failures[self._slot % SLOTS] += 1
        self.failure, self.failed_s = reason, now_s

    def advance(self, now_s: float) -> None:
        """Drop what is too old. Needed before anything is read."""
        slot = int(now_s // SLOT_S)
        for number in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            at = number % SLOTS
            self._ttfts[at] = array("I", bytes(4 * len(BOUNDS_S)))
            self._failures[at] = 0
        self._slot = max(self._slot, slot)

    @property
    def failures(self) -> int:
        """How many attempts failed."""
        return sum(self._failures)

    @property
    def first_tokens(self) -> int:
        """How many streams had their first token."""
        return sum([sum(each) for each in self._ttfts])

    def ttft_s(self, share: float) -> float | None:
        """So long or shorter took `share` of the first tokens, at most 25 % too high.

        None without any.
        """
        counts = [sum(each) for each in zip(*self._ttfts, strict=True)]
        return bound_of(BOUNDS_S, counts, share)


# The most models that are told apart at one backend, and at all backends of a pool together. A
# thousand series take a scrape about 5 ms, and each model has 34 at each backend.
MODELS_MAX: Final = 16
POOL_MODELS_MAX: Final = 1_024
OTHER: Final = "other"
# The statuses that are told apart: those that are registered, and usual ones of servers before
# engines. A backend may answer with any: others are counted by their first digit.
STATUSES: Final = frozenset([*map(int, HTTPStatus), 499, *range(520, 531)])
# Upper bounds of the classes of prompts, in tokens, and their names. `more` has no bound.
PROMPT_TOKENS: Final = (1_024, 8_192, 32_768)
PROMPT_CLASSES: Final = ("1k", "8k", "32k", "more")


class BackendMetrics:
    """The requests of one backend: how attempts ended, why it was chosen, times by model.

    `lately`: the same of the last minutes, for people.
    """

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}
        self.routed: dict[str, int] = {}
        self.times: dict[str, Times] = {}
        self.lately = Lately()


class Times:
    """The times of one model's requests at one backend. Held by reference: no chunk looks it up."""

    def __init__(self, backend: BackendMetrics) -> None:
        self.backend = backend
        self.duration_s = Histogram(LATENCY_S)
        self.ttft_s = Histogram(LATENCY_S)
        self.itl_s = Histogram(ITL_S)


class PoolMetrics:
    """The measurements of one pool."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}  # (backend, status or its first digit)
        self.duration_s = Histogram(LATENCY_S)
        self.ttft_by_prompt_s = [Histogram(LATENCY_S) for _ in PROMPT_CLASSES]
        self.forgotten_itl_s = Histogram(ITL_S)  # of backends that are gone
        self.backends: dict[str, BackendMetrics] = {}
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._models = 0  # that are told apart beyond the first of each backend

    def request(self, backend: str, status: int, duration_s: float) -> None:
        """Count one finished request."""
        key = (backend, status if status in STATUSES else status // 100)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.duration_s.observe(duration_s)

    def first_token(self, prompt_tokens: int, ttft_s: float) -> None:
        """Count the first token of a stream."""
        self.ttft_by_prompt_s[bisect_left(PROMPT_TOKENS, prompt_tokens)].observe(ttft_s)

    def backend(self, name: str) -> BackendMetrics:
        """The counts of one of its backends."""
        found = self.backends.get(name)
        if found is None:
            found = self.backends[name] = BackendMetrics()
        return found

    def times(self, backend: str, model: str | None) -> Times:
        """The times to add to. `model`: None if the backend does not list it."""
        counts = self.backend(backend)
        models = counts.times
        name = model if model is not None else OTHER
        found = models.get(name)
        if found is not None:
            return found
        if models and name != OTHER:
            if len(models) >= MODELS_MAX or self._models >= POOL_MODELS_MAX:
                return self.times(backend, None)
            self._models += 1
        found = models[name] = Times(counts)
        return found

    @property
    def tokens(self) -> int:
        """All tokens of its prompts and answers."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def ttft_s(self) -> Histogram:
        """The times to the first token of all prompts."""
        whole = Histogram(LATENCY_S)
        for each in self.ttft_by_prompt_s:
            whole.take(each)
        return whole

    @property
    def itl_s(self) -> Histogram:
        """The times between tokens at all its backends. Chunks add to those of their backend only:
        a second sum would cost each of them as much again."""
        whole = Histogram(ITL_S)
        whole.take(self.forgotten_itl_s)
        for backend in self.backends.values():
            for times in backend.times.values():
                whole.take(times.itl_s)
        return whole

    def forget(self, backend: str) -> None:
        """Drop the series of a backend that is gone. What the pool's own series counted stays."""
        gone = self.backends.pop(backend, None)
        if gone is not None:
            for number, times in enumerate(gone.times.values()):
                self.forgotten_itl_s.take(times.itl_s)
                self._models -= number > 0
        for key in [key for key in self.requests if key[0] == backend]:
            del self.requests[key]
