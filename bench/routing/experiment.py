"""One cell of an experiment: a workload, a policy and simulated engines in discrete-event time.

Choices are made by the real gate on real leases, with what a proxy would know: token counts
with the error of its estimates, rates that it learns, no look into the engines. Each of several
routers sees what it sent itself, and what the others report of theirs if they share.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from random import Random
from typing import Final

from penstock.balancing.admission.controller import Admission, Rules
from penstock.balancing.admission.queued_request import Outcome as Entered
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.balancing.policies.policy import Policy
from penstock.balancing.starts import SlowStart
from penstock.bench.baselines import Baseline, View
from penstock.bench.routing.outcome import Outcome
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, block_hashes
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.engine import Sequence as EngineSequence
from penstock.bench.sim.profiles import Gpu, slowed
from penstock.bench.sim.pump import ApiServer
from penstock.bench.virtual_time import Engines, Stranger

PATH: Final = "/v1/completions"
# As the monitor reads metrics, and as a backend that is back takes its share.
SCRAPE_S: Final = 2.0
SLOW_START_S: Final = 30.0

# Of the logarithm of estimate / truth: a median error of 6.5 % is 0.0963 for a normal law
# (bench/history/2026-11.md, estimators; the tails there are longer).
ESTIMATE_SIGMA: Final = 0.0963
# About what an engine takes to start again with its weights in memory.
OUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Adversity:
    """What goes otherwise than a router thinks, or anybody wants. Part of a cell's coordinates.

    `slow`: so many of the engines, the last ones, take twice the time for everything. `hidden`:
    this share of the requests reaches engines drawn at random by another way, seen only in the
    engines' metrics. `sigma`: error of prompt estimates (standard deviation of the logarithm).
    `rates_wrong`: learnt prefill speeds are read this much too high at every other backend, too low
    at the rest. `outage`: of the last two backends one joins when a sixth of the trace is over; the
    other dies after a third, with all that it was doing, and is back after two. `out`: so many of
    the backends, the first ones, die when half of the trace is over and are back OUT_S later.
    `plain`: this share of the answers come whole, so that no first token is seen. `untold`: answers
    do not tell how much of their prompt was cached, and only the engines' metrics do, as without
    vLLM's `--enable-prompt-tokens-details`.
    """

    slow: int = 0
    hidden: float = 0.0
    sigma: float = ESTIMATE_SIGMA
    rates_wrong: float = 0.0
    outage: bool = False
    out: int = 0
    plain: float = 0.0
    untold: bool = False

    def __str__(self) -> str:
        """What differs from an ordinary day."""
        told = {
            f"{self.slow} at half speed": self.slow,
            f"{self.hidden:.0%} by another way": self.hidden,
            f"estimates off by {self.sigma:.0%}": self.sigma != ESTIMATE_SIGMA,
            f"rates wrong by {self.rates_wrong:.0%}": self.rates_wrong,
            "one joins, one dies and comes back": self.outage,
            f"{self.out} out for {OUT_S:g} s": self.out,
            f"{self.plain:.0%} not streamed": self.plain,
            "cached tokens told by metrics only": self.untold,
        }
        return ", ".join(text for text, differs in told.items() if differs)


CALM: Final = Adversity()


@dataclass(slots=True)
class Router:
    """One proxy: its gate, and what a rule of another router's sees, where that is the policy."""

    gate: Gate
    admission: Admission
    known: tuple[Backend, ...]
    view: View | None
    lengths: OutputLength


class Request:
    """One request on its way: told of its tokens by the engine."""

    def __init__(
        self,
        arrival: Arrival,
        lease: Lease,
        router: Router,
        outcome: Outcome,
        block_tokens: int,
        *,
        untold: bool,
    ) -> None:
        view = router.view
        self._untold = untold
        self.arrival = arrival
        self.lease = lease
        self._lengths = router.lengths
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
        stream = lease.ask.stream
        if not self.last_s:
            self.ttft_s = now_s - self.arrival.at_s
        else:
            self._outcome.gap(now_s - self.last_s)
        if lease.first_token_s is None and (stream or self.sequence.done):
            lease.first_token(now_s)
        if stream:
            lease.tokens(1)
        if self._view is not None:
            self._tell(self._view)
        self.last_s = now_s
        if self.sequence.done:
            cached_tokens = None if self._untold else self.sequence.cached_tokens
            lease.settle(self.arrival.prompt_tokens, cached_tokens)
            lease.complete(now_s, self.sequence.generated)
            self._lengths.observe(self.arrival.tenant, None, PATH, None, self.sequence.generated)
            self._outcome.add(self.arrival, self.ttft_s, now_s, self.sequence.cached_tokens)

    def broken(self, now_s: float) -> None:
        self.lease.fail(now_s, suspicious=False, penal=False)
        if self._view is not None:
            if self.sequence.generated == 0:
                self._view.began(self._index, self.arrival, self._uncached_tokens)
            self._view.ended(self._index, self.arrival, self.sequence.generated)

    def _tell(self, view: View) -> None:
        generated = self.sequence.generated
        if generated == 1:
            view.began(self._index, self.arrival, self._uncached_tokens)
        view.token(self._index)
        if self.sequence.done:
            view.ended(self._index, self.arrival, generated)


MakePolicy = Callable[[Sequence[Backend], View], Policy]


class Experiment(Engines):
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
        self._adversity = adversity
        self._share_s = share_s
        self._end_s = 0.0
        self._rng = Random(seed)
        self._seed = seed
        super().__init__([self._engine(i, backends) for i in range(backends)])
        self._live: list[dict[Request, None]] = [{} for _ in range(backends)]
        self._apis = [ApiServer(profile.api_s) for _ in range(backends)]
        self.known: list[Backend] = []  # by all routers
        self._routers = [self._router(make, backends) for _ in range(routers)]
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
        view = View(self.engines)
        policy = make(known, view)
        fleet = Fleet(self._pools(known, policy))
        gate = Gate(lambda: fleet, Random(self._rng.getrandbits(64)))
        rules = Rules(enabled=self._admission)
        admission = Admission(gate, lambda: fleet, Random(0), self.wake_soon, rules)
        self.admissions.append(admission)
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
            self.at(arrival.at_s, partial(self._arrive, arrival))
        if self._share_s and len(self._routers) > 1:
            self.at(0.0, partial(self._share, 0))
        if self._adversity.hidden or self._adversity.untold or self._admission:
            self.at(0.0, self._scrape)
        if self._adversity.outage:
            end_s = arrivals[-1].at_s
            absent, mortal = len(self.engines) - 2, len(self.engines) - 1
            self._die(absent, 0.0)
            self.at(end_s / 6, partial(self._come, absent))
            self.at(end_s / 3, partial(self._die, mortal))
            self.at(end_s * 2 / 3, partial(self._come, mortal))
        for index in range(self._adversity.out):
            out_s = arrivals[-1].at_s / 2
            self.at(out_s, partial(self._die, index))
            self.at(out_s + OUT_S, partial(self._come, index))
        self.elapse()
        assert all(engine.idle for engine in self.engines)
        return self.outcome

    def _arrive(self, arrival: Arrival, now_s: float) -> None:
        hidden = self._adversity.hidden
        if hidden and self._rng.random() < hidden:
            tokens = arrival.prompt_tokens, max(1, arrival.output_tokens)
            hashes = block_hashes(arrival, self._profile.block_tokens)
            sequence = EngineSequence(*tokens, Stranger(), None, hashes)
            self._submit(self._rng.randrange(len(self.engines)), sequence, now_s)
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
            self.wake_soon()

    def _send(self, arrival: Arrival, router: Router, lease: Entered) -> None:
        assert isinstance(lease, Lease)
        now_s = self.now_s
        index = int(lease.backend.name)
        untold = self._adversity.untold
        block_tokens = self._profile.block_tokens
        request = Request(arrival, lease, router, self.outcome, block_tokens, untold=untold)
        if self._adversity.outage or self._adversity.out:
            self._live[index][request] = None
        self.outcome.sent(index, arrival.prompt_tokens + arrival.output_tokens)
        ready_s = self._apis[index].ready_s(now_s)
        if ready_s > now_s:
            self.at(ready_s, partial(self._submit, index, request.sequence))
        else:
            self._submit(index, request.sequence, now_s)

    def emitted(self, index: int, sequences: list[EngineSequence], now_s: float) -> None:
        for sequence in sequences:
            owner = sequence.owner
            assert isinstance(owner, Request | Stranger)
            owner.now_s = now_s
            owner.token()
            if isinstance(owner, Request):
                if sequence.generated == 1:
                    self._misread(index, owner.lease.backend)
                if sequence.done:
                    self._live[index].pop(owner, None)

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
            self.at(now_s + self._share_s / routers, share)

    # Adversities ---------------------------------------------------------------------------

    def _misread(self, index: int, backend: Backend) -> None:
        """What it has just learnt of the speed is wrong."""
        wrong = self._adversity.rates_wrong
        if wrong:
            backend.prefill_speed.work_s *= 1.0 - wrong if index % 2 else 1.0 + wrong

    def _scrape(self, now_s: float) -> None:
        """Every router reads what the engines say of themselves."""
        for backend in self.known:
            self.report(backend, now_s)
        if self._goes_on(now_s):
            self.at(now_s + SCRAPE_S, self._scrape)

    def _goes_on(self, now_s: float) -> bool:
        return now_s < self._end_s or not all(engine.idle for engine in self.engines)

    def _die(self, index: int, now_s: float) -> None:
        """The engine is gone; whoever was there asks again at once, elsewhere."""
        self.restart(index, self._engine(index, len(self.engines)))
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
        self.at(now_s + SLOW_START_S, partial(self._warm, index))

    def _warm(self, index: int, now_s: float) -> None:
        for router in self._routers:
            router.known[index].state = State.READY
            router.known[index].slow_start = None
