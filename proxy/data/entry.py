"""The entry of one request to a backend: at once, after a wait, or not at all.

The same for its first attempt and for all that follow a failure.
"""

import logging
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.balancing.adapters import NotLoaded
from penstock.balancing.admission.dispatch import STAYS_S
from penstock.balancing.admission.queued_request import (
    Elsewhere,
    Outcome,
    QueuedRequest,
    TooLate,
    WaitReason,
)
from penstock.balancing.ask import Ask
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.fleet import Pool, UnknownModel
from penstock.balancing.gate import Full, NoBackend, OwnerAway, UnknownResponse
from penstock.balancing.lease import Lease
from penstock.balancing.routes.decision import Target
from penstock.proxy.data.adapters import WAIT_S, Waiter
from penstock.proxy.data.budgets import ESTIMATE_OFF
from penstock.proxy.data.failover import NO_BACKENDS, Failover
from penstock.proxy.data.own_headers import budget_headers
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.route_changes import cap
from penstock.proxy.data.routing import (
    costs_less_elsewhere,
    fallbacks_ahead,
    falls_back,
    loads,
    next_fallback,
    route,
)
from penstock.proxy.data.service_classes import ASKED, queue_of
from penstock.proxy.errors.client import ContextLengthExceeded, ModelNotFound, ResponseNotFound
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import ContextTooLongNow

logger = logging.getLogger(__name__)


class Relieved(Exception):
    """A step sends the request to the fall-back that its route has for overload."""


# Why a request comes to no backend, and which fall-backs of its route are for that.
UNSERVED: Final = (
    *(UnknownModel, NoBackend, UnknownResponse, OverContext, Full),
    *(ContextTooLongNow, Relieved, NotLoaded),
)
CAUSES: Final[dict[type, str]] = {
    NoBackend: "no_backend",
    NotLoaded: "no_backend",
    UnknownModel: "no_backend",
    TooLate: "overload",
    Full: "overload",
    Relieved: "overload",
    OverContext: "context",
    ContextTooLongNow: "context",
}


def _nothing(outcome: Lease | PenstockError | None) -> None:
    """Nobody waits any more."""


class Entry:
    """One request before admission."""

    def __init__(
        self,
        plane: DataPlane,
        request: Request,
        failover: Failover,
        admitted: Callable[[Lease | PenstockError | None], None],
    ) -> None:
        """`admitted` is called after a wait: with the lease, with the error for the client, or with
        None if the request may enter again, elsewhere."""
        self._plane = plane
        self._request = request
        self._failover = failover
        self._admitted = admitted
        self._queued: QueuedRequest | None = None
        # A reload may change the classes while it waits: it keeps the name of its own.
        self._class = ""
        self._routed = False
        self._has_waited = False
        self._impatient = False  # its client waits for less than its class
        self._adapter: Waiter | None = None  # while a backend loads its adapter
        self._adapter_by_s = 0.0  # how long it waits for that at most, once it does
        self._excused_s = 0.0  # for how long it has waited for what does not count
        self._since_s = 0.0  # since when it waits, as its first `QueuedRequest` said

    @property
    def waits(self) -> bool:
        return self._adapter is not None or (
            self._queued is not None and self._queued.wait is not None
        )

    def promised(self) -> None:
        """Its client has got its 200: it is not refused any more because its class waits no longer.
        What the client itself allows still ends its wait."""
        if self._queued is not None and not self._queued.impatient:
            self._queued.deadline_s = inf

    def enter(self, party: str, now_s: float) -> Lease | None:
        """The lease if it is sent at once. None: it waits. Raises PenstockError.

        `party`: whom the client's address stands for.
        """
        plane, ask = self._plane, self._request.ask
        budgets = plane.budgets.tenants
        if ask.limited and ask.tenant in budgets and self._request.charge is None:
            self._charge(now_s)
        if not self._routed and plane.routes.rules:
            self._routed = True
            route(plane, self._request)
        elif self._failover.fallback is not None:
            self._turn("errors", self._failover.fallback)
        while True:
            try:
                outcome = self._try(party, now_s)
            except UNSERVED as error:  # kept in no name: it would keep this frame, and that it
                self._fall_back(error, now_s)
                continue
            if not isinstance(outcome, TooLate):
                return outcome
            self._fall_back(outcome, now_s)

    def _fall_back(self, error: Exception | TooLate, now_s: float) -> None:
        """Turn to a fall-back for what keeps it from a backend. Raises PenstockError."""
        if not self._falls_back(error):
            raise self._told(error, now_s) from None

    def _try(self, party: str, now_s: float) -> Lease | TooLate | None:
        plane, ask, tried = self._plane, self._request.ask, self._failover.tried
        retry = self._failover.retries
        if self._request.way is not None and plane.adapters.paths and self._loads(now_s):
            return None
        if not plane.admission.enabled:
            return plane.gate.choose(ask, now_s, tried, retry=retry)
        queued = self._queued or self._new_queued(party, now_s)
        queued.ask, queued.tried, queued.retry = self._request.ask, tried, retry
        queued.again = self._request.record.attempts > 0
        if self._class in plane.classes.names:  # a reload may have moved it
            queued.rank = plane.classes.names.index(self._class)
        if self._request.way is not None or self._request.kept is not None:
            queued.elsewhere = self._has_place
        if tried:  # what a failure took is not what it has waited
            left_s = self._request.patience.next_s(started=False) - now_s
            queued.since_s, queued.deadline_s = now_s, min(queued.deadline_s, left_s)
        self._since_s = queued.since_s
        outcome = plane.admission.enter(queued, now_s)
        if outcome is None:
            self._request.record.waits(queued.reason or WaitReason.TURN, now_s)
            self._request.record.predicted_s = queued.predicted_s
            plane.wakes.soon()
        elif isinstance(outcome, Lease) and not queued.again:
            plane.metrics.admitted.add(self._class, "yes" if self._has_waited else "no")
        return outcome

    def _loads(self, now_s: float) -> bool:
        """Whether it waits for a backend that loads its adapter. Raises NotLoaded."""
        plane, ask = self._plane, self._request.ask
        if ask.response_id is not None or (ask.pool, ask.model) not in plane.adapters.paths:
            return False
        by_s = self._adapter_by_s or now_s + WAIT_S
        tried = self._failover.tried
        self._adapter = plane.adapters.wait(ask, tried, by_s, now_s, self._loaded)
        if self._adapter is None:
            return False
        self._adapter_by_s = by_s
        self._request.record.waits(WaitReason.ADAPTER, now_s)
        return True

    def _would_load(self, now_s: float) -> bool:
        """Whether a backend may load its adapter, after a wait in vain. It enters anew then."""
        adapters, queued = self._plane.adapters, self._queued
        if not adapters.paths or queued is None:
            return False
        try:
            waits = adapters.foreseen(self._request.ask, now_s, queued.tried).waits
        except (NotLoaded, OverContext):
            return False
        if waits and not queued.tried:  # a backend that failed it may have it again
            self._failover.tried = NO_BACKENDS
        return waits

    def _loaded(self, late: bool) -> None:
        """A load is over, or its time is. A class does not pay for that."""
        now_s = self._plane.now()
        self._adapter = None
        waited_s = self._request.record.waited(WaitReason.ADAPTER, now_s)
        self._excused_s += waited_s
        if self._queued is not None:
            self._queued.since_s += waited_s
        self._admitted(self._after(NotLoaded(0.0), now_s) if late else None)

    def _falls_back(self, error: Exception | TooLate) -> bool:
        """Whether its route has a fall-back for what keeps it from a backend. It goes there next.

        It enters that pool with a new `QueuedRequest`. The time that it has waited still counts.
        """
        if self._request.way is None:
            return False
        cause = CAUSES.get(type(error), "")
        if cause == "no_backend" and not isinstance(error, UnknownModel):
            cause = self._cause
        return bool(cause) and self._turn(cause)

    @property
    def _cause(self) -> str:
        return "errors" if self._failover.tried else "no_backend"

    def _has_place(self) -> bool:
        """Whether nothing need be held while no backend of its pool can serve: its route has a
        place for it, or there is an answer for its client."""
        request = self._request
        if request.kept is not None:
            return True
        return next_fallback(self._plane, request.ask, request.way, self._cause) is not None

    def _turn(self, cause: str, to: Target | None = None) -> bool:
        """Turn to this fall-back for this cause, or to the next. False: there is none."""
        way = self._request.way
        if way is None:
            return False
        pool = way.target.pool
        if not falls_back(self._plane, self._request, cause, to):
            return False
        self._failover.turned(elsewhere=way.target.pool != pool)
        self._queued = None
        return True

    def end(self, now_s: float) -> None:
        """The request is over. If it still waits, its client has left, or its time is over."""
        if self._adapter is not None:
            self._request.record.waited(WaitReason.ADAPTER, now_s)
            self._plane.adapters.leave(self._adapter)
            self._adapter = None
        elif self._queued is not None and self._queued.wait is not None:
            self._waited(now_s)
            self._plane.admission.leave(self._queued, now_s)
        self._queued = None
        self._admitted = _nothing  # a reference cycle: only the collector would free it

    def _charge(self, now_s: float) -> None:
        """Charge the tenant's budget beforehand, and tell what is left. Raises PenstockError."""
        plane, request = self._plane, self._request
        try:
            request.charge = plane.budgets.charge(request.ask, now_s)
        finally:
            request.answer.tell(budget_headers(plane, request.head))

    def _new_queued(self, party: str, now_s: float) -> QueuedRequest:
        plane, request = self._plane, self._request
        classes = plane.classes
        asked = request.head.get(ASKED)
        rank = classes.rank_of(request.head.tenant, asked, request.ask.service_tier)
        self._class = request.record.service_class = classes.names[rank]
        request.service_class, priority = classes.told[rank]
        if request.ask.engine:
            request.rank(priority)
        patience_s = request.patience.begins_within_s
        deadline_s, self._impatient = classes.deadline_of(rank, patience_s)
        name = request.head.tenant or queue_of(party, plane.salt)
        if plane.degradation.steps:
            degrade(plane, request, name, rank, now_s)
        began_s = request.record.received_s + self._excused_s
        queued = self._queued = QueuedRequest(
            request.ask,
            began_s,
            self._ready,
            name,
            rank,
            deadline_s,
            impatient=self._impatient,
        )
        return queued

    def _ready(self, outcome: Outcome) -> None:
        now_s = self._plane.now()
        if self._queued is None:  # the request has ended before it was told
            if isinstance(outcome, Lease):
                outcome.end(now_s)
            return
        if isinstance(outcome, Elsewhere):
            self._go_elsewhere(self._queued, now_s)
            return
        self._waited(now_s)
        if isinstance(outcome, Lease) and not self._queued.again:
            self._plane.metrics.admitted.add(self._class, "yes")
        if isinstance(outcome, Lease):
            self._admitted(outcome)
        else:
            self._admitted(self._after(outcome, now_s))

    def _go_elsewhere(self, queued: QueuedRequest, now_s: float) -> None:
        """A fall-back can serve it, or load its adapter. It is held on until that is loaded, and
        if it would be refused there: those that went there in this moment may have taken what
        there was."""
        if queued.wait is None or queued.wait.parked_s is None:
            return  # a backend of its own pool has it, or will have
        plane, request = self._plane, self._request
        since_s = now_s - queued.waited_s(now_s)
        came_s = request.record.received_s + self._excused_s + since_s - self._since_s

        for there in fallbacks_ahead(plane, request.ask, request.way, self._cause):
            if loads(plane, there):  # it may fail, so the request stays where it is meanwhile
                plane.adapters.begin(there, now_s)
                break
            if not plane.admission.would_refuse(queued, there, came_s, now_s):
                plane.admission.leave(queued, now_s)
                self._ready(NoBackend())
                return
        queued.wait.stays_s = now_s + STAYS_S

    def _after(self, error: Exception | TooLate, now_s: float) -> PenstockError | None:
        """What its client is told after a wait in vain. None: it falls back."""
        if isinstance(error, NoBackend) and self._would_load(now_s):
            return None  # who had its adapter is gone, or is back without it
        try:
            return None if self._falls_back(error) else self._told(error, now_s)
        except PenstockError as told:
            return told

    def _waited(self, now_s: float) -> None:
        assert self._queued is not None
        self._has_waited = True
        self._excused_s += self._queued.since_s - self._since_s
        waited_s = self._request.record.waited(self._queued.reason or WaitReason.TURN, now_s)
        self._plane.metrics.waited(self._class, waited_s)

    def _told(self, error: Exception | TooLate, now_s: float) -> PenstockError:
        plane, ask = self._plane, self._request.ask
        if isinstance(error, TooLate):
            hint_s, wait_s = error.retry_after_s, error.predicted_s
            return plane.refusals.too_late(hint_s, wait_s, self._class, own=self._impatient)
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, UnknownModel):
            return ModelNotFound(ask.model)
        if isinstance(error, OverContext):
            return ContextLengthExceeded(error.context_tokens)
        if isinstance(error, Full):
            return plane.refusals.full(error.busy_s)
        if isinstance(error, OwnerAway):
            return plane.refusals.out_of_reach()
        if isinstance(error, UnknownResponse):
            return ResponseNotFound(ask.response_id)
        if isinstance(error, NoBackend):
            return self._failover.nobody(now_s)
        if isinstance(error, NotLoaded):
            failed = self._failover.nobody(now_s) if self._failover.tried else None
            return failed or plane.refusals.not_loaded(error.retry_after_s)
        request_id = self._request.answer.request_id.decode()
        logger.error("admission failed request_id=%s", request_id, exc_info=error)
        return PenstockError()


def degrade(plane: DataPlane, request: Request, name: str, rank: int, now_s: float) -> None:
    """Do what the steps of its class that are in force say. `name`: whose turns it waits for.

    Raises Relieved, ContextTooLongNow, and UnknownModel.

    That is decided once for each pool: a later attempt at another backend has the same edits.
    Requests that generate nothing never wait, so no step is for them.
    """
    ask, classes = request.ask, plane.classes
    if not classes.steps or not (ask.engine and ask.generates):
        return
    if not classes.may_degrade(request.head.tenant):
        return
    pool = plane.admission.pools.get(_pool_of(plane.fleet.resolve(ask), ask).name)
    most, longest, fall_back = plane.degradation.limits(
        pool, name, rank, classes.max_wait_s[rank], now_s
    )
    if fall_back and costs_less_elsewhere(plane, request, rank):
        _tell(request, "fall_back")
        raise Relieved
    if longest is not None and ask.prompt_tokens > longest * (1.0 if ask.counted else ESTIMATE_OFF):
        raise plane.refusals.too_long_now(longest)
    if most is not None and cap(request, most):
        _tell(request, f"max_tokens={most}")


def _tell(request: Request, what: str) -> None:
    """Tell its client and its record. With any answer: a stream may get its 200 while it waits."""
    record = request.record
    record.degraded = f"{record.degraded}, {what}" if record.degraded else what
    request.answer.tell([(b"x-penstock-degraded", what.encode())])


def _pool_of(pools: list[Pool], ask: Ask) -> Pool:
    """The one that it goes to: the first with a backend for it."""
    for pool in pools:
        for backend in pool.backends:
            if backend.fit and backend.serves(ask.model):
                return pool
    return pools[0]
