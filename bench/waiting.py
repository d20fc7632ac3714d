"""`penstock bench waiting`: what requests that wait cost the proxy's loop.

Many requests of many flows wait before a pool that is full. In turn a prompt is prefilled or an
answer ends, what waits is looked at (a wake), a client leaves and another request comes.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from random import Random
from time import thread_time_ns
from typing import Final

from penstock.balancing.admission.controller import Admission, Rules
from penstock.balancing.admission.dispatch import Told
from penstock.balancing.admission.queued_request import Outcome, QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.policies import POLICIES
from penstock.bench.arguments import count, option
from penstock.bench.decision import PATH, built
from penstock.bench.report import head, row
from penstock.bench.routing.outcome import quantile

STEP_S: Final = 0.005
KV_TOKENS: Final = 400_000
# Nobody is refused for being late.
PATIENCE_S: Final = 1e6


class Crowd:
    """What waits before one pool, and what runs in it. `spent_us`: CPU of each kind of step."""

    def __init__(self, options: Namespace) -> None:
        self._rng = Random(1)
        self._flows = options.flows
        self._requests = options.requests
        self._now_s = 1.0
        self._waiting: list[QueuedRequest] = []
        self._running: list[Lease] = []
        self.spent_us: dict[str, list[float]] = {"enter": [], "wake": [], "leave": []}
        backends = tuple(Backend(f"b{i}", "", "p") for i in range(options.backends))
        for backend in backends:
            backend.state = State.READY
            backend.take(EngineReport(0.0, kv_tokens=KV_TOKENS))
        fleet = Fleet((Pool("p", backends, POLICIES["token_cost"](backends)),))
        gate = Gate(lambda: fleet, Random(2))
        rules = Rules(enabled=True)
        self._admission = Admission(gate, lambda: fleet, Random(3), lambda: None, rules)

    def fill(self) -> None:
        """Until so many wait."""
        while self._admission.waiting < self._requests:
            self._enter()
        self.spent_us["enter"].clear()

    def step(self) -> None:
        """A prompt is prefilled, or an answer ends. Then a wake; then one leaves and one comes."""
        self._now_s += STEP_S
        if self._running:
            lease = self._running[self._rng.randrange(len(self._running))]
            if lease.prefilling:
                lease.first_token(self._now_s)
            else:
                self._running.remove(lease)
                lease.complete(self._now_s, 100)
                lease.end(self._now_s)
        self._spend("wake", self._wake)
        self._leave()
        while self._admission.waiting < self._requests:
            self._enter()

    def _wake(self) -> None:
        outcomes: list[Told] = []
        self._admission.wake(self._now_s, outcomes)
        for request, outcome in outcomes:
            request.ready(outcome)

    def _enter(self) -> None:
        rng, name = self._rng, f"flow {self._rng.randrange(self._flows)}"
        prompt_tokens = rng.randint(256, 8_192)
        ask = Ask(PATH, prompt_tokens=prompt_tokens, stream=True, tenant=name, output_tokens=200)
        request = QueuedRequest(ask, self._now_s, self._ready, name, deadline_s=PATIENCE_S)
        outcome = self._spend("enter", lambda: self._admission.enter(request, self._now_s))
        if outcome is not None:
            self._ready(outcome)
        else:
            self._waiting.append(request)

    def _leave(self) -> None:
        request = self._waiting.pop(self._rng.randrange(len(self._waiting)))
        if request.waits:
            self._spend("leave", lambda: self._admission.leave(request, self._now_s))

    def _ready(self, outcome: Outcome) -> None:
        assert isinstance(outcome, Lease)
        self._running.append(outcome)

    def _spend(self, kind: str, step: Callable[[], Outcome | None]) -> Outcome | None:
        began_ns = thread_time_ns()
        made = step()
        self.spent_us[kind].append((thread_time_ns() - began_ns) / 1e3)
        return made


def run(options: Namespace) -> int:
    """Print the table; returns the exit status."""
    crowd = Crowd(options)
    crowd.fill()
    for _ in range(options.steps):
        crowd.step()
    print(head("step", "times", "p50, us", "p99, us", "most, us"))
    for kind, spent_us in crowd.spent_us.items():
        shown = [f"{quantile(spent_us, q):.1f}" for q in (0.5, 0.99, 1.0)]
        print(row(kind, f"{len(spent_us):,}", *shown))
    print(f"\n{built()}; CPU of the thread")
    return 0


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--requests N", count, 10_000, "that wait")
    option(parser, "--backends N", count, 64, "of the pool")
    option(parser, "--flows N", count, 256, "tenants")
    option(parser, "--steps N", count, 3_000, "")
