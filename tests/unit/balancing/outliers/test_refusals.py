"""What refuses fast attracts nothing, where its peers do not refuse; and nobody can feign it."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.failures import REFUSALS_MIN
from penstock.balancing.outliers.penalties import WINDOW_S
from penstock.health.probes import Outcome
from tests.unit.balancing.backends import LOAD_READING
from tests.unit.balancing.outliers.blamed import ATTACKER, fleet, watched

ALL = (*LOAD_READING, "token_cost")
Who = Callable[[int], str]
Refuses = Callable[[str, Backend, int], bool]


def run(
    gate: Gate, who: Who, refuses: Refuses, requests: int = 3_000
) -> tuple[Counter[str], list[str]]:
    """100 requests a second, a refusal takes 1 ms and an answer 0.4 s. Where they went, and of
    which backends it was told that they refuse."""
    waiting: list[tuple[float, int, Lease, bool]] = []
    went: Counter[str] = Counter()
    told: list[str] = []
    for number in range(requests):
        now_s = number / 100
        while waiting and waiting[0][0] <= now_s:
            done_s, _, lease, refused = heappop(waiting)
            if not refused:
                lease.first_token(done_s)
            elif gate.refused(lease, done_s):
                told.append(lease.backend.name)
            lease.complete(done_s)
        client = who(number)
        ask = Ask("/", prompt_tokens=200, stream=True, session=f"s-{number % 97}", client=client)
        lease = gate.choose(ask, now_s)
        refused = refuses(client, lease.backend, number)
        heappush(waiting, (now_s + (0.001 if refused else 0.4), number, lease, refused))
        went[lease.backend.name] += 1
    return went, told


def one_of(clients: int) -> Who:
    return lambda number: f"10.0.0.{number % clients}"


def flood(number: int) -> str:
    """One client sends half of all, and three the other half."""
    return ATTACKER if number % 2 else f"10.0.0.{number // 2 % 3}"


def by_hole(client: str, backend: Backend, number: int) -> bool:
    return backend.name == "b0"


@pytest.mark.parametrize("clients", [1, 2, 40])
@pytest.mark.parametrize("policy", ALL)
def test_a_black_hole_of_fast_4xx_gets_next_to_nothing(policy: str, clients: int) -> None:
    """Several clients tell of it, and one does not."""
    went, told = run(fleet(policy=policy)[1], one_of(clients), by_hole)
    assert went["b0"] / went.total() < 0.04, went
    assert set(told) == ({"b0"} if clients > 1 else set())


def test_a_backend_that_refuses_long_prompts_only_is_found() -> None:
    """One in five of what comes; it answers the others, which ends no count."""

    def refuses(client: str, backend: Backend, number: int) -> bool:
        return backend.name == "b0" and number % 5 == 0

    assert set(run(fleet()[1], one_of(7), refuses)[1]) == {"b0"}


@pytest.mark.parametrize("policy", ALL)
def test_clients_whose_requests_are_bad_make_nobody_dear(policy: str) -> None:
    """One floods the fleet with them, three send one now and then."""

    def refuses(client: str, backend: Backend, number: int) -> bool:
        return client == ATTACKER or number % 50 == 0

    backends, gate = fleet(policy=policy)
    assert run(gate, flood, refuses)[1] == []
    assert [each.penalty.read(30.0, "10.0.0.9") for each in backends] == [0.0] * 4


def test_a_flood_of_bad_requests_hides_no_black_hole() -> None:
    def refuses(client: str, backend: Backend, number: int) -> bool:
        return client == ATTACKER or backend.name == "b0"

    went, told = run(fleet()[1], flood, refuses)
    assert set(told) == {"b0"}
    assert went["b0"] / went.total() < 0.2


@pytest.mark.parametrize("innocents", [0, 1, 2, 3, 7])
def test_a_flood_at_one_place_makes_it_dear_to_nobody_else(innocents: int) -> None:
    """Its session aims all of it at one backend, where others met a refusal before."""
    pool, gate = fleet()
    backend = pool[0]
    for number in range(200):
        client = "6.6.6.6" if number >= innocents else f"10.0.0.{number}"
        assert not gate.refused(Lease(backend, Ask("/", client=client), 0.1 * number), 0.1 * number)
    assert backend.penalty.read(20.0, "6.6.6.6") > 0.0
    assert backend.penalty.read(20.0, "10.0.0.1") == 0.0


@pytest.mark.parametrize("innocents", [0, 3])
def test_bad_requests_that_refer_to_a_response_make_its_backend_dear_to_nobody(
    innocents: int,
) -> None:
    """Whoever knows an answer that it gave can aim them, from as many addresses as it has."""
    pool, gate = fleet()
    gate.owners.put("resp_1", "b0", 0.0)
    told: list[str] = []
    for number in range(400):
        now_s = 0.05 * number
        ask = Ask("/", client=f"6.6.6.{number % 2}", response_id="resp_1")
        lease = gate.choose(ask, now_s)
        assert lease.bound
        if gate.refused(lease, now_s, (400, 200)[number % 3 == 0]):
            told.append(lease.backend.name)
        if number < innocents:
            gate.refused(Lease(pool[0], Ask("/", client=f"10.0.0.{number}"), now_s), now_s)
        lease.complete(now_s)
    assert told == []
    assert pool[0].penalty.read(20.0, "10.0.0.9") == 0.0


def test_answers_without_a_token_to_what_refers_to_a_response_are_dear_to_nobody_else() -> None:
    backends, gate = fleet()
    gate.owners.put("resp_1", "b0", 0.0)
    for number in range(100):
        ask = Ask("/", client=f"6.6.6.{number % 2}", response_id="resp_1")
        lease = gate.choose(ask, 0.1 * number)
        gate.bare(lease, 0.1 * number)
        lease.complete(0.1 * number)
    assert backends[0].penalty.read(10.0, "10.0.0.9") == 0.0


def test_failures_of_what_refers_to_a_response_are_its_backends() -> None:
    """A fleet may serve nothing else."""
    pool, gate = fleet()
    gate.owners.put("resp_1", "b0", 0.0)
    for number in range(4):
        lease = gate.choose(Ask("/", client=f"10.0.0.{number}", response_id="resp_1"), 0.0)
        lease.fail(0.1, cause=gate.cause(lease, 0.1))
    assert pool[0].failures_in_row == 4
    assert pool[0].penalty.read(0.1, "10.0.0.9") > 0.0


def test_an_only_backend_has_no_peers_that_take_it() -> None:
    pool, gate = fleet(count=1)
    for number in range(50):
        lease = Lease(pool[0], Ask("/", client=f"10.0.0.{number}"), 0.0)
        assert not gate.refused(lease, 0.0)
    assert pool[0].penalty.read(0.0) == 0.0


def test_what_was_long_ago_is_forgotten() -> None:
    pool, gate = fleet()
    for number in range(REFUSALS_MIN - 1):
        gate.refused(Lease(pool[0], Ask("/", client="a"), 0.0), float(number))
    later_s = 2 * WINDOW_S + 10.0
    gate.refused(Lease(pool[0], Ask("/", client="a"), later_s), later_s)
    assert pool[0].penalty.read(later_s, "a") == 0.0


def test_a_backend_whose_minute_has_just_begun_makes_no_peer_look_alone() -> None:
    """Two of a kind refuse one request of twenty, for half an hour."""
    pool, gate = fleet(count=2)
    rng = Random(1)
    for number in range(18_000):
        now_s = number / 10
        client = f"10.0.0.{rng.randrange(20)}"
        lease = Lease(pool[rng.randrange(2)], Ask("/", client=client), now_s)
        if rng.random() < 0.05:
            assert not gate.refused(lease, now_s)
        lease.complete(now_s)


async def test_what_several_clients_tell_is_a_doubt_with_its_reason() -> None:
    scene = await watched()
    scene.watch.refused(key=False)
    assert (await scene.turn(), scene.backend.reason) == (State.SUSPECT, "refusing")
    assert scene.backend.fit
    assert await scene.turn(5, step_s=2.0) is State.SUSPECT  # though its probes pass
    scene.now_s += 60.0
    assert await scene.turn() is State.READY


async def test_a_key_that_is_refused_fails_the_probe() -> None:
    scene = await watched()
    scene.watch.refused(key=True)
    assert scene.backend.state is State.READY  # what one request met
    scene.ask.ready_is = Outcome("refusing")
    assert await scene.turn(3) is State.EJECTED
    assert (scene.backend.reason, scene.backend.doubted) == ("refusing", False)


@pytest.mark.parametrize("others", [3, 30])
def test_who_is_refused_everywhere_does_not_make_another_look_like_several(others: int) -> None:
    """One client aims bad requests at a backend. Another's are bad, wherever they go."""
    pool, gate = fleet()
    rng = Random(1)
    for number in range(6_000):
        now_s = number / 50
        backend = rng.choice(pool)
        client = "7.7.7.7" if number % 10 == 0 else f"10.0.0.{rng.randrange(others)}"
        if number % 20 == 5:
            client, backend = "6.6.6.6", pool[0]
        lease = Lease(backend, Ask("/", client=client), now_s)
        if client in ("6.6.6.6", "7.7.7.7"):
            assert not gate.refused(lease, now_s)
        lease.complete(now_s)
    assert pool[0].penalty.read(120.0, "10.0.0.1") == 0.0
