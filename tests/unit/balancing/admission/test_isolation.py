"""Tenant A does its worst. The requests of tenant B wait a short time, and none is refused.

And where A is alone, none of its requests waits while an engine has nothing to do.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies.token_cost import TokenCost
from tests.unit.balancing.admission.door import Door

TICK_S = 0.05
PREFILL_PER_S = 15_000.0
STEP_S = 0.025
PLACES = 64
KV_TOKENS = 60_000


@dataclass
class Stream:
    request: QueuedRequest
    to_prefill: float
    to_come: int
    tokens: float = 0.0
    begun: bool = False


@dataclass
class Engine:
    """It prefills in order of arrival, and makes a token of each stream in 25 ms."""

    waiting: deque[Stream] = field(default_factory=deque)
    running: list[Stream] = field(default_factory=list)
    generated: int = 0

    def held(self) -> float:
        return sum(each.request.ask.prompt_tokens + each.tokens for each in self.running)


class Site:
    """Engines behind an admission."""

    def __init__(self, engines: int) -> None:
        self.door = Door(*[f"e{number}" for number in range(engines)], kv_tokens=KV_TOKENS)
        self.door.fleet = Fleet((Pool("p", self.door.backends, TokenCost()),))
        self.engines = {backend: Engine() for backend in self.door.backends}
        self.now_s = 0.0
        self.ttft_s: dict[QueuedRequest, float] = {}
        self.answers: dict[QueuedRequest, int] = {}

    def send(self, name: str, tokens: int, answer: int, **fields: Any) -> QueuedRequest:
        """It comes. `answer`: the true length of each of its choices."""
        request = self.door.request(tokens, self.now_s, name=name, **fields)
        self.answers[request] = answer
        self.door.come(request, self.now_s)
        self._place()
        return request

    def _place(self) -> None:
        for request, lease in self.door.leases.items():
            if request in self.answers:
                tokens = float(lease.queued_tokens)
                answer = self.answers.pop(request) * request.ask.choices
                stream = Stream(request, tokens, answer if request.ask.generates else 0)
                self.engines[lease.backend].waiting.append(stream)

    def leave(self, request: QueuedRequest) -> None:
        """Its client has gone."""
        self.door.admission.leave(request, self.now_s)
        lease = self.door.leases.get(request)
        if lease is not None and not lease.ended:
            lease.end(self.now_s)
            engine = self.engines[lease.backend]
            engine.running = [each for each in engine.running if each.request is not request]
            engine.waiting = deque(each for each in engine.waiting if each.request is not request)

    def passes(self) -> None:
        """One tick."""
        self.now_s += TICK_S
        for backend, engine in self.engines.items():
            self._prefill(engine)
            self._decode(engine)
            if round(self.now_s / TICK_S) % 20 == 0:
                self._report(backend, engine)
        self.door.wake(self.now_s)
        self._place()

    def _prefill(self, engine: Engine) -> None:
        budget = PREFILL_PER_S * TICK_S
        while engine.waiting and budget > 0.0:
            first = engine.waiting[0]
            prompt = first.request.ask.prompt_tokens
            sequences = sum(each.request.ask.choices for each in engine.running)
            sequences += first.request.ask.choices
            is_full = sequences > PLACES or engine.held() + prompt > KV_TOKENS
            if engine.running and is_full:
                return
            first.begun = True
            used = min(budget, first.to_prefill)
            first.to_prefill -= used
            budget -= used
            if first.to_prefill <= 0.0:
                engine.waiting.popleft()
                self._begin(engine, first)

    def _begin(self, engine: Engine, stream: Stream) -> None:
        lease = self.door.leases[stream.request]
        for index in range(stream.request.ask.choices * stream.request.ask.prompts):
            lease.first_token(self.now_s, index)
        self.ttft_s[stream.request] = self.now_s - stream.request.since_s
        if stream.to_come:
            engine.running.append(stream)
        else:
            lease.complete(self.now_s)

    def _decode(self, engine: Engine) -> None:
        per_choice = int(TICK_S / STEP_S)
        for stream in list(engine.running):
            count = min(
                per_choice * stream.request.ask.choices, int(stream.to_come - stream.tokens)
            )
            lease = self.door.leases[stream.request]
            lease.tokens(count)
            stream.tokens += count
            engine.generated += count
            if stream.tokens >= stream.to_come:
                engine.running.remove(stream)
                lease.complete(self.now_s, stream.to_come)

    def _report(self, backend: Backend, engine: Engine) -> None:
        usage = min(1.0, engine.held() / KV_TOKENS)
        running = sum(each.request.ask.choices for each in engine.running)
        begun = engine.waiting and engine.waiting[0].begun
        report = EngineReport(
            self.now_s,
            running=running + bool(begun),
            waiting=len(engine.waiting) - bool(begun),
            kv_usage=usage,
            kv_tokens=KV_TOKENS,
            generated_tokens=engine.generated,
        )
        backend.take(report)


# What A does. Each is called in each tick.

Attack = Callable[[Site, list[QueuedRequest]], None]


def keep_waiting(count: int, **fields: Any) -> Attack:
    """So many requests of this kind always wait or run."""

    def attack(site: Site, mine: list[QueuedRequest]) -> None:
        mine[:] = [each for each in mine if each.waits or _runs(site, each)]
        while len(mine) < count:
            mine.append(site.send("A", **fields))
            if mine[-1] in site.door.refused:
                return

    return attack


def _runs(site: Site, request: QueuedRequest) -> bool:
    lease = site.door.leases.get(request)
    return lease is not None and not lease.ended


def short_then_long(site: Site, mine: list[QueuedRequest]) -> None:
    """A hundred answers of four tokens, and then as many as are sent of 4,000."""
    answer = 4 if site.now_s < 10.0 else 4_000
    keep_waiting(100, tokens=50, answer=answer, max_tokens=4_000)(site, mine)


def choices(site: Site, mine: list[QueuedRequest]) -> None:
    """Short streams fill all places first, which shows how many there are."""
    number = 1 if site.now_s < 8.0 else 16
    keep_waiting(150, tokens=50, answer=100, choices=number, max_tokens=100)(site, mine)


def leaving(site: Site, mine: list[QueuedRequest]) -> None:
    """Each client leaves after two seconds, whatever it has by then."""
    for request in [each for each in mine if site.now_s - each.since_s > 2.0]:
        site.leave(request)
        mine.remove(request)
    while len(mine) < 100:
        mine.append(site.send("A", 6_000, 500))


def retrying(site: Site, mine: list[QueuedRequest]) -> None:
    """It is refused at once, and comes again at once: twenty times in each tick."""
    mine += [site.send("A", 3_000, 100, deadline_s=3.0) for _ in range(20)]


# With how long B may wait then where there is one engine, and where there are four. An engine that
# has begun with a prompt cannot be stopped, and it gets the next one a moment before. Choices that
# fill an engine are kept apart from others only where there are several.
ATTACKS: dict[str, tuple[Attack, float, float]] = {
    "short prompts": (keep_waiting(400, tokens=100, answer=100), 0.3, 0.3),
    "long prompts": (keep_waiting(40, tokens=40_000, answer=20), 6.0, 3.0),
    "huge choices": (
        keep_waiting(5, tokens=50, answer=100, choices=300, max_tokens=100),
        inf,
        0.3,
    ),
    "long answers after short ones": (short_then_long, 0.3, 0.3),
    "choices that take all places": (choices, 2.6, inf),
    "clients that leave": (leaving, 1.0, 0.7),
    "retries": (retrying, 0.6, 0.4),
    "embeddings": (keep_waiting(400, tokens=2_000, answer=0, generates=False), 0.5, 0.4),
    "lists": (keep_waiting(20, tokens=20_000, answer=0, generates=False, prompts=60), 3.0, 1.6),
    "plain answers": (keep_waiting(200, tokens=500, answer=400, stream=False), 0.5, 0.4),
}
BEGINS_S = 5.0
# By then the engines have shown how many streams they run, and what A took alone has ended.
COUNTS_S = 15.0
ENDS_S = 40.0


def beside(attack: Attack, engines: int) -> tuple[Site, list[QueuedRequest]]:
    """A short request of B comes twice a second from second 5 on."""
    site = Site(engines)
    of_a: list[QueuedRequest] = []
    of_b: list[QueuedRequest] = []
    while site.now_s < ENDS_S:
        attack(site, of_a)
        if site.now_s >= BEGINS_S and round(site.now_s / TICK_S) % 10 == 0:
            of_b.append(site.send("B", 300, 50, deadline_s=30.0))
        site.passes()
    return site, of_b


def longest_wait_s(attack: Attack, engines: int) -> float:
    """That of B, none of whose requests may be refused."""
    site, of_b = beside(attack, engines)
    assert not [each for each in of_b if each in site.door.refused]
    counted = [each for each in of_b if COUNTS_S <= each.since_s < ENDS_S - 7.0]
    return max(site.ttft_s.get(each, inf) for each in counted)


@pytest.mark.parametrize("engines", [1, 4])
@pytest.mark.parametrize("name", list(ATTACKS))
def test_requests_of_b_wait_a_short_time_and_none_is_refused(name: str, engines: int) -> None:
    attack, beside_one_s, beside_four_s = ATTACKS[name]
    assert longest_wait_s(attack, engines) <= (beside_one_s if engines == 1 else beside_four_s)


@pytest.mark.parametrize("name", list(ATTACKS))
def test_alone_nothing_of_a_waits_while_an_engine_has_nothing_to_do(name: str) -> None:
    site, of_a, idle = Site(3), list[QueuedRequest](), 0
    while site.now_s < 15.0:
        ATTACKS[name][0](site, of_a)
        site.passes()
        free = [each for each in site.engines.values() if not each.waiting and not each.running]
        idle += bool(free) and site.door.admission.waiting > 0
    assert site.ttft_s
    assert not idle
