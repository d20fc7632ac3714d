"""A gate and an admission before some backends, and what becomes of the requests that enter."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any, ClassVar

from penstock.balancing.admission.controller import Admission, Rules
from penstock.balancing.admission.dispatch import Told
from penstock.balancing.admission.dry_run import Forecast
from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queued_request import Outcome, QueuedRequest, TooLate
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.policies.policy import Explanation, Policy, all_cheapest, cheapest
from penstock.balancing.speed.estimates import prior_prefill_s

# An engine with such a prompt in its queue has no room for another one.
FILLS = 3_000
# At the speed that is assumed at first, such a prompt takes this time.
FILLS_S = FILLS / 15_000

HIGH_LOW: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}
# The low class is granted a tenth.
FLOOR: dict[str, Any] = {"shares": (0.0, 0.1), "classes": ("high", "low")}


class Priced:
    """The costs are given by name, or the work that is queued. It counts its choices.

    It inherits nothing: what is compiled has no interpreted heirs.
    """

    needs_sessions: ClassVar[bool] = False
    needs_prefixes: ClassVar[bool] = False
    costs_seconds: ClassVar[bool] = False

    def __init__(self, prices: Mapping[str, float] | None = None) -> None:
        self.prices = prices
        self.choices = 0

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        self.choices += 1
        return cheapest(fit, self.costs(fit, ask, now_s), rng)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        """Nothing is counted."""

    @property
    def homes(self) -> None:
        return None

    def home(self, ask: Ask) -> str | None:
        return None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        """Nothing is learnt of sessions."""

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return all_cheapest(fit, self.costs(fit, ask, now_s))

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        """There is nothing to follow."""

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        if self.prices is not None:
            return [self.prices[each.name] for each in fit]
        return [float(each.queued_work) for each in fit]


def ready(name: str, kv_tokens: int | None = None) -> Backend:
    backend = Backend(name, "http://127.0.0.1:1", "p")
    backend.state = State.READY
    backend.prefill_speed.observe(FILLS, prior_prefill_s(FILLS))
    # Without a report an engine is taken for free. This one tells nothing else, and is never old.
    told = EngineReport(1e9, waiting=1_000_000) if kv_tokens is None else None
    backend.take(told or EngineReport(0.0, kv_tokens=kv_tokens))
    return backend


class Door:
    """Requests enter at it. `told`: what became of those that had to wait, in that order."""

    def __init__(
        self,
        *names: str,
        prices: Mapping[str, float] | None = None,
        kv_tokens: int | None = None,
        max_requests: int | None = None,
        wakes_at_once: bool = True,
        **rules: Any,
    ) -> None:
        """`wakes_at_once`: as the proxy does in the turn in which a request has begun to wait."""
        self.wakes_at_once = wakes_at_once
        self.backends = tuple(ready(name, kv_tokens) for name in names)
        self.policy = Priced(prices)
        self.rng = Random(2)
        self.fleet = Fleet((Pool("p", self.backends, self.policy, max_requests=max_requests),))
        self.gate = Gate(lambda: self.fleet, Random(1))
        rules = {"enabled": True} | rules
        self.admission = Admission(
            self.gate, lambda: self.fleet, self.rng, self._changed, Rules(**rules)
        )
        self.changes = 0
        self.told: list[Told] = []
        self.leases: dict[QueuedRequest, Lease] = {}
        self.refused: dict[QueuedRequest, TooLate] = {}

    def _changed(self) -> None:
        self.changes += 1

    # Requests ------------------------------------------------------------------------------------

    def request(
        self,
        tokens: int,
        since_s: float = 0.0,
        *,
        name: str = "",
        rank: int = 0,
        deadline_s: float = inf,
        impatient: bool = True,
        dry: bool = False,
        tried: Sequence[Backend] = (),
        **fields: Any,
    ) -> QueuedRequest:
        fields = {"prompt_tokens": tokens, "stream": True} | fields
        ask = Ask("/v1/completions", **fields)

        def told(outcome: Outcome) -> None:
            self.told.append((request, outcome))

        request = QueuedRequest(
            ask, since_s, told, name, rank, deadline_s, impatient=impatient, dry=dry
        )
        request.tried = tuple(tried)
        request.again = bool(request.tried)
        return request

    def enter(self, tokens: int, now_s: float = 0.0, **fields: Any) -> QueuedRequest:
        """A request comes."""
        request = self.request(tokens, now_s, **fields)
        self.come(request, now_s)
        return request

    def come(self, request: QueuedRequest, now_s: float) -> None:
        outcome = self.admission.enter(request, now_s)
        if outcome is None:
            if self.wakes_at_once:
                self.wake(now_s)
        elif isinstance(outcome, TooLate):
            self.refused[request] = outcome
        else:
            self.leases[request] = outcome

    def forecast(self, tokens: int, now_s: float = 0.0, **fields: Any) -> Forecast:
        """What would become of it."""
        return self.admission.forecast(self.request(tokens, now_s, dry=True, **fields), now_s)

    def wake(self, now_s: float) -> list[QueuedRequest]:
        """Returns who is sent. The others are in `told`."""
        outcomes: list[Told] = []
        self.admission.wake(now_s, outcomes)
        sent = []
        for request, outcome in outcomes:
            request.ready(outcome)
            if isinstance(outcome, Lease):
                self.leases[request] = outcome
                sent.append(request)
            elif isinstance(outcome, TooLate):
                self.refused[request] = outcome
        return sent

    def first(self, request: QueuedRequest, now_s: float) -> None:
        """Its first token comes."""
        self.leases[request].first_token(now_s)

    def finish(self, request: QueuedRequest, now_s: float, tokens: int = 1) -> None:
        """Its answer is whole, of so many tokens."""
        lease = self.leases[request]
        lease.first_token(now_s)
        lease.tokens(max(0, tokens - lease.generated_tokens))
        lease.complete(now_s, tokens)

    def open_up(self, now_s: float, place: int = 0) -> None:
        """The first prompt of a backend has its first token."""
        for lease in self.leases.values():
            if lease.backend is self.backends[place] and lease.prefilling and not lease.ended:
                lease.first_token(now_s)
                return
        raise AssertionError(place)

    def report(self, now_s: float, **fields: Any) -> None:
        """Each engine reports its cache, as large as before, and that it holds what is known."""
        for backend in self.backends:
            tokens = backend.report.kv_tokens if backend.report is not None else None
            running = sum(
                each.backend is backend for each in self.leases.values() if not each.ended
            )
            usage = min(1.0, backend.active_decode_tokens / tokens) if tokens else 0.0
            found = {"running": running, "kv_usage": usage, "kv_tokens": tokens} | fields
            backend.take(EngineReport(now_s, **found))

    # What is seen --------------------------------------------------------------------------------

    def where(self, request: QueuedRequest) -> str:
        """The name of its backend."""
        return self.leases[request].backend.name

    def is_sent(self, request: QueuedRequest) -> bool:
        return request in self.leases

    @property
    def running(self) -> list[QueuedRequest]:
        return [each for each, lease in self.leases.items() if not lease.ended]

    @property
    def pool(self) -> PoolQueue:
        return self.admission.pools["p"]

    def outcomes(self) -> list[type]:
        """The kinds of what those were told that waited."""
        return [type(outcome) for _, outcome in self.told]


def full(*names: str, **rules: Any) -> Door:
    """Each backend has a long prompt before it."""
    door = Door(*names, **rules)
    for _ in names:
        door.enter(FILLS, name="before")
    assert all(backend.own.requests == 1 for backend in door.backends)
    return door


def taught(door: Door, name: str, tokens: int, count: int = 20, now_s: float = 0.0) -> None:
    """A tenant has had so many answers of this length."""
    for _ in range(count):
        door.finish(door.enter(10, now_s, name=name), now_s, tokens)


def asks(door: Door, name: str, now_s: float, tokens: int = 4_000, **fields: Any) -> None:
    """A tenant asks for something, whatever becomes of it. An answer comes at once."""
    request = door.enter(tokens, now_s, name=name, **{"max_tokens": 1} | fields)
    if door.is_sent(request):
        door.finish(request, now_s)
    else:
        door.admission.leave(request, now_s)
