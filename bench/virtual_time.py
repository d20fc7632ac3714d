"""Virtual time: a clock of events, the wakes of admission, and simulated engines that step."""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf

from penstock.balancing.admission.controller import TICK_S, Admission
from penstock.balancing.admission.dispatch import Told
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.bench.routing.trace import BLOCK_TOKENS
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.engine import Sequence as EngineSequence

Event = Callable[[float], None]


class Clock:
    """Events by their time, those of one moment in the order in which they were asked for.

    It wakes admissions, as `proxy/data/plane.py` does in the proxy.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.admissions: list[Admission] = []
        self._events: list[tuple[float, int, Event]] = []
        self._number = count()
        self._soon = self._ticking = False

    def at(self, when_s: float, event: Event) -> None:
        heapq.heappush(self._events, (when_s, next(self._number), event))

    def elapse(self, until_s: float = inf) -> None:
        """Let all happen that is due until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event(self.now_s)

    def wake_soon(self) -> None:
        """Room may have come free, or something has begun to wait."""
        if not self._soon:
            self._soon = True
            self.at(self.now_s, self._wake)

    def _wake(self, now_s: float) -> None:
        self._soon = False
        for admission in self.admissions:
            outcomes: list[Told] = []
            admission.wake(now_s, outcomes)
            for ticket, outcome in outcomes:
                ticket.ready(outcome)
        if not self._ticking and any(each.waiting for each in self.admissions):
            self._ticking = True
            self.at(now_s + TICK_S, self._tick)

    def _tick(self, now_s: float) -> None:
        self._ticking = False
        self._wake(now_s)


class Engines(Clock):
    """Engines of these numbers. A subclass says what becomes of their tokens."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__()
        self.engines = list(engines)
        self.step_ends_s = [0.0] * len(self.engines)
        self._stepping = [False] * len(self.engines)
        self._lives = [0] * len(self.engines)  # how many have died there

    def emitted(self, index: int, sequences: list[EngineSequence], now_s: float) -> None:
        """These have one more token."""
        raise NotImplementedError

    def restart(self, index: int, engine: Engine) -> None:
        """Another engine is there, and nothing of what the old one did."""
        self._lives[index] += 1
        self.engines[index] = engine
        self._stepping[index] = False

    def report(self, backend: Backend, now_s: float, *, tells_cache: bool = True) -> None:
        """Read what an engine says of itself, as the monitor does."""
        engine = self.engines[int(backend.name)]
        kv_tokens = engine.profile.kv_tokens if tells_cache else None
        report = EngineReport(
            now_s,
            engine.running,
            engine.waiting,
            kv_usage=engine.kv_usage,
            kv_tokens=kv_tokens,
            prefix_queries_tokens=engine.cache_queries_total,
            prefix_hits_tokens=engine.cache_hits_total,
            generated_tokens=engine.generation_tokens_total,
            known_requests=backend.known_requests(now_s),
        )
        backend.engine_requests_peak = backend.own.engine_requests
        backend.take(report)
        if kv_tokens is not None:
            backend.cache.index.capacity = kv_tokens // BLOCK_TOKENS

    def _submit(self, index: int, sequence: EngineSequence, now_s: float) -> None:
        self.engines[index].submit(sequence, now_s)
        if not self._stepping[index]:
            self._step(index, now_s)

    def _step(self, index: int, now_s: float) -> None:
        duration_s, emissions = self.engines[index].step(now_s)
        self._stepping[index] = bool(duration_s)
        if duration_s:
            self.step_ends_s[index] = now_s + duration_s
            deliver = partial(self._deliver, index, self._lives[index], emissions)
            self.at(now_s + duration_s, deliver)

    def _deliver(
        self, index: int, life: int, emissions: list[EngineSequence], now_s: float
    ) -> None:
        if life == self._lives[index]:  # not of an engine that died
            self.emitted(index, emissions, now_s)
            self._step(index, now_s)


class Stranger:
    """Whoever sends an engine a request by another way: nobody here hears of it."""

    over = True
    now_s = 0.0

    def token(self) -> None:
        """A token came; not to us."""
