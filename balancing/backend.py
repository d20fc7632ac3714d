"""One backend as the policies see it: its load, its health, its speed.

The load is counted here at event time, because a scrape comes too late. Only a `Lease`
changes `own`. `remote` is what other replicas of this proxy report of theirs, zero while there
is only one. Policies read the sum of both.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.engine_report import EngineReport, GpuReport
from penstock.balancing.load import KeptAnswers, Load, RemoteLoad
from penstock.balancing.outliers.penalties import ClientCounter, Penalty, Refusals, Rest
from penstock.balancing.prefill_queue import Occupancy, PrefillQueue
from penstock.balancing.prefix_cache.cache import PrefixCache
from penstock.balancing.speed.estimates import (
    PRIOR_WORK_PER_S,
    DecodeSpeed,
    PeakEwma,
    PrefillSpeed,
)
from penstock.balancing.starts import ColdStart, SlowStart

# A speed measured longer ago than this is hardly believed. So a backend that looked slow, and got
# no requests, is tried again.
STALE_S: Final = 300.0
# The first such age. It doubles with each new trial, up to STALE_S, because the first few samples
# may all come from one bad moment.
STALE_FIRST_S: Final = 30.0


class State(StrEnum):
    """Health by the probes. The transitions are in `health.machine`."""

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


class Backend:
    """A vLLM server: identity, health, load and measured speed."""

    def __init__(self, name: str, url: str, pool: str = "default", weight: float = 1.0) -> None:
        self.name = name
        self.url = url
        self.pool = pool
        self.weight = weight
        self.max_requests: int | None = None  # of our own at the same time
        self.state = State.STARTING
        self.reason = "loading"
        self.admin_state = AdminState.READY
        # Model id -> its card from the backend's /v1/models. None: unread, so it serves any model.
        self.models: Mapping[str, bytes] | None = None
        # Model id -> context length, and None -> the longest of them; as far as /v1/models tells.
        self.contexts: dict[str | None, int] = {}
        self.own = Load()
        self.retrying: dict[str, int] = {}  # `own.retries` by client
        self.remote = RemoteLoad()
        self.round_trip_s = 0.0  # of the network, as the last new connection showed it
        self.requests_total = 0
        self.restarts = 0  # of its engine, as far as they were seen
        self.taken_tokens = 0  # prompt tokens of all requests ever sent here
        self.failures_total = 0
        self.failed_for = ClientCounter()
        self.ended_for = ClientCounter()  # all that an engine works on, and what failed, at its end
        self.accusers = ClientCounter()  # the clients that met the failures of the present run
        self._bares_in_row = 0  # answers without a token in a row
        self._progress_at_bare = 0
        self.bare_since_s = float("-inf")  # the first of these answers
        self.failing_since_s = float("-inf")  # the first failure of the present run
        self.progress_at_failure = 0  # `progress` at the last one
        self.penalty = Penalty()
        self.left_alone = Rest()
        self.refusals = Refusals()
        self.progress = 0  # grows whenever the engine was seen to generate
        self.doubted = False  # ejected, but perhaps able: it serves when no other can
        self.slow_start: SlowStart | None = None  # while warming
        self.back_since_s = float("-inf")  # its last return from an ejection
        self.report: EngineReport | None = None
        self.unheld_share = 0.0  # of the streams' tokens, when it came
        self.prefill_speed = PrefillSpeed()
        self.decode_speed = DecodeSpeed()
        self.prefilled_work = 0  # prefill work of all requests ever
        self.kept = KeptAnswers()
        self.latency = PeakEwma()
        self.answered_s = float("-inf")  # when an answer of its engine has begun last
        self.cache = PrefixCache()
        self._measured_s = float("-inf")  # when its speed was measured last
        self._stale_s = STALE_FIRST_S
        self.engine_requests_peak = 0  # the most of our own since the last scrape began
        self.queue = PrefillQueue()
        self.cold_start = ColdStart()
        self.gpus: GpuReport | None = None
        self.gpu_floor_s = 0.0  # in which it did nothing while requests waited
        self.occupancy: Occupancy | None = None  # who counts its requests, if anybody does

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
        """Whether it would answer, as far as probes tell."""
        return (
            self.state is State.READY or self.state is State.SUSPECT or self.state is State.WARMING
        )

    def may_finish(self, ask: Ask) -> bool:
        """Whether a draining backend may serve a request that needs no engine."""
        return not ask.engine and self.healthy and self.admin_state is AdminState.DRAIN

    @property
    def last_resort(self) -> bool:
        """Whether it was ejected on suspicion only. Then it serves when no other can."""
        return self.doubted and self.admin_state is AdminState.READY

    @property
    def can_serve(self) -> bool:
        """Whether requests may be sent here, at least when no other backend can serve."""
        return self.fit or self.last_resort

    @property
    def full(self) -> bool:
        """Whether it has all the requests that it may have."""
        return self.max_requests is not None and self.own.requests >= self.max_requests

    def is_closed(self, client: str, now_s: float) -> bool:
        """Whether it takes no request of this client now: it is full by our count or its own."""
        return self.full or self.left_alone.read(now_s, client) > 0.0

    def lists(self, model: str) -> bool:
        """Whether the backend's own list of models has this model."""
        return self.models is not None and model in self.models

    def serves(self, model: str | None) -> bool:
        """Whether it serves the model. True also while its list is unread."""
        return model is None or self.models is None or model in self.models

    def context_tokens(self, model: str | None) -> int:
        """The context length of a model. 0 if it is not reported. An adapter has its base's."""
        contexts = self.contexts
        return contexts.get(model) or contexts.get(None, 0)

    @property
    def queued_prefill_tokens(self) -> int:
        return self.own.queued_prefill_tokens + self.remote.queued_prefill_tokens

    @property
    def queued_work(self) -> int:
        return self.own.queued_work + self.remote.queued_work

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
        """Requests in the engine that no replica reports, as far as scrapes tell."""
        return self.report.hidden_requests(now_s) if self.report is not None else 0.0

    def known_requests(self, now_s: float) -> int:
        """How many requests of a scrape are explained.

        Our own peak since the last scrape began, and those that other replicas report.
        """
        self.remote.expire(now_s)
        return self.engine_requests_peak + self.remote.engine_requests

    def penalty_tokens(self, now_s: float, client: str = "") -> float:
        """The load penalty for its failures that `client` sees, in prefill tokens.

        It is converted at the measured rate, but not below the prior. The rate of short prompts is
        a loose lower bound, and a penalty that is too large passes as fast as a small one.
        """
        seconds = self.penalty.read(now_s, client)
        if not seconds:
            return 0.0
        return seconds * max(PRIOR_WORK_PER_S, self.prefill_speed.work_per_s)

    def penalty_requests(self, now_s: float, client: str = "") -> float:
        """The load penalty, in requests of the size that this backend usually gets."""
        tokens = self.penalty_tokens(now_s, client)
        return tokens * self.requests_total / self.taken_tokens if tokens else 0.0

    def waiting_tokens(self, now_s: float) -> float:
        """Prefill tokens that a new request would wait for, less those of the head already done.

        Without that a 20,000-token prompt that is about to finish would look like one that has just
        begun.
        """
        queued = self.queued_prefill_tokens
        head = self.queue.head
        if head is None:
            return queued
        return queued - head.queued_tokens * self.queue.head_done(self.prefill_speed.work_s, now_s)

    def wait_work(self, now_s: float) -> float:
        """`waiting_tokens` in units of prefill work."""
        work = float(self.queued_work)
        head = self.queue.head
        if head is not None:
            work -= head.queued_work * self.queue.head_done(self.prefill_speed.work_s, now_s)
        return work

    def wait_s(self, now_s: float) -> float:
        """The wait before a new request's prefill in seconds, at the measured speed."""
        return self.wait_work(now_s) * self.prefill_speed.work_s

    @property
    def head_prefill_s(self) -> float:
        """The longest time that the prompt in prefill can take, at the measured speed.

        As if nothing of it were cached or refused, because both are only guesses.
        """
        head = self.queue.head
        return head.whole_work * self.prefill_speed.work_s if head is not None else 0.0

    def failed(self, client: str | None) -> None:
        """Count a failure. `client`: who met it. None: no request caused it."""
        self.failures_total += 1
        self.failed_for.add(client)

    def take(self, report: EngineReport) -> None:
        """Take a new report of its engine's metrics."""
        before, self.report = self.report, report
        held = self.active_decode_tokens
        self.unheld_share = report.unheld_share(held, self.streams)
        self.cache.take(report)
        if before is None:
            return
        if report.works_since(before):
            self.progress += 1
        if report.restarted_since(before):
            self.restarted()
            self.cold_start.seen(report.at_s)

    def restarted(self) -> None:
        """Its engine restarted or was replaced: forget what was learnt about the old one."""
        self.restarts += 1
        self.left_alone.forgive()
        self.cold_start.gone()
        self.cache.forget()
        self.prefill_speed = PrefillSpeed()
        self.decode_speed = DecodeSpeed()
        self._stale_s = STALE_FIRST_S

    def prefixes_looked_for(self) -> None:
        """From now on prefixes are looked for. So far its speed took no prompt for cached."""
        self.prefill_speed = PrefillSpeed()

    @property
    def failures_in_row(self) -> int:
        return self.accusers.count

    def came_bare(self, now_s: float) -> int:
        """Count an answer without a token. Returns how many came since the engine generated any."""
        if self.progress != self._progress_at_bare:
            self._progress_at_bare = self.progress
            self._bares_in_row = 0
        if not self._bares_in_row:
            self.bare_since_s = now_s
        self._bares_in_row += 1
        return self._bares_in_row

    def pardon(self) -> None:
        """Forget what requests showed of it: it may be another server now."""
        self.accusers.clear()
        self._bares_in_row = 0
        self.refusals = Refusals()
        self.penalty.forgive()

    def measured(self, now_s: float) -> bool:
        """Whether its speed was measured lately. An old measurement says nothing.

        While it has requests that may measure it again, the old one counts for twice the time.
        """
        patience_s = 2.0 * self._stale_s if self.own.requests else self._stale_s
        return now_s - self._measured_s <= patience_s

    def refresh(self, now_s: float) -> None:
        """Note a new measurement. After a long pause the old speed loses most of its weight.

        Not all of it, or dozens of requests would take a slow backend for an ordinary one.
        """
        if now_s - self._measured_s > self._stale_s and self.prefill_speed.samples:
            self.prefill_speed.forget()
            self.decode_speed.forget()
            self._stale_s = min(STALE_S, 2.0 * self._stale_s)
        self._measured_s = now_s

    def advance(self, now_s: float) -> None:
        """Drop old reports of other replicas, and end prefills that must be over by now.

        Call it before reading the load.
        """
        if now_s > self.remote.until_s:
            self.remote.expire(now_s)
        report = self.report
        waiting = report.waits_lately(now_s) if report is not None else inf
        self.queue.advance(self.prefill_speed.work_s, now_s, waiting)
