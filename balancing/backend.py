"""One backend as the balancing sees it: its load, its fitness, its speed.

The load is counted here at event time because no scrape can tell it in time.
Only a `Lease` changes `own`; `remote` is what other replicas of this proxy
report and is zero while there is one. What policies read is the sum.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from balancing.accusers import Accusers
from balancing.cache_shadow import CacheShadow
from balancing.decode_speed import DecodeSpeed
from balancing.engine_report import EngineReport
from balancing.latency import PeakEwma
from balancing.load import Load
from balancing.penalty import Penalty
from balancing.prefill_speed import PRIOR_WORK_PER_S, PrefillSpeed
from balancing.refusals import Refusals
from balancing.slow_start import SlowStart

if TYPE_CHECKING:
    from balancing.ask import Ask
    from balancing.lease import Lease

# A speed that was measured longer ago is hardly believed: a backend that looked slow, and so got
# nothing, is tried again.
STALE_S: Final = 300.0
# At first, and twice as long after each time that it was tried again: the first few samples may be
# of one bad moment.
STALE_FIRST_S: Final = 30.0
# More than there are APIs.
PATHS_MAX: Final = 64


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


class Backend:
    """A vLLM server: identity, health, load and measured speed."""

    __slots__ = (
        "_head_since_s",
        "_measured_s",
        "_prefilling",
        "_stale_s",
        "accusers",
        "admin_state",
        "back_since_s",
        "cache",
        "contexts",
        "decode_speed",
        "doubted",
        "engine_requests_peak",
        "failing_since_s",
        "failures_total",
        "latency",
        "models",
        "name",
        "own",
        "penalty",
        "pool",
        "prefill_speed",
        "prefilled_work",
        "progress",
        "reason",
        "refusals",
        "remote",
        "report",
        "requests_total",
        "retrying",
        "served",
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
        # Of them, how long a prompt each takes, and any at the most (None); where that is told.
        self.contexts: Mapping[str | None, int] = {}
        self.own = Load()
        self.retrying: dict[str, int] = {}  # of `own.retries`, how many are whose
        self.remote = Load()
        self.requests_total = 0
        self.taken_tokens = 0  # prompt tokens of all requests ever sent here
        self.failures_total = 0
        self.accusers = Accusers()  # who met the failures of the present row
        self.served: set[str] = set()  # paths that had a whole answer of its engine
        self.failing_since_s = float("-inf")  # the first failure of the present row
        self.penalty = Penalty()
        self.refusals = Refusals()
        self.progress = 0  # moves whenever the engine was seen to generate
        self.doubted = False  # ejected on suspicion: better than nobody
        self.slow_start: SlowStart | None = None  # while warming
        self.back_since_s = float("-inf")  # the last return from an ejection
        self.report: EngineReport | None = None
        self.prefill_speed = PrefillSpeed()
        self.decode_speed = DecodeSpeed()
        self.prefilled_work = 0  # of all requests ever
        self.latency = PeakEwma()
        self.cache = CacheShadow()
        self._measured_s = float("-inf")  # when it last showed its speed
        self._stale_s = STALE_FIRST_S
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

    def context_tokens(self, model: str | None) -> int:
        """How long a prompt it takes, 0 where it did not tell. An adapter's is its base's."""
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
        """Requests that reached the engine by another way, as far as a scrape tells."""
        return self.report.hidden_requests(now_s) if self.report is not None else 0.0

    def penalty_tokens(self, now_s: float, client: str = "") -> float:
        """What its failures make it look to hold to a client, in prefill tokens.

        At its measured rate, but not below the prior: the rate of short prompts is a
        loose lower bound, and a penalty too large passes as soon as one too small.
        """
        seconds = self.penalty.read(now_s, client)
        if not seconds:
            return 0.0
        return seconds * max(PRIOR_WORK_PER_S, self.prefill_speed.work_per_s)

    def penalty_requests(self, now_s: float, client: str = "") -> float:
        """The same in requests of the size that it is sent."""
        tokens = self.penalty_tokens(now_s, client)
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

        As if nothing of it were cached or refused: that it is was only a guess.
        """
        head = next(iter(self._prefilling), None)
        return head.whole_work * self.prefill_speed.work_s if head is not None else 0.0

    def take(self, report: EngineReport) -> None:
        """What its engine's metrics say now."""
        before, self.report = self.report, report
        self.cache.take(report, before)
        if before is None:
            return
        if report.works_since(before):
            self.progress += 1
        if report.restarted_since(before):
            self.restarted()

    def restarted(self) -> None:
        """Its engine began anew, maybe another one: what was learnt of the last is void."""
        self.cache.restarted()
        self.prefill_speed = PrefillSpeed()
        self.decode_speed = DecodeSpeed()
        self._stale_s = STALE_FIRST_S

    @property
    def failures_in_row(self) -> int:
        return self.accusers.count

    def pardon(self) -> None:
        """What requests told of it is void: it may be another server now."""
        self.accusers.clear()
        self.refusals = Refusals()
        self.penalty.forgive()

    def has_served(self, path: str) -> None:
        """Its engine gave a whole answer to such a request."""
        if len(self.served) < PATHS_MAX:
            self.served.add(path)

    def measured(self, now_s: float) -> bool:
        """Whether it has shown its speed lately: what it was long ago says nothing.

        Where it is tried again already, what that shows is waited for, but not for ever.
        """
        patience_s = 2.0 * self._stale_s if self.own.requests else self._stale_s
        return now_s - self._measured_s <= patience_s

    def refresh(self, now_s: float) -> None:
        """It shows its speed; after a long time what it was is hardly believed any more.

        Nor quite forgotten: a slow one would be taken for an ordinary one by dozens of requests.
        """
        if now_s - self._measured_s > self._stale_s and self.prefill_speed.samples:
            self.prefill_speed.forget()
            self.decode_speed.forget()
            self._stale_s = min(STALE_S, 2.0 * self._stale_s)
        self._measured_s = now_s

    def begin_prefill(self, lease: "Lease", now_s: float) -> None:
        """A lease's prompt joins the queue."""
        self.engine_requests_peak = max(self.engine_requests_peak, self.own.engine_requests)
        if not self._prefilling:
            self._head_since_s = now_s
        self._prefilling[lease] = None

    def overtake(self, lease: "Lease", now_s: float) -> None:
        """A lease has its first token, so those before it whose answers do not show theirs have
        theirs too: engines prefill first come, first served."""
        if len(self._prefilling) < 2 or lease not in self._prefilling:
            return
        if next(iter(self._prefilling)) is lease:
            return
        before = []
        for each in self._prefilling:
            if each is lease:
                break
            if each.silent:
                before.append(each)
        for each in before:
            each.assume_prefilled(now_s)

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
