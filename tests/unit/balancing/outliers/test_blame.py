"""Whose fault a failure is: one client's requests turn nobody against a backend."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.blame import KEYS_MAX, WITHIN_S, Blame
from penstock.balancing.outliers.penalties import PENALTY_S, Cause
from penstock.balancing.policies import POLICIES
from penstock.health.machine import PROBATION_FALL, REQUESTS_FALL
from penstock.health.probes import Outcome, Task
from penstock.proxy.data.failover import complain
from penstock.proxy.errors.backend import BackendError, ConnectionReset
from tests.unit.balancing.backends import numbered
from tests.unit.balancing.outliers.blamed import (
    ATTACKER,
    VICTIM,
    ask_of,
    failed,
    fails,
    fleet,
    watched,
)
from tests.unit.health.watched import FAILING, HUNG, OK, Scene


def unheard(backend: Backend, error: BackendError, cause: Cause) -> None:
    """Nobody watches."""


# In a row at one backend ------------------------------------------------------------------


async def test_one_clients_failures_ask_a_probe_and_its_pass_clears_them() -> None:
    scene = await watched()
    for _ in range(10):
        for _ in range(REQUESTS_FALL):
            fails(scene, ATTACKER)
            assert scene.backend.fit
        asked = scene.ask.deep_asked
        assert await scene.turn() is State.READY
        assert scene.ask.deep_asked == asked + 1
        assert scene.backend.failures_in_row == 0
        scene.now_s += 60.0  # sooner it would ask for none


async def test_streams_that_progress_stand_in_for_no_probe_that_failures_ask_for() -> None:
    scene = await watched()
    stream = scene.lease()
    scene.now_s += 60.0
    stream.tokens(1)
    fails(scene, *[ATTACKER] * REQUESTS_FALL)
    await scene.turn()
    assert scene.ask.deep_asked == 1


async def test_behind_one_address_a_probe_that_fails_too_is_enough() -> None:
    scene = await watched()
    scene.ask.deep_is = FAILING
    fails(scene, VICTIM, VICTIM)
    assert await scene.turn() is State.SUSPECT
    for _ in range(REQUESTS_FALL - 3):
        fails(scene, VICTIM)
        assert scene.backend.fit
    fails(scene, VICTIM)
    assert scene.backend.state is State.EJECTED  # by the fifth failure, as for several clients


async def test_a_burst_behind_one_address_is_decided_by_the_first_probe() -> None:
    for deep, state in ((FAILING, State.EJECTED), (HUNG, State.EJECTED), (Outcome(), State.READY)):
        scene = await watched()
        scene.ask.deep_is = deep
        fails(scene, *[VICTIM] * 20)
        assert await scene.turn() is state


async def test_a_busy_probe_and_one_that_is_slow_while_others_progress_confirm_nothing() -> None:
    scene = await watched()
    stream = scene.lease()
    for deep in (HUNG, Outcome("status_503", busy=True)):
        scene.ask.deep_is = deep
        scene.ask.during_deep = lambda: stream.tokens(1)
        fails(scene, *[ATTACKER] * REQUESTS_FALL)
        await scene.turn()
        assert scene.backend.fit


async def test_where_no_probe_can_tell_the_requests_do() -> None:
    """Transcription; and a key that only clients have."""
    for task, deep in ((Task.NONE, Outcome()), (None, Outcome("status_401", busy=True))):
        scene = Scene()
        scene.ask.task_is, scene.ask.deep_is = task, deep  # type: ignore[assignment]
        await scene.turn()
        fails(scene, *[VICTIM] * REQUESTS_FALL)
        assert await scene.turn() is State.EJECTED


async def test_a_stray_failure_of_another_client_is_no_agreement() -> None:
    scene = await watched()
    fails(scene, VICTIM, *[ATTACKER] * REQUESTS_FALL)
    assert scene.backend.fit
    fails(scene, VICTIM)
    assert scene.backend.state is State.EJECTED


async def test_one_client_keeps_no_backend_from_warming_up() -> None:
    scene = await watched()
    scene.watch.certain("unreachable")
    assert await scene.turn(2) is State.WARMING
    for _ in range(10 * PROBATION_FALL):
        fails(scene, ATTACKER)
        assert await scene.turn(step_s=2.0) is not State.EJECTED
    assert scene.backend.state is State.READY


async def test_two_clients_or_a_probe_end_a_probation() -> None:
    for clients, deep in (("ab", Outcome()), ("aa", FAILING)):
        scene = await watched()
        scene.watch.certain("unreachable")
        assert await scene.turn(2) is State.WARMING
        scene.ask.deep_is, scene.ask.ready_is = deep, OK
        fails(scene, *clients)
        assert await scene.turn() is State.EJECTED


# Everywhere -------------------------------------------------------------------------------


def test_what_fails_at_more_than_half_of_a_pool_is_the_clients() -> None:
    backends, gate = fleet()
    a, b, c, d = backends
    causes = [failed(gate, each, ask_of(ATTACKER), 0.0) for each in (a, a, b, c, d, a)]
    assert causes == [Cause.BACKEND] * 3 + [Cause.CLIENT] * 3
    assert [each.failures_in_row for each in backends] == [2, 1, 0, 0]
    assert failed(gate, c, ask_of(VICTIM), 1.0) is Cause.BACKEND
    assert failed(gate, d, ask_of(ATTACKER), WITHIN_S) is Cause.BACKEND  # what was is forgotten


def test_a_pool_of_one_has_nobody_to_compare_with() -> None:
    pool, gate = fleet(1)
    for _ in range(9):
        assert failed(gate, pool[0], ask_of(ATTACKER), 0.0) is Cause.BACKEND


def test_a_kind_of_request_that_fails_everywhere_for_several_is_the_kinds() -> None:
    pool, gate = fleet()
    for client, backend in zip("xyxy", pool, strict=True):
        cause = failed(gate, backend, ask_of(client, "/v1/responses"), 0.0)
    assert cause is Cause.KIND
    assert failed(gate, pool[3], ask_of("z", "/v1/responses"), 0.0) is Cause.KIND
    assert failed(gate, pool[3], ask_of("z"), 0.0) is Cause.BACKEND


@pytest.mark.parametrize("clients", [1, 40])
def test_one_failure_at_the_peer_excuses_no_backend_that_fails_everything(clients: int) -> None:
    """Behind one ingress too, where its probes pass or none can be made."""
    pool, gate = fleet(2)
    bad, sound = pool
    for minute in range(5):
        failed(gate, sound, ask_of("0"), 60.0 * minute)
        before = bad.failures_in_row
        for second in range(1, 50):
            failed(gate, bad, ask_of(str(second % clients)), 60.0 * minute + second)
        assert bad.failures_in_row - before >= 40
    assert sound.failures_in_row <= 1


def test_what_fails_everywhere_is_explained_however_long_it_has_failed_at_one() -> None:
    """Not all are sent the same number of requests, and one may have failed before."""
    pool, gate = fleet()
    for second in range(600):
        failed(gate, pool[0], ask_of("xy"[second % 2]), float(second))
    causes = [
        failed(gate, pool[number % 4], ask_of("xyz"[number % 3]), 600.0 + 0.5 * number)
        for number in range(400)
    ]
    assert causes[200:].count(Cause.BACKEND) == 0


def test_one_client_makes_no_kind_suspect() -> None:
    pool, gate = fleet()
    for backend in pool:
        failed(gate, backend, ask_of(ATTACKER), 0.0)
    assert failed(gate, pool[0], ask_of(VICTIM), 0.0) is Cause.BACKEND


def test_backends_that_are_out_are_none_of_the_half() -> None:
    pool, gate = fleet()
    a, b, c, _ = pool
    for each in (a, b):
        failed(gate, each, ask_of(VICTIM), 0.0)
        each.state = State.EJECTED
    assert failed(gate, c, ask_of(VICTIM), 0.0) is Cause.BACKEND


def test_what_is_excused_explains_no_later_failure() -> None:
    """Streams of three clients broke all over while the process slept; then a backend dies."""
    pool, gate = fleet()
    for client in "abc":
        for backend in pool:
            lease = Lease(backend, ask_of(client), 0.0)
            complain(gate, lease, ConnectionReset(), 70.0, unheard, asleep=True)
    assert [each.failures_in_row for each in pool] == [0] * 4
    dead = pool[0]
    for number in range(REQUESTS_FALL):
        lease = Lease(dead, ask_of("abc"[number % 3]), 71.0 + number)
        complain(gate, lease, ConnectionReset(), 71.0 + number, unheard)
    assert dead.failures_in_row == REQUESTS_FALL


def test_its_memory_is_bounded() -> None:
    backends = tuple(numbered(4))
    pool, blame = Pool("default", backends, POLICIES["random"](backends)), Blame()
    for number in range(3 * KEYS_MAX):
        blame.note(pool, Lease(backends[0], ask_of(str(number)), 0.0), 0.0)
    assert len(blame) <= KEYS_MAX


def test_colluding_clients_that_fail_everywhere_eject_nobody() -> None:
    """Three of them, each request at the place that is chosen for it; nothing completes."""
    _, gate = fleet(8)
    attackers = ["x", "y", "z"]
    worst = 0
    for number in range(300):
        now_s = number * 0.2
        lease = gate.choose(ask_of(attackers[number % 3]), now_s)
        lease.fail(now_s, cause=gate.cause(lease, now_s))
        worst = max(worst, lease.backend.failures_in_row)
    assert worst < REQUESTS_FALL


# What it costs others: nothing -------------------------------------------------------------


def test_one_client_makes_a_backend_dear_to_itself_alone() -> None:
    pool, gate = fleet()
    backend = pool[0]
    for _ in range(3):
        failed(gate, backend, ask_of(ATTACKER), 0.0)
    assert backend.penalty.read(0.0, ATTACKER) == 3 * PENALTY_S
    assert backend.penalty.read(0.0, VICTIM) == 0.0
    failed(gate, backend, ask_of(VICTIM), 0.0)
    assert backend.penalty.read(0.0, "10.0.0.2") > 0.0  # two have met something


def test_what_fails_everywhere_makes_nobody_dear_to_others() -> None:
    pool, gate = fleet()
    for number in range(40):
        failed(gate, pool[number % 4], ask_of(ATTACKER), 0.1 * number)
    failed(gate, pool[0], ask_of("other"), 4.0)
    dear = [each.penalty.read(4.0, VICTIM) for each in pool]
    assert dear[1:] == [0.0, 0.0, 0.0]
    assert dear[0] <= PENALTY_S


@pytest.mark.parametrize("policy", ["least_requests", "peak_ewma", "least_tokens", "token_cost"])
def test_a_victims_requests_go_where_they_went_without_the_attacker(policy: str) -> None:
    """Its session's cache is at one backend, and half of an attacker's requests fail there."""
    backends = numbered(2)
    chosen = POLICIES[policy](backends)
    for _ in range(3):
        Lease(backends[0], ask_of(ATTACKER), 0.0).fail(0.0)
    Lease(backends[1], Ask("/", prompt_tokens=10_000, stream=True), 0.0)  # it has a little to do
    assert chosen.choose(backends, ask_of(VICTIM), 0.1, Random(1)) is backends[0]
    assert chosen.choose(backends, ask_of(ATTACKER), 0.1, Random(1)) is backends[1]


def test_one_clients_retries_leave_room_for_others() -> None:
    pool, gate = fleet()
    for backend in pool:  # nobody is alone any more
        failed(gate, backend, ask_of(VICTIM), 0.0)
        gate.may_retry(Lease(backend, ask_of(VICTIM), 0.0), Cause.NO_REQUEST, 0.0)
    for _ in range(50):
        lease = Lease(pool[0], ask_of(ATTACKER), 0.0)
        if gate.may_retry(lease, Cause.BACKEND, 0.0):
            Lease(pool[1], ask_of(ATTACKER), 0.0, retry=True)
    assert not gate.may_retry(Lease(pool[0], ask_of(ATTACKER), 0.0), Cause.BACKEND, 0.0)
    assert gate.may_retry(Lease(pool[0], ask_of("new"), 0.0), Cause.BACKEND, 0.0)


@pytest.mark.parametrize("clients", [1, 40])
def test_of_two_engines_that_die_together_as_much_moves_on_behind_one_address(clients: int) -> None:
    """All in prefill; the third has room, and the budget says how much at once."""
    pool, gate = fleet(3)
    leases = [Lease(pool[number % 3], ask_of(str(number % clients)), 0.0) for number in range(60)]
    moved = 0
    for lease in leases:
        if lease.backend is pool[2]:
            continue
        cause = gate.cause(lease, 1.0)
        lease.fail(1.0, cause=cause)
        if gate.may_retry(lease, cause, 1.0):
            moved += 1
            Lease(pool[2], lease.ask, 1.0, retry=True)
    assert moved >= 10  # a fifth of sixty, less what has ended meanwhile


def moves_on(gate: Gate, backends: list[Backend]) -> None:
    """All that a dead backend fails of a victim, far more than a fifth."""
    for _ in range(30):
        lease = Lease(backends[0], ask_of(VICTIM), 0.0)
        lease.fail(0.0)
        assert gate.may_retry(lease, Cause.BACKEND, 0.0)
        Lease(backends[1], ask_of(VICTIM), 0.0, retry=True)


def test_what_a_kind_of_request_fails_of_takes_nobodys_free_pass() -> None:
    pool, gate = fleet()
    for backend in pool[1:]:
        assert gate.may_retry(Lease(backend, ask_of(ATTACKER), 0.0), Cause.KIND, 0.0)
    moves_on(gate, pool)


def test_what_fails_everywhere_makes_no_backend_fail_beside_another() -> None:
    """An attacker's failures all over must not take the single dead backend's free pass."""
    pool, gate = fleet()
    for number in range(20):
        lease = Lease(pool[number % 4], ask_of(ATTACKER), 0.0)
        cause = gate.cause(lease, 0.0)
        lease.fail(0.0, cause=cause)
        if number >= 4:
            gate.may_retry(lease, cause, 0.0)
    moves_on(gate, pool)
