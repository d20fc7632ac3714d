"""A wake looks again only where that may find something."""

from penstock.balancing.admission.scan import FUTILE_S
from tests.unit.balancing.admission.lines import Door, full


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
