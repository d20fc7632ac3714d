"""One cell of an experiment: a workload, a policy and simulated engines in discrete-event time.

Choices are made by the real gate on real leases, with what a proxy would know: token counts
with the error of its estimates, rates that it learns, no look into the engines. Each of several
routers sees only what it sent itself.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import exp
from random import Random
from typing import Final

from balancing.ask import Ask
from balancing.backend import Backend, State
from balancing.fleet import Fleet, Pool
from balancing.gate import Gate
from balancing.lease import Lease
from balancing.policies.policy import Policy
from bench.baselines.baseline import Baseline
from bench.baselines.view import View
from bench.routing.outcome import Outcome
from bench.routing.trace import Arrival, block_hashes
from bench.sim.api_server import ApiServer
from bench.sim.engine import Engine
from bench.sim.engine import Sequence as EngineSequence
from bench.sim.profiles import Gpu

# Of the logarithm of estimate / truth: a median error of 6.5 % is 0.0963 for a normal law
# (bench/RESULTS.md, estimators; the tails there are longer).
ESTIMATE_SIGMA: Final = 0.0963

MakePolicy = Callable[[Sequence[Backend], View], Policy]


@dataclass(slots=True)
class Router:
    """One proxy: its gate, and what a rule of another router's sees, where that is the policy."""

    gate: Gate
    view: View | None


class Request:
    """One request on its way: told of its tokens by the engine."""

    __slots__ = (
        "_index",
        "_outcome",
        "_uncached_tokens",
        "_view",
        "arrival",
        "last_s",
        "lease",
        "now_s",
        "sequence",
        "ttft_s",
    )

    def __init__(
        self, arrival: Arrival, lease: Lease, view: View | None, outcome: Outcome, block_tokens: int
    ) -> None:
        self.arrival = arrival
        self.lease = lease
        self._index = int(lease.backend.name)
        self._view = view
        self._uncached_tokens = view.sent(self._index, arrival) if view is not None else 0
        self._outcome = outcome
        self.ttft_s = 0.0
        self.last_s = 0.0
        hashes = block_hashes(arrival, block_tokens)
        self.sequence = EngineSequence(
            arrival.prompt_tokens, max(1, arrival.output_tokens), self, None, hashes
        )
        self.now_s = 0.0

    def token(self) -> None:
        """A token came, at `now_s`."""
        now_s = self.now_s
        lease = self.lease
        if lease.first_token_s is None:
            self.ttft_s = now_s - self.arrival.at_s
            lease.first_token(now_s)
        else:
            self._outcome.gap(now_s - self.last_s)
        lease.tokens(1)
        if self._view is not None:
            self._tell(self._view)
        self.last_s = now_s
        if self.sequence.done:
            lease.complete(now_s)
            self._outcome.add(self.arrival, self.ttft_s, now_s, self.sequence.cached_tokens)

    def _tell(self, view: View) -> None:
        generated = self.sequence.generated
        if generated == 1:
            view.began(self._index, self.arrival, self._uncached_tokens)
        view.token(self._index)
        if self.sequence.done:
            view.ended(self._index, self.arrival, generated)


class Experiment:
    """`backends` engines behind `routers` gates that do not know of each other."""

    def __init__(
        self, make: MakePolicy, profile: Gpu, *, backends: int, routers: int, seed: int
    ) -> None:
        self._profile = profile
        self._rng = Random(seed)
        self._engines = [Engine(profile, Random(f"{seed} {i}")) for i in range(backends)]
        self._apis = [ApiServer(profile.api_s) for _ in range(backends)]
        self.known: list[Backend] = []  # by all routers
        self._routers = [self._router(make, backends) for _ in range(routers)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = count()
        self._stepping = [False] * backends
        self.outcome = Outcome(backends)

    def _router(self, make: MakePolicy, backends: int) -> Router:
        known = tuple(Backend(str(i), f"http://gpu-{i}") for i in range(backends))
        for backend in known:
            backend.state = State.READY
        self.known += known
        view = View(self._engines)
        policy = make(known, view)
        fleet = Fleet((Pool("gpus", known, policy),))
        gate = Gate(lambda: fleet, Random(self._rng.getrandbits(64)))
        return Router(gate, view if isinstance(policy, Baseline) else None)

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Play all arrivals to the end of the last answer."""
        for arrival in arrivals:
            self._at(arrival.at_s, partial(self._arrive, arrival))
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        assert all(engine.idle for engine in self._engines)
        return self.outcome

    def _at(self, when_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._count), event))

    def _arrive(self, arrival: Arrival, now_s: float) -> None:
        router = self._rng.choice(self._routers)
        estimate = arrival.prompt_tokens * exp(self._rng.gauss(0.0, ESTIMATE_SIGMA))
        ask = Ask(
            "/v1/completions",
            prompt_tokens=max(1, round(estimate)),
            stream=True,
            session=arrival.session,
            tenant=arrival.tenant,
        )
        if router.view is not None:
            router.view.arrival = arrival
        lease = router.gate.choose(ask, now_s)
        index = int(lease.backend.name)
        request = Request(arrival, lease, router.view, self.outcome, self._profile.block_tokens)
        self.outcome.sent(index, arrival.prompt_tokens + arrival.output_tokens)
        ready_s = self._apis[index].ready_s(now_s)
        if ready_s > now_s:
            self._at(ready_s, partial(self._submit, index, request.sequence))
        else:
            self._submit(index, request.sequence, now_s)

    def _submit(self, index: int, sequence: EngineSequence, now_s: float) -> None:
        self._engines[index].submit(sequence, now_s)
        if not self._stepping[index]:
            self._step(index, now_s)

    def _step(self, index: int, now_s: float) -> None:
        duration_s, emissions = self._engines[index].step(now_s)
        self._stepping[index] = bool(duration_s)
        if duration_s:
            self._at(now_s + duration_s, partial(self._deliver, index, emissions))

    def _deliver(self, index: int, emissions: list[EngineSequence], now_s: float) -> None:
        for sequence in emissions:
            owner = sequence.owner
            assert isinstance(owner, Request)
            owner.now_s = now_s
            owner.token()
        self._step(index, now_s)
