"""Which held requests a wake looks at, to find those that another pool serves."""

from typing import Any

import pytest

from penstock.balancing.admission.admission import SEND_ALL_MAX
from penstock.balancing.admission.elsewhere import Elsewhere
from penstock.balancing.admission.held import TURNS_MAX
from penstock.balancing.admission.passes import PASSED_OVER_MAX, Passes
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.lines import Door, ready, waiting
from tests.unit.balancing.admission.test_held import set_state, two_pools

CLASSES = {"shares": (0.0, 0.0), "classes": ("high", "low")}


def held_before_two(number: int, rank: int = 0) -> tuple[Door, Backend]:
    """One pool is down. The other serves none of these names, which one tenant has made up."""
    door = two_pools(**CLASSES)
    (z,) = door.fleet.pools[1].backends
    set_state(door, State.STARTING)
    z.models = {"other": b""}
    for each in range(number):
        door.enter(10, 0.0, name="bad", rank=rank, model=f"m{each}")
    assert door.wake(0.1) == []
    return door, z


def test_what_another_tenant_has_made_up_delays_nobody() -> None:
    door, z = held_before_two(10 * SEND_ALL_MAX)
    good = door.enter(10, 0.15, name="good", model="m")
    assert door.wake(0.3) == []
    z.models = {"other": b"", "m": b""}
    assert door.wake(0.5) == [good]


def test_what_waits_in_a_lower_class_delays_no_higher_one_of_its_own_tenant() -> None:
    door, z = held_before_two(10 * SEND_ALL_MAX, rank=1)
    high = door.enter(10, 0.15, name="bad", rank=0, model="m")
    z.models = {"other": b"", "m": b""}
    assert door.wake(0.3) == [high]


def test_nor_does_what_waits_in_a_higher_class_keep_a_lower_one_waiting() -> None:
    door, z = held_before_two(10 * SEND_ALL_MAX, rank=0)
    low = door.enter(10, 0.15, name="good", rank=1, model="m")
    z.models = {"other": b"", "m": b""}
    assert door.wake(0.3) == [low]


def test_of_more_tenants_than_a_wake_looks_at_all_have_a_look_in_turn() -> None:
    door, z = held_before_two(10 * SEND_ALL_MAX)
    many = [
        door.enter(10, 0.15, name=f"{number}", model=f"own{number}")
        for number in range(2 * SEND_ALL_MAX)
    ]
    z.models = {ticket.ask.model or "": b"" for ticket in many}
    sent: list[Ticket] = []
    for at_s in (0.3, 0.31, 0.5, 0.51, 0.7):  # after 64 looks the next wake goes on
        sent += door.wake(at_s)
    assert sent
    assert [ticket for ticket in many if ticket.pool == "p"] == []


def test_its_own_last_one_has_its_look_in_the_same_pass() -> None:
    door, z = held_before_two(2 * SEND_ALL_MAX)
    last = door.enter(10, 0.15, name="bad", model="m")
    z.models = {"other": b"", "m": b""}
    sent = [door.wake(0.11 * number) for number in range(3, 9)]
    assert [last] in sent


class Names(dict[str, bytes]):
    """The models of a backend, and which ones it was asked for."""

    def __init__(self) -> None:
        super().__init__(other=b"")
        self.asked: set[object] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(name)
        return super().__contains__(name)


def test_one_wake_looks_at_few() -> None:
    door, z = held_before_two(10 * SEND_ALL_MAX)
    for number in range(100):
        door.enter(10, 0.15, name=f"{number}", model=f"own{number}")
    for number in range(3, 9):
        names = z.models = Names()
        door.wake(0.11 * number)
        assert 0 < len(names.asked) <= SEND_ALL_MAX


def test_others_of_a_kind_that_has_found_no_place_have_no_look_in_this_pass() -> None:
    door, z = held_before_two(0)
    for tokens in (20, 30, 20, 10):
        door.enter(tokens, 0.15, name="good", model="m")
    last = door.enter(10, 0.15, name="good", model="n")
    z.models = {"other": b"", "n": b""}
    assert door.wake(0.3) == [last]


def test_one_that_a_backend_has_failed_hides_none_that_may_go_there() -> None:
    door, z = held_before_two(0)
    failed = door.ticket(10, name="x", model="other")
    failed.tried = frozenset([z])
    door.come(failed, 0.1)
    z.state = State.EJECTED
    good = door.enter(10, 0.15, name="x", model="other")
    z.state = State.READY
    assert door.wake(0.3) == [good]


def is_hidden(first: dict[str, Any], second: dict[str, Any], way: tuple[object, ...] = ()) -> bool:
    """Whether one that has found no place keeps another one from its look. `way`: of that one."""
    queue = Queue((0.0,))
    passes, flow = Passes(queue, TURNS_MAX), queue.flow("x")
    both = [waiting(queue, flow, 1) for _ in range(2)]
    for ticket, fields in zip(both, (first, second), strict=True):
        all_fields: dict[str, Any] = {"model": "m", "prompt_tokens": 100} | fields
        ticket.ask = Ask("/", **all_fields)
    both[1].way = way
    passes.begin(0.0)
    assert passes.next() is both[0]
    passes.found_nothing(both[0])
    found = passes.next()
    assert found in (None, both[1])
    return found is None


@pytest.mark.parametrize(
    "fields",
    [
        {"pool": "p"},
        {"model": "n"},
        {"client": "other"},
        {"response_id": "resp_1"},
        {"prompts": 2},
        {"first_pool": True},
        {"generates": False},
        {"uncut": True},
        {"counted": (100.0, 1.0)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_one_that_has_found_no_place_hides_none_that_may_have_one(fields: dict[str, Any]) -> None:
    assert is_hidden({}, {})
    assert is_hidden(fields, fields)
    assert not is_hidden({}, fields)
    assert not is_hidden(fields, {})


def test_nor_one_on_another_way() -> None:
    assert not is_hidden({}, {}, way=(1,))


def test_nor_one_that_another_model_may_count_as_shorter() -> None:
    """Its tokens are more by this model's estimate. That of a fall-back may be otherwise."""
    text = {"prompt_tokens": 100, "measured": (90.0, 10.0)}
    assert is_hidden(text, {"prompt_tokens": 101, "measured": (91.0, 10.0)})
    assert not is_hidden(text, {"prompt_tokens": 101, "measured": (101.0, 0.0)})
    assert not is_hidden(text, {"prompt_tokens": 101, "measured": (80.0, 21.0)})
    assert not is_hidden(
        text | {"media_parts": 1}, {"prompt_tokens": 101, "measured": (90.0, 20.0)}
    )
    assert not is_hidden(text, {"prompt_tokens": 99, "measured": (90.0, 10.0)})
    turns = {"prompt_tokens": 100, "counted": (90.0, 2.0)}
    assert not is_hidden(turns, {"prompt_tokens": 101, "counted": (95.0, 1.0)})


def test_what_another_pool_would_refuse_is_held_on() -> None:
    """No route is needed for that: it serves the same model."""
    door = Door(*"abcdefgh", hold_for_backend_s=60.0)
    z = ready("z")
    door.fleet = Fleet((*door.fleet.pools, Pool("q", (z,), door.policy)))
    set_state(door, State.STARTING)
    z.state = State.STARTING
    tokens = int(2.0 * z.prefill_speed.work_per_s)
    held = [
        door.enter(tokens, 0.0, name=f"{number}", deadline_s=9.0, impatient=False)
        for number in range(8)
    ]
    z.state = State.READY
    for number in range(1, 30):
        door.wake(0.11 * number)
    assert [outcome for _, outcome in door.told if not isinstance(outcome, Lease)] == []
    pools = [ticket.pool for ticket in held]
    assert (pools.count("p") > 2, pools.count("q") > 2) == (True, True)
    set_state(door, State.READY)
    door.wake(4.0)
    assert sum(each.own.requests for each in door.backends) >= pools.count("p")


def test_what_is_held_anew_is_looked_at_from_the_first_one_on() -> None:
    """Its pool has lost its backend again. The passes of the last time were not over."""
    door, z = held_before_two(2 * SEND_ALL_MAX)
    first = door.queue.oldest(1)[0]
    line = door.admission.lines["p"]
    line.look_for_backends(0.2, holds=False)  # a wake that sends nothing: no place is free
    z.models = {first.ask.model or "": b""}
    assert door.wake(0.3) == [first]


def of_flows(queue: Queue, number: int) -> list[list[Ticket]]:
    """Two requests of each of so many flows."""
    flows = [queue.flow(f"{each}") for each in range(number)]
    return [[waiting(queue, flow, 1) for _ in range(2)] for flow in flows]


def test_flows_have_one_look_each_in_a_turn_in_their_order() -> None:
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    (a, b, c) = of_flows(queue, 3)
    passes.begin(0.0)
    assert [passes.next() for _ in range(7)] == [a[0], b[0], c[0], a[1], b[1], c[1], None]


def test_a_wake_goes_on_with_the_turn_of_the_last_one() -> None:
    """It may have had as many looks as it may take. Otherwise the last flows would have none."""
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    (a, b, c) = of_flows(queue, 3)
    found = []
    for _ in range(4):
        passes.begin(0.0)
        found.append(passes.next())
    assert found == [a[0], b[0], c[0], a[1]]


def test_what_begins_anew_begins_with_the_first_flow() -> None:
    """Nothing is left of a turn that was not over, nor of what it knew."""
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    (a, _) = of_flows(queue, 2)
    passes.begin(0.0)
    assert passes.next() is a[0]
    passes.clear()
    passes.begin(0.0)
    assert passes.next() is a[0]


def test_what_has_left_since_the_pass_began_has_no_look() -> None:
    queue = Queue((0.0,))
    passes, flow = Passes(queue, TURNS_MAX), queue.flow("x")
    gone, moved, last = [waiting(queue, flow, 1) for _ in range(3)]
    passes.begin(0.0)
    queue.remove(gone)
    queue.remove(moved)
    other = Queue((0.0,))
    moved.flow = other.flow("x")
    other.add(moved)
    assert passes.next() is last


def test_those_without_a_place_are_passed_over_in_several_wakes() -> None:
    """Nor do they delay the look at what others have sent."""
    queue = Queue((0.0,))
    passes, flow = Passes(queue, TURNS_MAX), queue.flow("x")
    first = waiting(queue, flow, 1)
    for _ in range(2 * TURNS_MAX * PASSED_OVER_MAX):
        waiting(queue, flow, 1)
    last, other = waiting(queue, flow, 1), waiting(queue, queue.flow("y"), 1)
    last.ask, other.ask = Ask("/", model="m"), Ask("/", model="n")
    seen: list[set[Ticket]] = []
    for _ in range(3):
        passes.begin(0.0)
        found: set[Ticket] = set()
        while (ticket := passes.next()) is not None:
            found.add(ticket)
            passes.found_nothing(ticket)
        seen.append(found)
    assert seen == [{first, other}, {other}, {last, other}]


def busy(backend: Backend, door: Door, pool: str, for_s: float = 5.0) -> None:
    """It works on a prompt for so long, and goes down."""
    door.enter(int(for_s * backend.prefill_speed.work_per_s), pool=pool, name="before")
    assert backend.own.requests == 1
    backend.state = State.STARTING


def test_one_that_would_be_refused_hides_none_whose_class_gives_more_time() -> None:
    door = Door("a", hold_for_backend_s=60.0)
    z = ready("z")
    door.fleet = Fleet((*door.fleet.pools, Pool("q", (z,), door.policy)))
    busy(z, door, "q")
    set_state(door, State.STARTING)
    held = [
        door.enter(100, 0.0, name="x", deadline_s=deadline_s, impatient=False)
        for deadline_s in (1.0, 60.0)
    ]
    z.state = State.READY
    door.wake(0.2)
    door.wake(0.4)
    assert [ticket.pool for ticket in held] == ["p", "q"]
    assert door.told == []


def test_one_whose_fall_back_would_refuse_it_may_have_a_backend_that_failed_it_again() -> None:
    door = Door("a", hold_for_backend_s=60.0)
    ticket = door.ticket(100)
    ticket.tried = frozenset(door.backends)
    door.come(ticket, 0.0)
    ticket.elsewhere = _always
    door.wake(0.6)
    assert [type(outcome) for _, outcome in door.told] == [Elsewhere]
    ticket.stays_until_s = 1.6
    assert [door.wake(at_s) for at_s in (0.9, 1.2)] == [[], [ticket]]


def _always() -> bool:
    return True
