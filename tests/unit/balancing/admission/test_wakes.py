"""A wake looks again only where that may find something."""

import pytest

from penstock.balancing.admission.admission import SEND_ALL_MAX
from penstock.balancing.admission.scan import FUTILE_S, LOOKS_MAX
from penstock.balancing.backend import State
from tests.unit.balancing.admission.lines import FILLS, Door, full


def blocked() -> Door:
    """Two backends take prompts, and the one that waits is too long for either cache."""
    door = Door("a", "b", kv_tokens=10_000)
    for _ in door.backends:
        door.enter(4_000)
    for place in range(2):
        door.open_up(0.3, place)
    assert door.enter(8_000, 0.4).waits
    return door


def test_wakes_that_find_no_room_in_any_cache_ask_the_policy_ten_times_a_second() -> None:
    door = blocked()
    choices = door.policy.choices
    for step in range(50):
        assert door.wake(0.4 + 0.01 * step) == []
    assert door.policy.choices - choices <= 0.5 / FUTILE_S + 1


def test_a_wake_sends_a_bounded_number_of_those_that_need_no_room() -> None:
    """Each of these sends begins an attempt, and all streams wait meanwhile."""
    door = Door("a", hold_for_backend_s=60.0)
    door.backends[0].state = State.EJECTED
    for number in range(4 * SEND_ALL_MAX):
        door.enter(20, name=f"{number}", generates=False, engine=False)
    door.backends[0].state = State.READY
    sent = [len(door.wake(0.2)) for _ in range(4)]
    assert max(sent) <= LOOKS_MAX + SEND_ALL_MAX
    assert sum(sent) == 4 * SEND_ALL_MAX


def bound_to_a_full_one() -> Door:
    """Another backend is open, but those that wait may not go there."""
    door = full("a", "b", "c")
    for _ in range(3):
        ticket = door.ticket(100)
        ticket.tried = door.backends[:1]
        door.come(ticket, 0.0)
    door.open_up(0.2, 0)
    return door


def test_the_policy_is_not_asked_for_those_who_may_not_go_to_what_is_open() -> None:
    door = bound_to_a_full_one()
    choices = door.policy.choices
    for step in range(20):
        assert door.wake(0.2 + step * FUTILE_S / 2) == []
    assert door.policy.choices == choices


def test_it_is_repeated_at_once_when_another_place_opens() -> None:
    door = bound_to_a_full_one()
    assert door.wake(0.2) == []
    door.open_up(0.22, 1)
    assert len(door.wake(0.22)) == 3


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("flows", [1, 9, 12, 13, 60])
def test_a_wake_that_can_send_nothing_is_not_repeated_for_ever(flows: int, ranks: int) -> None:
    """The only place that is open is too dear for all that waits."""
    door = Door("a", "b", prices={"a": 1.0, "b": 100.0}, shares=(0.0, 0.2, 0.1)[:ranks])
    door.enter(FILLS, 0.0, name="before")
    for number in range(5 * flows):
        for rank in range(ranks):
            door.enter(2_500 + number, 0.0, name=f"{number % flows}", rank=rank)
    wakes, before = 0, -1
    while door.changes != before and wakes < 1_000:
        before = door.changes
        assert door.wake(0.01) == []
        wakes += 1
    assert wakes <= 2 + ranks * flows / 4
    assert door.queue.waiting == 5 * flows * ranks


@pytest.mark.parametrize(("backends", "looks"), [(2, 24), (20, 24), (32, 16), (100, 8)])
def test_with_many_backends_a_wake_looks_at_fewer_requests(backends: int, looks: int) -> None:
    """Each look compares all backends, and streams wait meanwhile."""
    prices = {f"b{number}": 100.0 for number in range(backends)} | {"b0": 1.0}
    door = Door(*prices, prices=prices)
    door.enter(FILLS, 0.0, name="before")
    for number in range(200):
        door.enter(2_500, 0.0, name=f"{number % 50}")
    choices = door.policy.choices
    assert door.wake(0.01) == []
    assert door.policy.choices - choices == looks
    wakes, before = 0, -1
    while door.changes != before:
        before = door.changes
        assert door.wake(0.01) == []
        wakes += 1
        assert wakes < 100
