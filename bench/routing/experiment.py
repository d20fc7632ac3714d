"""One cell of an experiment: a workload, a policy and simulated engines in discrete-event time.

Choices are made by the real gate on real leases, with what a proxy would know: token counts
with the error of its estimates, rates that it learns, no look into the engines. Each of several
routers sees what it sent itself, and what the others report of theirs if they share.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import exp
from random import Random
from typing import Final

from penstock.balancing.admission.controller import Admission, Rules
from penstock.balancing.admission.queued_request import Outcome as Entered
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.balancing.policies.policy import Policy
from penstock.balancing.slow_start import SlowStart
from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.view import View
from penstock.bench.routing.adversity import CALM, OUT_S, Adversity
from penstock.bench.routing.outcome import Outcome
from penstock.bench.routing.placed import PATH, Request, Router
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, block_hashes
from penstock.bench.sim.api_server import ApiServer
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.engine import Sequence as EngineSequence
from penstock.bench.sim.profiles import Gpu, slowed
from penstock.bench.wakes import Wakes

# As the monitor reads metrics, and as a backend that is back takes its share.
SCRAPE_S: Final = 2.0
SLOW_START_S: Final = 30.0

MakePolicy = Callable[[Sequence[Backend], View], Policy]


class Stranger:
    """A request that came by another way: nobody here hears of it."""

    now_s = 0.0

    def token(self) -> None:
        """A token came; not to us."""


class Experiment:
    """`backends` engines behind `routers` gates. Each tells the others its load every `share_s`."""

    def __init__(
        self,
        make: MakePolicy,
        profile: Gpu,
        *,
        backends: int,
        routers: int,
        share_s: float = 0.0,
        seed: int,
        adversity: Adversity = CALM,
        admission: bool = False,
    ) -> None:
        """`admission`: requests wait before the engines. Their clients have all the time."""
        self._profile = profile
        self._admission = admission
        self._now_s = 0.0
        self._wakes = Wakes(self._at, lambda: self._now_s)
        self._adversity = adversity
        self._share_s = share_s
        self._end_s = 0.0
        self._rng = Random(seed)
        self._seed = seed
        self._engines = [self._engine(i, backends) for i in range(backends)]
        self._alive = [0] * backends  # how many engines have died there
        self._live: list[dict[Request, None]] = [{} for _ in range(backends)]
        self._apis = [ApiServer(profile.api_s) for _ in range(backends)]
        self.known: list[Backend] = []  # by all routers
        self._routers = [self._router(make, backends) for _ in range(routers)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = count()
        self._stepping = [False] * backends
        self.outcome = Outcome(backends)

    def _engine(self, index: int, backends: int) -> Engine:
        slow = index >= backends - self._adversity.slow
        profile = slowed(self._profile) if slow else self._profile
        return Engine(profile, Random(f"{self._seed} {index}"))

    def _router(self, make: MakePolicy, backends: int) -> Router:
        known = tuple(Backend(str(i), f"http://gpu-{i}", "gpus") for i in range(backends))
        for backend in known:
            backend.state = State.READY
            backend.cache.index.capacity = self._profile.kv_tokens // BLOCK_TOKENS
        self.known += known
        view = View(self._engines)
        policy = make(known, view)
        fleet = Fleet(self._pools(known, policy))
        gate = Gate(lambda: fleet, Random(self._rng.getrandbits(64)))
        rules = Rules(enabled=self._admission)
        admission = Admission(gate, lambda: fleet, Random(0), self._wakes.soon, rules)
        self._wakes.admissions.append(admission)
        return Router(
            gate, admission, known, view if isinstance(policy, Baseline) else None, OutputLength()
        )

    def _pools(self, known: tuple[Backend, ...], policy: Policy) -> tuple[Pool, ...]:
        """How the engines are divided: not at all."""
        return (Pool("gpus", known, policy),)

    def _aim(self, ask: Ask, router: Router, now_s: float) -> Ask:
        """The request as a route aims it: there is none."""
        return ask

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Play all arrivals to the end of the last answer."""
        self._end_s = arrivals[-1].at_s
        for arrival in arrivals:
            self._at(arrival.at_s, partial(self._arrive, arrival))
        if self._share_s and len(self._routers) > 1:
            self._at(0.0, partial(self._share, 0))
        if self._adversity.hidden or self._adversity.untold or self._admission:
            self._at(0.0, self._scrape)
        if self._adversity.outage:
            end_s = arrivals[-1].at_s
            absent, mortal = len(self._engines) - 2, len(self._engines) - 1
            self._die(absent, 0.0)
            self._at(end_s / 6, partial(self._come, absent))
            self._at(end_s / 3, partial(self._die, mortal))
            self._at(end_s * 2 / 3, partial(self._come, mortal))
        for index in range(self._adversity.out):
            out_s = arrivals[-1].at_s / 2
            self._at(out_s, partial(self._die, index))
            self._at(out_s + OUT_S, partial(self._come, index))
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            self._now_s = now_s
            event(now_s)
        assert all(engine.idle for engine in self._engines)
        return self.outcome

    def _at(self, when_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._count), event))

    def _arrive(self, arrival: Arrival, now_s: float) -> None:
        hidden = self._adversity.hidden
        if hidden and self._rng.random() < hidden:
            sequence = EngineSequence(
                arrival.prompt_tokens,
                max(1, arrival.output_tokens),
                Stranger(),
                None,
                block_hashes(arrival, self._profile.block_tokens),
            )
            self._submit(self._rng.randrange(len(self._engines)), sequence, now_s)
        else:
            self._place(arrival, now_s)

    def _place(self, arrival: Arrival, now_s: float) -> None:
        router = self._rng.choice(self._routers)
        estimate = arrival.prompt_tokens * exp(self._rng.gauss(0.0, self._adversity.sigma))
        share = self._adversity.plain
        plain = share > 0.0 and self._rng.random() < share
        ask = Ask(
            PATH,
            prompt_tokens=max(1, round(estimate)),
            blocks=arrival.prefix,
            block_tokens=BLOCK_TOKENS * estimate / arrival.prompt_tokens,
            stream=not plain,
            session=arrival.session,
            tenant=arrival.tenant,
            client=arrival.tenant,
            output_tokens=router.lengths.expect(arrival.tenant, None, PATH, None),
        )
        ask = self._aim(ask, router, now_s)
        if router.view is not None:
            router.view.arrival = arrival
        ready = partial(self._send, arrival, router)
        request = QueuedRequest(ask, now_s, ready, name=arrival.tenant)
        lease = router.admission.enter(request, now_s)
        if lease is not None:
            self._send(arrival, router, lease)
        else:
            self._wakes.soon()

    def _send(self, arrival: Arrival, router: Router, lease: Entered) -> None:
        assert isinstance(lease, Lease)
        now_s = self._now_s
        index = int(lease.backend.name)
        request = Request(
            arrival,
            lease,
            router,
            self.outcome,
            self._profile.block_tokens,
            untold=self._adversity.untold,
        )
        if self._adversity.outage or self._adversity.out:
            self._live[index][request] = None
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
            life = self._alive[index]
            self._at(now_s + duration_s, partial(self._deliver, index, life, emissions))

    def _deliver(
        self, index: int, life: int, emissions: list[EngineSequence], now_s: float
    ) -> None:
        if life != self._alive[index]:
            return  # of an engine that died
        for sequence in emissions:
            owner = sequence.owner
            assert isinstance(owner, Request | Stranger)
            owner.now_s = now_s
            owner.token()
            if isinstance(owner, Request):
                if sequence.generated == 1:
                    self._misread(index, owner.lease.backend)
                if sequence.done:
                    self._live[index].pop(owner, None)
        self._step(index, now_s)

    def _share(self, number: int, now_s: float) -> None:
        """One router tells the others its loads. The next one does so a little later."""
        teller = self._routers[number]
        for router in self._routers:
            if router is not teller:
                for told, known in zip(teller.known, router.known, strict=True):
                    known.remote.take(str(number), told.own.counts, now_s)
        if self._goes_on(now_s):
            routers = len(self._routers)
            share = partial(self._share, (number + 1) % routers)
            self._at(now_s + self._share_s / routers, share)

    # Adversities ---------------------------------------------------------------------------

    def _misread(self, index: int, backend: Backend) -> None:
        """What it has just learnt of the speed is wrong."""
        wrong = self._adversity.rates_wrong
        if wrong:
            backend.prefill_speed.work_s *= 1.0 - wrong if index % 2 else 1.0 + wrong

    def _scrape(self, now_s: float) -> None:
        """Every router reads what the engines say of themselves."""
        for backend in self.known:
            engine = self._engines[int(backend.name)]
            backend.engine_requests_peak = backend.own.engine_requests
            backend.take(
                EngineReport(
                    now_s,
                    engine.running,
                    engine.waiting,
                    kv_usage=engine.kv_usage,
                    kv_tokens=self._profile.kv_tokens,
                    prefix_queries_tokens=engine.cache_queries_total,
                    prefix_hits_tokens=engine.cache_hits_total,
                    generated_tokens=engine.generation_tokens_total,
                    known_requests=backend.known_requests(now_s),
                )
            )
            backend.cache.index.capacity = self._profile.kv_tokens // BLOCK_TOKENS
        if self._goes_on(now_s):
            self._at(now_s + SCRAPE_S, self._scrape)

    def _goes_on(self, now_s: float) -> bool:
        return now_s < self._end_s or not all(engine.idle for engine in self._engines)

    def _die(self, index: int, now_s: float) -> None:
        """The engine is gone; whoever was there asks again at once, elsewhere."""
        self._alive[index] += 1
        self._engines[index] = self._engine(index, len(self._engines))
        self._stepping[index] = False
        for backend in self.known:
            if backend.name == str(index):
                backend.state = State.EJECTED
                backend.restarted()
        lost, self._live[index] = self._live[index], {}
        for request in lost:
            request.broken(now_s)
        for request in lost:
            self._place(request.arrival, now_s)

    def _come(self, index: int, now_s: float) -> None:
        """A new engine takes its place, slowly at first."""
        for router in self._routers:
            known = router.known
            backend = known[index]
            backend.state = State.WARMING
            backend.slow_start = SlowStart(now_s, SLOW_START_S)
        self._at(now_s + SLOW_START_S, partial(self._warm, index))

    def _warm(self, index: int, now_s: float) -> None:
        for router in self._routers:
            router.known[index].state = State.READY
            router.known[index].slow_start = None
