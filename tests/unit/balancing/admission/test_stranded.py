"""What waits in the line of a pool, while a pool that comes before it is away, and is back."""

import pytest

from penstock.balancing.admission.passes import PASSED_OVER_MAX
from penstock.balancing.admission.stranded import MOVED_MAX, TURNS_MAX
from penstock.balancing.backend import State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import NoBackend
from tests.unit.balancing.admission.lines import FILLS, Door, Priced, ready, send, waiting


def later() -> Door:
    """Two pools with a backend each. The first one is away, and the later one has all it takes."""
    door = Door("first", "later")
    door.fleet = Fleet(tuple(Pool(each.name, (each,), Priced()) for each in door.backends))
    door.backends[0].state = State.EJECTED
    door.enter(FILLS)
    return door


def test_those_that_a_pool_serves_again_go_there() -> None:
    door = later()
    waiting = [door.enter(100, 0.1, name=name) for name in ("x", "x", "y")]
    assert door.wake(1.0) == []
    door.backends[0].state = State.READY
    assert set(door.wake(2.0)) == set(waiting)
    assert {door.leases[each].backend.name for each in waiting} == {"first"}


def test_those_that_must_stay_keep_no_others_from_a_pool_that_is_back() -> None:
    door = later()
    first, second = door.backends
    first.models, second.models = {"m": b""}, {"m": b"", "n": b""}
    stay = [door.enter(100, 0.1, name="x", model="n") for _ in range(100)]
    go = [door.enter(100, 0.2, name=name, model="m") for name in ("x", "y")]
    first.state = State.READY
    assert set(door.wake(1.0)) == set(go)
    assert [each.waits for each in stay] == [True] * 100


def test_one_that_was_failed_there_keeps_no_others_from_a_pool_that_is_back() -> None:
    door = later()
    failed = door.ticket(100, 0.1, name="x")
    failed.tried = frozenset([door.backends[0]])
    door.come(failed, 0.1)
    go = [door.enter(100, 0.2, name="x") for _ in range(3)]
    door.backends[0].state = State.READY
    assert set(door.wake(1.0)) == set(go)
    assert failed.waits


def test_nobody_is_sent_out_of_turn_because_there_are_several_pools() -> None:
    """The flow that has waited for longest was given most. It was looked at first."""
    door = later()
    (running,) = door.leases
    for _ in range(20):  # too many for a place at once
        door.enter(FILLS, 0.1, name="greedy")
    modest = door.enter(FILLS, 0.2, name="modest")
    line = door.admission.lines["later"]
    line.queue.flows["greedy"].served += 100_000.0
    door.first(running, 1.0)
    assert door.wake(1.0) == [modest]


def test_they_are_told_if_no_pool_serves_them_any_more() -> None:
    door = later()
    waiting = door.enter(100, 0.1)
    door.fleet = Fleet((door.fleet.pools[0],))
    door.admission.follow(door.admission.rules)
    door.wake(1.0)
    assert [(each, type(outcome)) for each, outcome in door.told] == [(waiting, NoBackend)]


def test_one_that_the_pool_before_its_own_would_refuse_is_served_by_its_own() -> None:
    door = later()
    (running,) = door.leases
    waiting = [door.enter(8_000, 0.1, deadline_s=4.0) for _ in range(2)]
    door.backends[0].state = State.READY
    for _ in range(20):  # it has more than it can serve in that time
        door.enter(8_000, 0.2)
    busy = len(door.leases)
    door.wake(1.0)
    assert [each.pool for each in waiting] == ["later"] * 2
    door.first(running, 1.5)
    assert door.wake(1.5)[0] is waiting[0]
    assert door.leases[waiting[0]].backend.name == "later"
    assert len(door.leases) == busy + 1


def test_all_are_looked_at_anew_when_the_pool_before_is_back() -> None:
    """A look that saw a few of them goes on after these while it is away."""
    door = later()
    first, second = door.backends
    spare = ready("spare")
    door.fleet = Fleet((Pool("spare", (spare,), Priced()), *door.fleet.pools))
    first.models, second.models, spare.models = {"m": b""}, {"m": b"", "n": b""}, {"n": b""}
    spare.state = State.READY
    for _ in range(2 * TURNS_MAX * PASSED_OVER_MAX):
        door.enter(100, 0.1, model="m")
    assert door.wake(1.0) == []
    first.state = State.READY
    assert len(door.wake(1.6)) > 10


@pytest.mark.parametrize("leaves", [False, True])
def test_of_many_flows_the_last_one_has_its_look_while_backends_come_back_one_by_one(
    leaves: bool,
) -> None:
    """With each of them all are looked at anew. `leaves`: who was looked at last is gone then."""
    door = Door(*[f"{number}" for number in range(40)], "later", shares=(0.0, 0.0))
    *before, second = door.backends
    door.fleet = Fleet((Pool("first", tuple(before), Priced()), Pool("later", (second,), Priced())))
    for backend in before:
        backend.state, backend.models = State.EJECTED, {"m": b""}
    second.models = {"m": b"", "n": b""}
    door.enter(FILLS, model="n")
    flows = TURNS_MAX - 1 if leaves else 8 * TURNS_MAX
    for number in range(flows):
        door.enter(100, 0.1, name=f"{number}", model="n")
    comes = door.enter(100, 0.1, name="comes", model="n")
    last = door.enter(100, 0.2, name="last", rank=1, model="m")
    for number, backend in enumerate(before):
        backend.state = State.READY
        if last in door.wake(1.0 + number):
            return
        if leaves:
            door.admission.leave(comes, 1.0 + number)
            comes = door.enter(100, 1.0 + number, name=f"comes{number % 2}", model="n")
    raise AssertionError


def test_one_wake_moves_few() -> None:
    """Each costs predictions."""
    door = later()
    for number in range(3 * MOVED_MAX):
        door.enter(10, 0.1, name=f"{number}")
    door.backends[0].state = State.READY
    assert len(door.wake(1.0)) == MOVED_MAX


def test_a_share_that_is_owed_in_one_pool_takes_no_room_of_higher_classes_in_another() -> None:
    door = Door("first", "later", kv_tokens=40_000, shares=(0.0, 0.1))
    door.fleet = Fleet(tuple(Pool(each.name, (each,), Priced()) for each in door.backends))
    first, second = door.backends

    def fill(number: int) -> None:
        for _ in range(number):
            door.first(door.enter(2_000, name=f"{number}", max_tokens=10), 0.0)

    second.state = State.EJECTED
    fill(18)
    first.state, second.state = State.EJECTED, State.READY
    fill(19)
    low = door.enter(2_000, 0.1, name="low", rank=1, max_tokens=10, reserve=0.1)
    door.enter(3_500, 0.1, name="high", max_tokens=10)
    queue = door.admission.lines["later"].queue
    for _ in range(20):  # of each of these the low class is owed a share
        send(queue, waiting(queue, queue.flow("high"), 2_000))
    door.wake(1.0)
    first.state = State.READY
    door.admission.lines["later"].looks.renew()
    door.wake(1.15)  # too soon to look for what moves: it is looked at because it is owed something
    assert (low.pool, low.waits, low.reserve) == ("first", True, 0.1)
