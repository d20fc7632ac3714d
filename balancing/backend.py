"""One backend as the balancing sees it: its load, its fitness, its speed.

The load is counted here at event time because no scrape can tell it in time.
Only a `Lease` changes `own`; `remote` is what other replicas of this proxy
report and is zero while there is one. What policies read is the sum.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING, Final

from balancing.decode_speed import DecodeSpeed
from balancing.engine_report import EngineReport
from balancing.hit_correction import HitCorrection
from balancing.penalty import Penalty
from balancing.prefill_speed import PRIOR_WORK_PER_S, PrefillSpeed
from balancing.prefix_index import BLOCK_TOKENS, PrefixIndex
from balancing.slow_start import SlowStart

if TYPE_CHECKING:
    from balancing.ask import Ask
    from balancing.lease import Lease

# A speed that was measured longer ago is hardly believed: a backend that looked slow, and so got
# nothing, is tried again.
STALE_S: Final = 300.0
# Tokens awaited are estimates, those found the engine's: before a model is known, off by so much.
AWAITED_OFF: Final = 2
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

    `queued_prefill_tokens` (P): sent, not yet answered by a first token, less what the
    backend's prefix cache is thought to hold of them. `queued_work`: the same as work
    (`prefill_speed`).
    `active_decode_tokens` (K): prompt + generated tokens of requests past it.
    `streams` (N): requests past their first token. `requests`: all in flight;
    `engine_requests`: what the engine makes of them (prompts x choices each).
    `retries`: those that another engine failed before, not yet past their first token.
    """

    __slots__ = (
        "active_decode_tokens",
        "engine_requests",
        "queued_prefill_tokens",
        "queued_work",
        "requests",
        "retries",
        "sequence",
        "streams",
    )

    def __init__(self) -> None:
        self.queued_prefill_tokens = 0
        self.queued_work = 0
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
            or self.queued_work
            or self.active_decode_tokens
            or self.streams
            or self.requests
            or self.engine_requests
            or self.retries
        )


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
        "_found_hits",
        "_head_since_s",
        "_measured_s",
        "_prefilling",
        "admin_state",
        "awaited_hits",
        "back_since_s",
        "decode_speed",
        "doubted",
        "engine_requests_peak",
        "failing_since_s",
        "failures_in_row",
        "failures_total",
        "hits",
        "latency",
        "models",
        "name",
        "own",
        "penalty",
        "pool",
        "prefill_speed",
        "prefilled_work",
        "prefixes",
        "progress",
        "reason",
        "remote",
        "report",
        "requests_total",
        "slow_start",
        "state",
        "taken_tokens",
        "told_hits",
        "untold_hits",
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
        self.prefill_speed = PrefillSpeed()
        self.decode_speed = DecodeSpeed()
        self.prefilled_work = 0  # of all requests ever
        self.latency = PeakEwma()
        self.prefixes = PrefixIndex()
        self.hits = HitCorrection()
        # Prompt tokens that should have been in its cache, of requests in flight; since the last
        # report, of answers that did not tell what was; and what was, of those that did.
        self.awaited_hits = 0
        self.untold_hits = 0
        self.told_hits = 0
        self._found_hits = 0  # by its metrics, of requests that had no answer yet
        self._measured_s = float("-inf")  # when it last showed its speed
        self.engine_requests_peak = 0  # of our own, since the last scrape began
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
        return seconds * max(PRIOR_WORK_PER_S, self.prefill_speed.work_per_s)

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
        return queued - head.queued_tokens * self._head_done(head, now_s)

    def wait_work(self, now_s: float) -> float:
        """The same as work."""
        work = float(self.queued_work)
        head = next(iter(self._prefilling), None)
        if head is not None:
            work -= head.queued_work * self._head_done(head, now_s)
        return work

    def wait_s(self, now_s: float) -> float:
        """The same in seconds, at the measured speed."""
        return self.wait_work(now_s) * self.prefill_speed.work_s

    def _head_done(self, head: "Lease", now_s: float) -> float:
        """How much of the oldest prompt is prefilled, 0 to 1."""
        whole_s = head.queued_work * self.prefill_speed.work_s
        elapsed_s = now_s - self._head_since_s
        return min(1.0, max(0.0, elapsed_s / whole_s)) if whole_s else 1.0

    @property
    def head_prefill_s(self) -> float:
        """What the prompt that is being prefilled takes at the most, at the measured speed.

        As if nothing of it were cached: that it is was only a guess.
        """
        head = next(iter(self._prefilling), None)
        return head.whole_work * self.prefill_speed.work_s if head is not None else 0.0

    def cached_tokens(self, ask: "Ask", now_s: float) -> int:
        """Of its prompt, what its prefix cache probably holds."""
        expected = self.expected_tokens(ask, now_s)
        return int(expected * self.hits.ratio) if expected else 0

    def expected_tokens(self, ask: "Ask", now_s: float) -> int:
        """The same if it kept all that we sent it, and as long as we think."""
        if not ask.blocks:
            return 0
        held = self.prefixes.held(ask.blocks)
        known = held * ask.block_tokens
        if held > ask.text_blocks:
            known = ask.text_blocks * ask.block_tokens
            known += (held - ask.text_blocks) * ask.media_block_tokens
        # The last token of a prompt is never cached.
        return min(int(known), ask.prompt_tokens - 1)

    def take(self, report: EngineReport) -> None:
        """What its engine's metrics say now."""
        before, self.report = self.report, report
        if report.kv_tokens is not None:
            self.prefixes.resize(report.kv_tokens // BLOCK_TOKENS)
        if not report.awake:
            self.prefixes.clear()
        if before is None:
            self.untold_hits = self.told_hits = 0
            return
        if report.works_since(before):
            self.progress += 1
        if report.restarted_since(before):
            self.restarted()
        else:
            self._correct_hits(report.prefix_hits_tokens - before.prefix_hits_tokens)

    def _correct_hits(self, found: int) -> None:
        """Hold what its metrics found since the last report against what should have been.

        An engine counts a hit when it begins with a prompt, we when the answer is there, reports
        later: what was found and belongs to no answer is that of requests in flight, or of others.
        """
        self._found_hits = max(0, self._found_hits + found - self.told_hits)
        if self.untold_hits:
            used = min(self._found_hits, self.untold_hits)
            self.hits.observe(self.untold_hits, used)
            self._found_hits -= used
        self._found_hits = min(self._found_hits, AWAITED_OFF * self.awaited_hits)
        self.untold_hits = self.told_hits = 0

    def restarted(self) -> None:
        """Its engine began anew, maybe another one: what was learnt of the last is void."""
        self.prefixes.clear()
        self.prefill_speed = PrefillSpeed()
        self.decode_speed = DecodeSpeed()
        self.hits = HitCorrection()
        self._found_hits = self.untold_hits = self.told_hits = 0

    def measured(self, now_s: float) -> bool:
        """Whether it has shown its speed lately: what it was long ago says nothing."""
        return now_s - self._measured_s <= STALE_S

    def refresh(self, now_s: float) -> None:
        """It shows its speed; after a long time what it was is hardly believed any more.

        Nor quite forgotten: a slow one would be taken for an ordinary one by dozens of requests.
        """
        if not self.measured(now_s) and self.prefill_speed.samples:
            self.prefill_speed.forget()
            self.decode_speed.forget()
        self._measured_s = now_s

    def begin_prefill(self, lease: "Lease", now_s: float) -> None:
        """A lease's prompt joins the queue."""
        self.engine_requests_peak = max(self.engine_requests_peak, self.own.engine_requests)
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
            due_s = self._head_since_s + head.queued_work * self.prefill_speed.work_s
            if due_s > now_s:
                return
            head.assume_prefilled(due_s)
