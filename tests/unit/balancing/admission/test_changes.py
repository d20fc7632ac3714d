"""What becomes of those that wait when backends, pools or rules change."""

import pytest

from penstock.balancing.admission.admission import Rules
from penstock.balancing.admission.stranded import FLOWS_MAX
from penstock.balancing.backend import State
from penstock.balancing.fleet import Fleet, Pool, UnknownModel
from penstock.balancing.gate import NoBackend
from tests.unit.balancing.admission.lines import FILLS, Door, Priced, full


def test_if_there_is_no_backend_a_new_request_is_told_so() -> None:
    door = Door("a")
    door.backends[0].state = State.EJECTED
    with pytest.raises(NoBackend):
        door.enter(100)
    assert door.admission.waiting == 0


def test_those_that_wait_are_told_when_there_is_no_backend_any_more() -> None:
    door = full("a")
    tickets = [door.enter(100, 0.01), door.enter(100, 0.02)]
    door.backends[0].state = State.EJECTED
    for lease in list(door.leases.values()):
        lease.fail(0.1)
    assert door.wake(0.1) == []
    assert [ticket for ticket, _ in door.told] == tickets
    assert all(isinstance(outcome, NoBackend) for _, outcome in door.told)
    assert door.admission.waiting == 0


def test_they_are_told_also_while_its_last_requests_have_not_failed_yet() -> None:
    door = full("a")
    door.enter(100, 0.01)
    door.backends[0].state = State.EJECTED
    door.wake(1.0)
    assert [type(outcome) for _, outcome in door.told] == [NoBackend]


def test_a_backend_that_is_new_gets_what_waits() -> None:
    door = Door("a", "b")
    door.backends[1].state = State.STARTING
    door.enter(FILLS)
    ticket = door.enter(FILLS)
    assert ticket.waits
    door.backends[1].state = State.READY
    assert door.wake(1.0) == [ticket]


def test_what_waits_for_a_pool_that_is_gone_goes_to_another_one_that_serves_it() -> None:
    door = full("a")
    ticket = door.enter(100, 0.01)
    other = Door("z").backends
    door.fleet = Fleet((Pool("q", other, door.policy),))
    door.admission.follow(Rules(enabled=True))
    door.open_up(0.1)
    assert door.wake(0.1) == [ticket]
    assert door.leases[ticket].backend is other[0]
    assert door.admission.lines["p"].queue.waiting == 0
    door.leases[ticket].end(0.2)
    assert all(backend.own.idle for backend in other)


def test_if_no_pool_serves_its_model_any_more_it_is_told() -> None:
    door = full("a")
    ticket = door.enter(100, 0.01, model="m")
    other = Door("z").backends
    other[0].models = {"other": b""}
    door.fleet = Fleet((Pool("q", other, door.policy),))
    door.open_up(0.1)
    door.wake(0.1)
    assert [(each, type(outcome)) for each, outcome in door.told] == [(ticket, UnknownModel)]


def test_the_line_of_a_pool_that_is_gone_is_forgotten_when_it_is_empty() -> None:
    door = full("a")
    door.fleet = Fleet(())
    door.admission.follow(Rules(enabled=True))
    assert "p" in door.admission.lines
    for lease in door.leases.values():
        lease.end(0.1)
    door.admission.follow(Rules(enabled=True))
    assert door.admission.lines == {}
    assert door.backends[0].occupancy is None


def test_new_rules_may_have_more_classes() -> None:
    door = full("a")
    door.admission.follow(Rules(enabled=True, shares=(0.0, 0.1)))
    ticket = door.enter(FILLS, 0.01, rank=1)
    door.open_up(0.1)
    assert door.wake(0.1) == [ticket]


def test_if_new_rules_hold_nothing_what_waits_is_sent() -> None:
    door = full("a")
    tickets = [door.enter(FILLS, 0.01) for _ in range(3)]
    door.admission.follow(Rules(enabled=False))
    assert door.wake(0.1) == tickets


def test_a_backend_that_a_reload_removed_keeps_nobody_waiting() -> None:
    """It still works on what it has, and looks ready."""
    door = full("a", "b")
    ticket = door.enter(FILLS, 0.1)
    stays = door.backends[1:]
    door.fleet = Fleet((Pool("p", stays, door.policy),))
    door.admission.follow(Rules(enabled=True))
    stays[0].state = State.EJECTED
    door.wake(0.3)
    assert [(each, type(outcome)) for each, outcome in door.told] == [(ticket, NoBackend)]


def test_of_many_that_wait_those_are_told_that_no_backend_is_left_for() -> None:
    door = Door("a", "b")
    door.backends[0].models, door.backends[1].models = {"m": b""}, {"n": b""}
    for model in ("m", "n"):
        door.enter(FILLS, model=model)
    stay = [door.enter(FILLS, 0.01, model="m", name=name) for name in ("one", "two")]
    go = [door.enter(FILLS, 0.02, model="n", name=name) for name in ("three", "four")]
    door.backends[1].state = State.EJECTED
    door.wake(1.0)
    assert [(each, type(outcome)) for each, outcome in door.told] == [
        (each, NoBackend) for each in go
    ]
    assert all(each.waits for each in stay)


def test_of_many_flows_all_are_told_within_a_few_wakes() -> None:
    door = Door("a", "b")
    door.backends[0].models, door.backends[1].models = {"m": b""}, {"n": b""}
    for model in ("m", "n"):
        door.enter(FILLS, model=model)
    names = [str(number) for number in range(3 * FLOWS_MAX)]
    stay = [door.enter(FILLS, 0.01, model="m", name=name) for name in names[::2]]
    go = [door.enter(FILLS, 0.02, model="n", name=name) for name in names[1::2]]
    door.backends[1].state = State.EJECTED
    for tenth in range(4):
        door.wake(1.0 + tenth / 10)
    assert {each for each, outcome in door.told if isinstance(outcome, NoBackend)} == set(go)
    assert sum(each.waits for each in stay) >= len(stay) - 1


def test_one_that_moves_to_another_pool_loses_nothing_of_the_same_wake() -> None:
    """Two pools serve a model. One was down for a while, and then both were full."""
    door = Door("p", "q", kv_tokens=10_000)
    first, second = door.backends
    pools = [Pool(each.name, (each,), Priced()) for each in door.backends]
    door.fleet = Fleet(tuple(pools))
    first.state = State.EJECTED
    door.first(door.enter(5_000, 0.0, max_tokens=100), 0.5)
    long = door.enter(8_000, 0.6, max_tokens=100)
    prompt = door.enter(2_000, 0.7, max_tokens=20, pool="q")
    assert door.wake(0.7) == [prompt]
    assert door.wake(4.0) == []
    first.state = State.READY
    door.enter(9_000, 4.0, max_tokens=100, pool="p")
    urgent = door.enter(10, 4.0, max_tokens=20, pool="q")
    door.first(prompt, 4.05)
    assert door.wake(4.05) == [urgent]
    assert (long.waits, long.pool, urgent in door.leases) == (True, "p", True)
    assert door.leases[urgent].backend is second
