"""What ends that are nobody's fault teach, and what bare answers do. No client can feign it."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import PENALTY_S, Cause
from penstock.balancing.policies import POLICIES
from penstock.balancing.speed.compare import compare
from penstock.proxy.data.failover import complain
from penstock.proxy.errors.backend import (
    AnswerBare,
    BackendError,
    BackendRefusing,
    ClientOutOfTime,
    OutOfTime,
    StreamOutOfClientTime,
)


def stream(backend: Backend, began_s: float, client: str) -> Lease:
    ask = Ask("/v1/chat/completions", prompt_tokens=100, stream=True, client=client)
    return Lease(backend, ask, began_s)


def whole(lease: Lease, slept_s: float = 0.0) -> None:
    """200 tokens of 20 ms each; the proxy may stop meanwhile."""
    if slept_s:
        lease.held_up = True
    lease.first_token(lease.began_s + 0.03 + slept_s)
    lease.tokens(199)
    lease.complete(lease.began_s + 0.03 + slept_s + 199 * 0.02 + slept_s, 199)


def unheard(backend: Backend, error: BackendError, cause: Cause) -> None:
    """Nobody watches."""


def two() -> list[Backend]:
    """Equal ones, and known."""
    backends = [Backend(name, "http://x") for name in ("a", "b")]
    for backend in backends:
        backend.state = State.READY
        for turn in range(8):
            whole(stream(backend, 60.0 + 5 * turn, f"c{turn}"))
    return backends


@pytest.mark.parametrize("slept_s", [1.5, 20.0])
def test_a_pause_of_the_process_does_not_make_a_backend_slow(slept_s: float) -> None:
    backends = two()
    latency_s = backends[0].latency.read(110.0)
    for turn in range(6):
        whole(stream(backends[0], 105.0, f"d{turn}"), slept_s)
    assert compare(backends, 0.05, 110.0 + slept_s).apart == {}
    assert backends[0].latency.read(110.0) == pytest.approx(latency_s)


@pytest.mark.parametrize("error", [ClientOutOfTime(), OutOfTime(), StreamOutOfClientTime()])
def test_clients_whose_time_is_over_show_that_a_backend_is_slow(error: BackendError) -> None:
    """Those that are still there as well as those that have left; and it is no failure."""
    slow, peer = two()
    pool = Pool("default", (slow, peer), POLICIES["token_cost"]((slow, peer)))
    gate = Gate(lambda: Fleet((pool,)), Random(2))
    for turn in range(8):
        lease = stream(slow, 100.0, f"d{turn}")
        if isinstance(error, StreamOutOfClientTime):
            lease.first_token(100.03)
            lease.tokens(20)
        complain(gate, lease, error, 105.0, unheard)
    assert set(compare([slow, peer], 0.05, 105.0).apart) == {slow}
    assert slow.failures_total == 0


Who = Callable[[int], str]
Bare = Callable[[str, Backend], bool]


class Scene:
    """100 requests a second; an answer takes 0.4 s, one without a token 1 ms."""

    def __init__(self, count: int = 4) -> None:
        self.backends = tuple(Backend(f"b{i}", "http://127.0.0.1:1") for i in range(count))
        for backend in self.backends:
            backend.state = State.READY
        pool = Pool("default", self.backends, POLICIES["token_cost"](self.backends))
        self.gate = Gate(lambda: Fleet((pool,)), Random(3))
        self.told: list[str] = []  # who refuses what its peers do not
        self.doubted: Counter[Cause] = Counter()

    def run(self, who: Who, bare: Bare, requests: int) -> Counter[str]:
        """Where the first attempts went. Each that came bare is asked for once more."""
        waiting: list[tuple[float, int, Lease, bool]] = []
        went: Counter[str] = Counter()
        number = asked = 0
        while asked < requests or waiting:
            now_s = asked / 100 if asked < requests else waiting[0][0]
            if waiting and waiting[0][0] <= now_s:
                done_s, _, lease, first = waiting.pop(0)
                if bare(lease.ask.client, lease.backend):
                    complain(self.gate, lease, AnswerBare(), done_s, self.hear)
                    if not first:
                        continue
                    lease = self.gate.choose(lease.ask, done_s, (lease.backend,))
                    number += 1
                    waiting.append((done_s + self.takes_s(lease, bare), number, lease, False))
                    waiting.sort()
                else:
                    lease.first_token(done_s)
                    lease.tokens(9)
                    lease.complete(done_s)
                continue
            client = who(asked)
            asked += 1
            lease = self.gate.choose(Ask("/", prompt_tokens=200, stream=True, client=client), now_s)
            went[lease.backend.name] += 1
            number += 1
            waiting.append((now_s + self.takes_s(lease, bare), number, lease, True))
            waiting.sort()
        return went

    def takes_s(self, lease: Lease, bare: Bare) -> float:
        return 0.001 if bare(lease.ask.client, lease.backend) else 0.4

    def hear(self, backend: Backend, error: BackendError, cause: Cause) -> None:
        self.doubted[cause] += 1
        if isinstance(error, BackendRefusing):
            self.told.append(backend.name)


@pytest.mark.parametrize("clients", [1, 2, 40])
@pytest.mark.parametrize("bad", [{"b0"}, {"b0", "b1"}, {"b0", "b1", "b2"}])
def test_a_black_hole_of_bare_answers_gets_next_to_nothing(clients: int, bad: set[str]) -> None:
    scene = Scene()
    went = scene.run(lambda n: f"c{n % clients}", lambda _, backend: backend.name in bad, 3_000)
    assert sum(went[name] for name in bad) / went.total() < 0.06, went
    assert scene.doubted[Cause.KIND] > 0  # which a probe looks into
    assert all(backend.failures_total == 0 for backend in scene.backends)


def test_several_clients_tell_that_only_it_answers_so_and_one_does_not() -> None:
    for clients, tells in ((1, False), (40, True)):
        scene = Scene()
        scene.run(lambda n, of=clients: f"c{n % of}", lambda _, b: b.name == "b0", 6_000)  # type: ignore[misc]
        assert set(scene.told) == ({"b0"} if tells else set()), scene.told


@pytest.mark.parametrize("attackers", [1, 5])
def test_requests_that_come_bare_everywhere_accuse_no_backend_to_others(attackers: int) -> None:
    scene = Scene()

    def who(number: int) -> str:
        return f"a{number % (2 * attackers)}" if number % 2 else "victim"

    scene.run(who, lambda client, _: client.startswith("a"), 3_000)
    assert scene.told == []
    dear = [b.penalty.read(30.0, "victim") for b in scene.backends]
    # Several clients may make some dear, for the shortest time only.
    assert dear == [0.0] * 4 if attackers == 1 else max(dear) <= PENALTY_S


def test_what_began_before_it_was_back_says_nothing() -> None:
    """A server that restarts gives up what it had queued."""
    scene = Scene(2)
    lease = scene.gate.choose(Ask("/", prompt_tokens=200, stream=True, client="c"), 0.0)
    lease.backend.back_since_s = 5.0
    complain(scene.gate, lease, AnswerBare(), 6.0, scene.hear)
    assert lease.backend.penalty.read(6.0, "c") == 0.0


def test_a_whole_answer_ends_the_row() -> None:
    scene = Scene(1)
    ask = Ask("/", prompt_tokens=200, stream=True, client="c")
    for turn in range(6):
        lease = scene.gate.choose(ask, turn * 10.0)
        complain(scene.gate, lease, AnswerBare(), turn * 10.0, scene.hear)
    (backend,) = scene.backends
    assert backend.penalty.read(50.0, "c") == 25.0
    lease = scene.gate.choose(ask, 80.0)
    lease.first_token(80.1)
    lease.tokens(1)
    lease.complete(80.2)
    lease = scene.gate.choose(ask, 81.0)
    complain(scene.gate, lease, AnswerBare(), 81.0, scene.hear)
    assert backend.penalty.read(81.0, "c") == 5.0
