"""What waits while no backend of its pool can serve."""

import contextlib
from typing import Any

import pytest

from penstock.balancing.admission.admission import Rules
from penstock.balancing.admission.forecast import Fate
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.ticket import Refused, Ticket
from penstock.balancing.backend import State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import NoBackend
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.lines import FILLS, Door, full


def starting(*names: str, hold_s: float = 60.0, **rules: Any) -> Door:
    door = Door(*names, hold_for_backend_s=hold_s, **rules)
    set_state(door, State.STARTING)
    return door


def set_state(door: Door, state: State) -> None:
    for backend in door.backends:
        backend.state = state


def outcomes(door: Door) -> list[type]:
    return [type(outcome) for _, outcome in door.told]


def test_a_request_waits_for_a_backend_that_starts() -> None:
    door = starting("a")
    ticket = door.enter(100, 0.0)
    assert ticket.waits
    assert door.admission.held("p") == (1, 100)
    assert door.wake(30.0) == []
    set_state(door, State.READY)
    assert door.wake(30.1) == [ticket]
    assert door.admission.held("p") == (0, 0)


def test_it_waits_no_longer_than_is_configured() -> None:
    door = starting("a", hold_s=5.0)
    door.enter(100, 0.0)
    door.enter(100, 1.0)
    door.wake(5.0)
    assert outcomes(door) == []
    door.wake(5.2)
    assert outcomes(door) == [NoBackend]
    door.wake(6.3)
    assert outcomes(door) == [NoBackend] * 2
    assert door.admission.waiting == 0


def test_by_default_nothing_waits_for_a_backend() -> None:
    door = starting("a", hold_s=0.0)
    with pytest.raises(NoBackend):
        door.enter(100)


def test_the_wait_for_a_backend_counts_for_no_class() -> None:
    door = starting("a")
    first = door.enter(FILLS, 0.0, deadline_s=2.0, impatient=False)
    second = door.enter(FILLS, 1.0, deadline_s=2.0, impatient=False)
    door.wake(40.0)
    set_state(door, State.READY)
    assert door.wake(40.1) == [first]
    assert second.waits
    assert second.waited_s(41.1) == pytest.approx(1.0)
    door.wake(41.2)
    assert outcomes(door) == [Lease]
    door.wake(42.3)
    assert outcomes(door) == [Lease, Refused]


def test_it_counts_for_a_client_that_said_how_long_it_waits() -> None:
    door = starting("a")
    door.enter(100, 0.0, deadline_s=2.0)
    door.wake(1.0)
    assert outcomes(door) == []
    door.wake(2.1)
    assert outcomes(door) == [Refused]


def test_what_had_waited_for_room_waits_for_a_backend_when_the_last_one_is_lost() -> None:
    door = full("a", hold_for_backend_s=60.0)
    ticket = door.enter(100, 0.01, deadline_s=3.0, impatient=False)
    set_state(door, State.EJECTED)
    for lease in door.leases.values():
        lease.fail(1.0)
    assert door.wake(1.0) == []
    assert door.wake(50.0) == []
    assert ticket.waits
    set_state(door, State.READY)
    assert door.wake(50.1) == [ticket]


def test_a_backend_that_had_failed_it_may_serve_it_when_it_is_back() -> None:
    door = starting("a")
    ticket = door.ticket(100)
    ticket.tried = frozenset(door.backends)
    door.come(ticket, 0.0)
    assert ticket.waits
    set_state(door, State.READY)
    assert door.wake(1.0) == [ticket]


def test_one_that_serves_on_may_have_it_again_after_a_second() -> None:
    door = Door("a", hold_for_backend_s=60.0)
    ticket = door.ticket(100)
    ticket.tried = frozenset(door.backends)
    door.come(ticket, 0.0)
    other = door.enter(100, 0.1, name="other")
    assert other in door.leases
    assert [door.wake(at_s) for at_s in (0.2, 0.9, 1.5)] == [[], [], [ticket]]


def test_no_more_waits_than_the_backends_could_serve_in_time() -> None:
    door = starting("a")
    speed = door.backends[0].prefill_speed.work_per_s
    fits = int(0.6 * 10.0 * speed / 5_000)  # 60 % of the deadline

    def come() -> None:
        door.enter(5_000, 0.0, deadline_s=10.0, impatient=False, name="flood")

    for _ in range(fits):
        come()
    for _ in range(2):
        with contextlib.suppress(Refused):
            come()
    with pytest.raises(Refused):
        come()
    assert door.enter(5_000, 0.0, deadline_s=10.0, impatient=False, name="other").waits


def test_who_was_held_goes_in_the_order_of_classes_and_flows() -> None:
    door = starting("a", shares=(0.0, 0.0), classes=("high", "low"))
    flood = [door.enter(500, 0.0, rank=1, name="flood") for _ in range(20)]
    other = door.enter(500, 1.0, rank=1, name="other")
    high = door.enter(500, 2.0, name="third")
    set_state(door, State.READY)
    sent = door.wake(3.0)
    assert sent[0] is high
    assert sent.index(other) <= 2
    assert len(sent) < len(flood)


def test_what_generates_nothing_is_held_too_and_then_sent_at_once() -> None:
    door = starting("a")
    tickets = [door.enter(200, 0.0, generates=False) for _ in range(5)]
    set_state(door, State.READY)
    sent: list[object] = []
    for number in range(5):
        sent += door.wake(1.0 + 0.1 * number)
    assert sent == tickets


def test_a_request_for_a_stored_response_does_not_wait() -> None:
    door = starting("a")
    with pytest.raises(NoBackend):
        door.enter(100, response_id="resp_1")


def test_another_pool_that_comes_first_serves_what_it_can() -> None:
    door = starting("a")
    other = Door("z").backends
    other[0].state = State.STARTING
    door.fleet = Fleet((*door.fleet.pools, Pool("q", other, door.policy)))
    door.admission.follow(Rules(enabled=True, hold_for_backend_s=60.0))
    tickets = [door.enter(100, 0.0, model=model) for model in ("m", "n", "m", "m")]
    assert door.wake(1.0) == []
    other[0].state, other[0].models = State.READY, {"m": b""}
    assert door.wake(2.0) == [tickets[0], *tickets[2:]]
    assert door.admission.held("p") == (1, 100)


def test_a_reload_that_holds_nothing_any_more_tells_those_that_wait() -> None:
    door = starting("a")
    door.enter(100, 0.0)
    door.wake(1.0)
    door.admission.follow(Rules(enabled=True))
    door.wake(1.1)
    assert outcomes(door) == [NoBackend]


def test_a_time_in_which_the_process_did_not_run_is_no_wait() -> None:
    door = starting("a", hold_s=5.0)
    ticket = door.enter(100, 0.0)
    ticket.slept(100.0)
    door.admission.slept(100.0)
    door.wake(104.0)
    assert outcomes(door) == []
    door.wake(105.2)
    assert outcomes(door) == [NoBackend]


def test_nothing_is_learnt_of_the_pace_while_no_backend_can_serve() -> None:
    door = full("a", hold_for_backend_s=60.0)
    door.enter(100, 0.0)
    line = door.admission.lines["p"]
    set_state(door, State.EJECTED)
    door.wake(0.1)
    assert line.queue.general() == 0
    set_state(door, State.READY)
    door.wake(50.0)
    assert line.queue.general() == 1


def test_a_dry_run_says_that_it_would_wait_for_a_backend() -> None:
    door = starting("a")
    ticket = Ticket(door.ticket(100).ask, 0.0, print, dry=True)
    told = door.admission.forecast(ticket, 0.0)
    assert (told.fate, told.lack, told.allowed_s) == (Fate.WAIT, Lack.BACKEND, 60.0)
    assert door.admission.waiting == 0
    with pytest.raises(NoBackend):
        starting("a", hold_s=0.0).admission.forecast(ticket, 0.0)


def two_pools(**rules: Any) -> Door:
    """Two pools with a backend each, that may both serve everything."""
    door = Door("a", hold_for_backend_s=60.0, **rules)
    other = Door("z").backends
    door.fleet = Fleet((*door.fleet.pools, Pool("q", other, door.policy)))
    door.admission.follow(Rules(enabled=True, hold_for_backend_s=60.0, **rules))
    return door


def test_one_that_was_failed_there_keeps_no_other_from_a_backend_that_is_back() -> None:
    door = two_pools()
    (z,) = door.fleet.pools[1].backends
    set_state(door, State.STARTING)
    z.state = State.EJECTED
    failed = door.ticket(100, name="failed")
    failed.tried = frozenset([z])
    door.come(failed, 0.0)
    others = [door.enter(100, 0.1, name=f"{number}") for number in range(2)]
    z.state = State.READY
    assert set(door.wake(0.5)) == set(others)
    assert door.wake(2.0) == []
    assert door.wake(2.5) == [failed]


def test_one_for_the_first_pool_keeps_no_other_from_its_backend() -> None:
    door = two_pools()
    (z,) = door.fleet.pools[1].backends
    set_state(door, State.STARTING)
    z.state = State.STARTING
    first = door.enter(100, 0.0, name="first", first_pool=True)
    other = door.enter(100, 0.1, name="other")
    z.state = State.READY
    assert door.wake(0.5) == [other]
    assert first.waits


def test_a_look_at_the_queue_takes_no_backend_from_its_pool() -> None:
    door = two_pools()
    (a,), (z,) = (pool.backends for pool in door.fleet.pools)
    set_state(door, State.EJECTED)
    for _ in range(2):
        waits = door.enter(FILLS, 0.0, name="before")
    assert (waits.waits, waits.pool) == (True, "q")
    set_state(door, State.READY)
    assert door.admission.lack(waits, 0.1) == (a, Lack.TURN)
    assert a not in door.admission.lines["q"].places.rooms
    assert z.occupancy is door.admission.lines["q"]


def test_a_wait_that_has_ended_counts_for_no_later_one() -> None:
    door = Door("a", "b", hold_for_backend_s=60.0)
    a, b = door.backends
    b.state = State.EJECTED
    ticket = door.ticket(100, 20.0, deadline_s=10.0, impatient=False)
    ticket.tried = frozenset([a])
    door.come(ticket, 20.0)
    b.state = State.READY
    assert door.wake(20.6) == [ticket]
    assert ticket.held_since_s is None
    assert ticket.waited_s(30.6) > 9.0


def test_what_only_some_may_serve_tells_nothing_of_the_pool_afterwards_either() -> None:
    door = full("a", "b", hold_for_backend_s=60.0)
    door.backends[0].models = {"m": b""}
    door.backends[1].models = {"n": b""}
    ticket = door.enter(FILLS, 0.0, model="m")
    line = door.admission.lines["p"]
    assert (ticket.waits, line.queue.general()) == (True, 0)
    set_state(door, State.EJECTED)
    door.wake(0.1)
    set_state(door, State.READY)
    door.wake(0.3)
    assert line.queue.general() == 0


def test_tokens_of_a_flow_in_two_classes_are_told_once() -> None:
    door = starting("a", shares=(0.0, 0.0), classes=("high", "low"))
    door.enter(1_000, 0.0, name="x", rank=0)
    door.enter(100, 0.0, name="x", rank=1)
    assert door.admission.held("p") == (2, 1_100)


def test_a_dry_run_refuses_what_would_be_refused() -> None:
    door = starting("a")
    door.backends[0].models = {"m": b""}
    flood = {"deadline_s": 10.0, "impatient": False, "name": "flood"}
    with contextlib.suppress(Refused):
        for _ in range(1_000):
            door.enter(5_000, 0.0, model="m", **flood)
    ticket = Ticket(door.ticket(5_000, model="m").ask, 0.0, print, "flood", 0, 10.0, dry=True)
    assert door.admission.forecast(ticket, 0.0).fate is Fate.REFUSE
    both = Door("a", "b", hold_for_backend_s=60.0)
    both.backends[0].models, both.backends[1].models = {"m": b""}, {"n": b""}
    both.backends[0].state = State.EJECTED
    lost = Ticket(both.ticket(100, model="m").ask, 0.0, print, dry=True)
    with pytest.raises(NoBackend):
        both.admission.forecast(lost, 0.0)


def test_what_waits_in_a_full_pool_goes_to_the_one_before_it_when_that_is_back() -> None:
    door = two_pools()
    set_state(door, State.EJECTED)
    tickets = [door.enter(FILLS, 0.0, name=f"{number}") for number in range(3)]
    assert [ticket.waits for ticket in tickets] == [False, True, True]
    set_state(door, State.READY)
    assert door.wake(1.0) == [tickets[1]]
    assert door.leases[tickets[1]].backend is door.backends[0]
    assert tickets[2].pool == "p"


def test_one_that_has_failed_meanwhile_does_not_keep_others_longer() -> None:
    """It goes first in its flow, and is held for a shorter time."""
    door = Door("a", hold_for_backend_s=120.0)
    failed = door.enter(100, 0.0)
    set_state(door, State.EJECTED)
    held = door.enter(100, 0.0)
    door.wake(50.0)
    lease = door.leases[failed]
    lease.fail(50.0)
    lease.end(50.0)
    failed.tried, failed.since_s = frozenset({lease.backend}), 50.0
    door.come(failed, 50.0)
    door.wake(119.0)
    assert door.told == []
    door.wake(121.0)
    assert [ticket for ticket, _ in door.told] == [held]
    door.wake(171.0)
    assert outcomes(door) == [NoBackend] * 2


def test_a_backend_that_is_back_for_a_moment_ends_all_that_was_held_until_then() -> None:
    """What comes in that moment waits for room. No wake looks at its line meanwhile."""
    door = two_pools()
    (z,) = door.fleet.pools[1].backends
    z.models = {"else": b""}
    set_state(door, State.STARTING)
    held = {"deadline_s": 30.0, "impatient": False, "model": "m"}
    first = door.enter(10, 0.0, **held)
    door.wake(0.05)
    set_state(door, State.READY)
    second = door.enter(10, 10.0, **held)
    set_state(door, State.STARTING)
    door.wake(10.1)
    assert (first.waits, second.waits) == (True, True)
    assert first.held_since_s == second.held_since_s == 10.1
    door.wake(70.0)
    assert door.told == []
    door.wake(70.2)
    assert outcomes(door) == [NoBackend] * 2


def test_those_that_a_backend_has_failed_hide_none_that_is_held_for_longer() -> None:
    """They stand first in their flow."""
    door = starting("a")
    old = door.enter(100, name="x")
    for number in range(20):
        failed = door.ticket(100, 50.0 + number / 10.0, name="x")
        failed.tried = frozenset(door.backends)
        door.come(failed, failed.since_s)
    door.wake(61.0)
    assert [(ticket, type(outcome)) for ticket, outcome in door.told] == [(old, NoBackend)]
