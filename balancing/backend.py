"""One backend as the balancing sees it: its load, its fitness, its speed.

The load is counted here at event time because no scrape can tell it in time.
Only a `Lease` changes `own`; `remote` is what other replicas of this proxy
report and is zero while there is one. What policies read is the sum.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING, Final

from balancing.engine_report import EngineReport
from balancing.penalty import Penalty
from balancing.slow_start import SlowStart

if TYPE_CHECKING:
    from balancing.ask import Ask
    from balancing.lease import Lease

# Prior of the prefill rate, tokens/s: an 8B model on one H100 prefills about
# this much with chunks of 8,192; worth one second of evidence, so that the
# first real samples outweigh it.
PREFILL_RATE_PRIOR: Final = 10_000.0
PREFILL_FADE: Final = 0.95
# Finagle's Peak EWMA decays over 10 s: about the time a burst takes to pass.
LATENCY_TAU_S: Final = 10.0


class State(StrEnum):
    """Health as the probes see it; the transitions are in `health.machine`."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    WARMING = "warming"


class AdminState(StrEnum):
    """What the operator wants, apart from health."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


class Load:
    """Tokens and requests at one backend, as integers with a sequence number.

    `queued_prefill_tokens` (P): sent, not yet answered by a first token.
    `active_decode_tokens` (K): prompt + generated tokens of requests past it.
    `streams` (N): requests past their first token. `requests`: all in flight;
    `engine_requests`: what the engine makes of them (prompts x choices each).
    `retries`: those that another engine failed before, not yet past their first token.
    """

    __slots__ = (
        "active_decode_tokens",
        "engine_requests",
        "queued_prefill_tokens",
        "requests",
        "retries",
        "sequence",
        "streams",
    )

    def __init__(self) -> None:
        self.queued_prefill_tokens = 0
        self.active_decode_tokens = 0
        self.streams = 0
        self.requests = 0
        self.engine_requests = 0
        self.retries = 0
        self.sequence = 0

    @property
    def idle(self) -> bool:
        """All zeros: what every backend must come back to."""
        return not (
            self.queued_prefill_tokens
            or self.active_decode_tokens
            or self.streams
            or self.requests
            or self.engine_requests
            or self.retries
        )


class PrefillRate:
    """Tokens a second that a backend prefills, from time to first token.

    What a request waited for and its own prompt, over the time that took: a
    lower bound while decodes share the engine, which is the rate that matters.
    """

    __slots__ = ("seconds", "tokens")

    def __init__(self) -> None:
        self.tokens = PREFILL_RATE_PRIOR
        self.seconds = 1.0

    def observe(self, tokens: float, seconds: float) -> None:
        self.tokens = self.tokens * PREFILL_FADE + tokens
        self.seconds = self.seconds * PREFILL_FADE + max(seconds, 1e-6)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class PeakEwma:
    """Latency that rises at once and decays: Finagle's Peak EWMA, read without mutation."""

    __slots__ = ("at_s", "value_s")

    def __init__(self) -> None:
        self.value_s = 0.0
        self.at_s = 0.0

    def observe(self, sample_s: float, now_s: float) -> None:
        decayed = exp(-max(0.0, now_s - self.at_s) / LATENCY_TAU_S)
        average = self.value_s * decayed + sample_s * (1.0 - decayed)
        self.value_s = max(sample_s, average)
        self.at_s = now_s

    def read(self, now_s: float) -> float:
        return self.value_s * exp(-max(0.0, now_s - self.at_s) / LATENCY_TAU_S)


class Backend:
    """A vLLM server: identity, health, load and measured speed."""

    __slots__ = (
        "_head_since_s",
        "_prefilling",
        "admin_state",
        "back_since_s",
        "doubted",
        "failing_since_s",
        "failures_in_row",
        "failures_total",
        "latency",
        "models",
        "name",
        "own",
        "penalty",
        "pool",
        "prefill_rate",
        "progress",
        "reason",
        "remote",
        "report",
        "requests_total",
        "slow_start",
        "state",
        "taken_tokens",
        "url",
        "weight",
    )

    def __init__(self, name: str, url: str, pool: str = "default", weight: float = 1.0) -> None:
        self.name = name
        self.url = url
        self.pool = pool
        self.weight = weight
        self.state = State.STARTING
        self.reason = "loading"
        self.admin_state = AdminState.READY
        # Id to its card as the backend's /v1/models gives it; None: not read yet, serves any.
        self.models: Mapping[str, bytes] | None = None
        self.own = Load()
        self.remote = Load()
        self.requests_total = 0
        self.taken_tokens = 0  # prompt tokens of all requests ever sent here
        self.failures_total = 0
        self.failures_in_row = 0
        self.failing_since_s = float("-inf")  # the first failure of the present row
        self.penalty = Penalty()
        self.progress = 0  # moves whenever the engine was seen to generate
        self.doubted = False  # ejected on suspicion: better than nobody
        self.slow_start: SlowStart | None = None  # while warming
        self.back_since_s = float("-inf")  # the last return from an ejection
        self.report: EngineReport | None = None
        self.prefill_rate = PrefillRate()
        self.latency = PeakEwma()
        # Leases whose prompts are not prefilled yet, oldest first (a dict as an ordered set).
        self._prefilling: dict[Lease, None] = {}
        self._head_since_s = 0.0

    def __repr__(self) -> str:
        return (
            f"<Backend {self.name} {self.state} P={self.queued_prefill_tokens} "
            f"K={self.active_decode_tokens} N={self.streams} in_flight={self.requests_in_flight}>"
        )

    @property
    def fit(self) -> bool:
        """Whether a new request may be sent here."""
        return self.admin_state is AdminState.READY and self.healthy

    @property
    def healthy(self) -> bool:
        """Whether it would answer, as far as its probes tell."""
        return (
            self.state is State.READY or self.state is State.SUSPECT or self.state is State.WARMING
        )

    def may_finish(self, ask: "Ask") -> bool:
        """Whether it may be asked for what it already has, while it is drained: no new work."""
        return not ask.engine and self.healthy and self.admin_state is AdminState.DRAIN

    @property
    def last_resort(self) -> bool:
        """Whether it is out on suspicion alone: it serves when nobody else can."""
        return self.doubted and self.admin_state is AdminState.READY

    @property
    def can_serve(self) -> bool:
        """Whether any request may come here, if only for want of better."""
        return self.fit or self.last_resort

    def lists(self, model: str) -> bool:
        """Whether the model is among those that the backend itself says it has."""
        return self.models is not None and model in self.models

    def serves(self, model: str | None) -> bool:
        """Whether the model is known, or may be: an unread list serves any."""
        return model is None or self.models is None or model in self.models

    @property
    def queued_prefill_tokens(self) -> int:
        return self.own.queued_prefill_tokens + self.remote.queued_prefill_tokens

    @property
    def active_decode_tokens(self) -> int:
        return self.own.active_decode_tokens + self.remote.active_decode_tokens

    @property
    def streams(self) -> int:
        return self.own.streams + self.remote.streams

    @property
    def requests_in_flight(self) -> int:
        return self.own.requests + self.remote.requests

    def hidden_requests(self, now_s: float) -> float:
        """Requests that reached the engine by another way, as far as a scrape tells."""
        return self.report.hidden_requests(now_s) if self.report is not None else 0.0

    def penalty_tokens(self, now_s: float) -> float:
        """What its failures make it look to hold, in prefill tokens.

        At its measured rate, but not below the prior: the rate of short prompts is a
        loose lower bound, and a penalty too large passes as soon as one too small.
        """
        seconds = self.penalty.read(now_s)
        if not seconds:
            return 0.0
        return seconds * max(PREFILL_RATE_PRIOR, self.prefill_rate.tokens_per_s)

    def penalty_requests(self, now_s: float) -> float:
        """The same in requests of the size that it is sent."""
        tokens = self.penalty_tokens(now_s)
        return tokens * self.requests_total / self.taken_tokens if tokens else 0.0

    def waiting_tokens(self, now_s: float) -> float:
        """Prefill that a new request would wait for: queued, less what the head has had done.

        Engines prefill first come, first served, so only the oldest request is
        being worked on; how far it is, the measured rate tells. Without this a
        20,000-token prompt about to finish looks like one that has just begun.
        """
        queued = self.queued_prefill_tokens
        head = next(iter(self._prefilling), None)
        if head is None:
            return queued
        done = (now_s - self._head_since_s) * self.prefill_rate.tokens_per_s
        return queued - min(max(0.0, done), head.queued_tokens)

    @property
    def head_prefill_s(self) -> float:
        """What the prompt that is being prefilled takes in all, at the measured rate."""
        head = next(iter(self._prefilling), None)
        return head.queued_tokens / self.prefill_rate.tokens_per_s if head is not None else 0.0

    def begin_prefill(self, lease: "Lease", now_s: float) -> None:
        """A lease's prompt joins the queue."""
        if not self._prefilling:
            self._head_since_s = now_s
        self._prefilling[lease] = None

    def end_prefill(self, lease: "Lease", now_s: float) -> None:
        """A lease's prompts are prefilled, or given up; the next in line is worked on."""
        if lease not in self._prefilling:
            return
        if next(iter(self._prefilling)) is lease:
            self._head_since_s = now_s
        del self._prefilling[lease]

    def advance(self, now_s: float) -> None:
        """Let prefills that must be over pass into decode. Call before reading the load.

        A plain answer shows no first token, so its prefill ends by the measured
        rate once it is at the head.
        """
        while (head := next(iter(self._prefilling), None)) is not None and head.silent:
            due_s = self._head_since_s + head.queued_tokens / self.prefill_rate.tokens_per_s
            if due_s > now_s:
                return
            head.assume_prefilled(due_s)
