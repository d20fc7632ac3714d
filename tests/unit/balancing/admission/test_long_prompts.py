"""One tenant's long prompts, and long lists of prompts, beside another tenant's short ones."""

from typing import Any

import pytest

from penstock.balancing.admission.company import LATELY_S
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.ticket import Refused, Ticket
from penstock.balancing.backend import Backend, State
from tests.unit.balancing.admission.lines import FILLS, Door

WHOLE: dict[str, Any] = {"blocks": tuple(range(175)), "block_tokens": 160.0}  # of such a prompt
LONG = 28_000  # no giant, and nearly two seconds of prefill
TEXTS: dict[str, Any] = {"prompts": 30, "generates": False, "stream": False}
KINDS: list[dict[str, Any]] = [
    TEXTS,
    {"max_tokens": 10},
    {"prompts": 30, "max_tokens": 10},
]


def door_of(backends: int) -> Door:
    return Door(*"abcdefgh"[:backends], kv_tokens=400_000)


def chat(door: Door, now_s: float) -> Ticket:
    """A short request of another tenant, which is served at once."""
    ticket = door.enter(100, now_s, name="chats", max_tokens=10)
    door.finish(ticket, now_s)
    return ticket


def has_long(door: Door) -> set[Backend]:
    leases = door.leases.values()
    return {each.backend for each in leases if each.ask.prompt_tokens == LONG and not each.ended}


@pytest.mark.parametrize("fields", KINDS)
@pytest.mark.parametrize(("backends", "most"), [(2, 1), (3, 2), (4, 3), (8, 6)])
def test_a_flood_of_long_ones_leaves_backends_to_others(
    fields: dict[str, Any], backends: int, most: int
) -> None:
    door = door_of(backends)
    chat(door, 0.0)
    flood = [door.enter(LONG, 0.1, name="flood", **fields) for _ in range(20)]
    door.wake(0.1)
    assert len(has_long(door)) == most
    for number in range(20):
        ticket = door.enter(100, 0.2 + number / 10, name="chats", max_tokens=10)
        assert ticket in door.leases or door.wake(0.2 + number / 10) == [ticket]
        assert door.leases[ticket].backend not in has_long(door)
        door.finish(ticket, 0.25 + number / 10)
    door.finish(next(each for each in flood if each in door.leases), 3.0)
    assert len(door.wake(3.0)) == 1


@pytest.mark.parametrize("fields", KINDS)
def test_who_is_alone_has_long_ones_everywhere(fields: dict[str, Any]) -> None:
    door = door_of(4)
    for _ in range(20):
        door.enter(LONG, 0.0, name="flood", **fields)
    door.wake(0.0)
    assert len(has_long(door)) == 4


def test_tenants_of_which_none_generates_have_lists_everywhere() -> None:
    door = door_of(4)
    for number in range(20):
        door.enter(LONG, 0.0, name="few" if number % 10 == 0 else "flood", **TEXTS)
    door.wake(0.0)
    assert len(has_long(door)) == 4


@pytest.mark.parametrize("fields", KINDS)
def test_who_has_asked_for_nothing_for_long_is_not_waited_for(fields: dict[str, Any]) -> None:
    door = door_of(2)
    chat(door, 0.0)
    for _ in range(3):
        door.enter(LONG, 0.1, name="flood", **fields)
    door.wake(LATELY_S - 0.1)
    assert len(has_long(door)) == 1
    door.wake(LATELY_S + 0.1)
    assert len(has_long(door)) == 2


def test_who_is_refused_because_of_the_flood_is_made_room_for() -> None:
    door = door_of(2)
    for _ in range(6):
        door.enter(LONG, 0.0, name="flood", max_tokens=10)
    door.wake(0.0)
    assert len(has_long(door)) == 2
    with pytest.raises(Refused):
        door.enter(100, 0.1, name="chats", max_tokens=10, deadline_s=0.3)
    door.finish(next(iter(door.leases)), 1.0)
    door.wake(1.0)
    assert len(has_long(door)) == 1


def test_what_runs_on_a_backend_that_serves_no_more_takes_none_of_the_others() -> None:
    door = door_of(3)
    giant = door.enter(20, 0.0, name="flood", **GIANT)
    door.leases[giant].backend.state = State.EJECTED
    chat(door, 0.1)
    door.enter(LONG, 0.2, name="flood", max_tokens=10)
    assert len(has_long(door)) == 1


def test_two_tenants_with_long_ones_leave_nothing_unused() -> None:
    door = door_of(4)
    for _ in range(10):
        for name in ("one", "other"):
            door.enter(LONG, 0.0, name=name, max_tokens=10)
    door.wake(0.0)
    assert len(has_long(door)) == 4


def test_a_prompt_that_is_nearly_all_cached_is_not_long() -> None:
    door = door_of(2)
    door.finish(door.enter(LONG, 0.0, name="flood", **WHOLE), 1.0)
    home = next(iter(door.leases.values())).backend
    busy = door.enter(LONG, 1.1, name="flood", max_tokens=10)
    chat(door, 1.1)
    if door.leases[busy].backend is home:
        pytest.fail("the other one is to be busy")
    ticket = door.enter(LONG, 1.2, name="flood", **WHOLE)
    assert door.leases[ticket].backend is home


@pytest.mark.parametrize("fields", KINDS)
def test_what_it_waits_for_can_be_read(fields: dict[str, Any]) -> None:
    door = door_of(2)
    chat(door, 0.0)
    door.enter(LONG, 0.1, name="flood", **fields)
    second = door.enter(LONG, 0.1, name="flood", **fields)
    assert door.admission.lack(second, 0.2)[1] is Lack.LONG


@pytest.mark.parametrize("fields", KINDS)
def test_those_that_wait_keep_no_lower_class_waiting(fields: dict[str, Any]) -> None:
    door = Door("a", "b", kv_tokens=400_000, shares=(0.0, 0.0), classes=("high", "low"))
    low: dict[str, Any] = {"name": "chats", "rank": 1, "max_tokens": 10}
    door.finish(door.enter(100, 0.0, **low), 0.0)
    for _ in range(5):
        door.enter(LONG, 0.1, name="flood", **fields)
    for number in range(10):
        now_s = 1.0 + number / 10
        ticket = door.enter(100, now_s, **low)
        door.wake(now_s)
        assert ticket in door.leases
        door.finish(ticket, now_s + 0.05)


GIANT: dict[str, Any] = {"choices": 300, "max_tokens": 50}


def test_giants_and_long_ones_together_leave_a_backend_to_others() -> None:
    door = door_of(3)
    chat(door, 0.0)
    giant = door.enter(20, 0.1, name="flood", **GIANT)
    long = [door.enter(LONG, 0.1, name="flood", max_tokens=10) for _ in range(5)]
    door.wake(0.1)
    assert giant in door.leases
    assert len(has_long(door)) == 1
    assert door.leases[chat(door, 0.2)].backend not in has_long(door)
    door.leases[giant].end(1.0)
    door.wake(1.0)
    assert sum([each in door.leases for each in long]) == 2


def test_a_giant_waits_until_its_flow_leaves_others_a_backend() -> None:
    door = door_of(2)
    chat(door, 0.0)
    long = door.enter(LONG, 0.1, name="flood", max_tokens=10)
    giant = door.enter(20, 0.1, name="flood", **GIANT)
    assert giant.waits
    door.finish(long, 2.0)
    assert giant in door.wake(2.0)


def test_who_waits_for_its_own_giant_keeps_no_lower_class_waiting() -> None:
    """Its choice is closed by that, and in the other cache it finds no room."""
    prices = {"a": 1.0, "b": 2.0}
    rules: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}
    door = Door("a", "b", kv_tokens=100_000, prices=prices, **rules)
    door.enter(20, 0.0, name="flood", **GIANT)
    other = door.enter(60_000, 0.0, name="others", max_tokens=5_000)
    door.wake(0.0)
    door.first(other, 0.1)
    stuck = door.enter(60_000, 0.2, name="flood", max_tokens=1_000)
    assert stuck.waits
    assert door.admission.lack(stuck, 0.2) == (door.backends[0], Lack.GIANT)
    for number in range(5):
        now_s = 1.0 + number
        ticket = door.enter(100, now_s, name="chats", rank=1, max_tokens=10)
        door.wake(now_s)
        assert ticket in door.leases
        door.finish(ticket, now_s + 0.1)


def test_what_another_flow_has_queued_where_it_may_be_is_no_wait_for_others() -> None:
    door = door_of(2)
    chat(door, 0.0)
    door.enter(LONG, 0.1, name="flood", max_tokens=10)
    door.enter(FILLS, 0.1, name="flood", max_tokens=10)
    ticket = door.enter(100, 0.2, name="chats", max_tokens=10)
    assert ticket.waits
    assert ticket.predicted_s < 0.5


def serve(door: Door, *models: str) -> None:
    """Each backend one model."""
    for backend, model in zip(door.backends, models, strict=True):
        backend.models = {model: b"{}"}


def test_of_a_model_that_few_backends_serve_some_are_left_to_others() -> None:
    door = door_of(8)
    serve(door, "rare", "rare", *["other"] * 6)
    door.finish(door.enter(100, 0.0, name="chats", model="rare", max_tokens=10), 0.0)
    for _ in range(5):
        door.enter(LONG, 0.1, name="flood", model="rare", max_tokens=10)
    door.wake(0.1)
    assert len(has_long(door)) == 1
    ticket = door.enter(100, 0.2, name="chats", model="rare", max_tokens=10)
    assert door.leases[ticket].backend not in has_long(door)


def test_the_only_backend_of_a_model_is_kept_for_nobody() -> None:
    door = door_of(2)
    serve(door, "m", "lonely")
    door.finish(door.enter(100, 0.0, name="chats", model="m", max_tokens=10), 0.0)
    door.enter(LONG, 0.1, name="flood", model="m", max_tokens=10)
    ticket = door.enter(LONG, 0.1, name="flood", model="lonely", max_tokens=10)
    assert ticket in door.leases


def test_giants_close_no_backend_that_alone_serves_its_model() -> None:
    door = door_of(3)
    serve(door, "m", "m", "lonely")
    for model in ("m", "lonely"):
        giant = door.enter(20, 0.0, name="flood", model=model, **GIANT)
        assert giant in door.leases
        door.first(giant, 0.1)
    ticket = door.enter(100, 0.2, name="chats", model="lonely", max_tokens=10)
    assert ticket in door.leases


def test_an_adapter_at_one_backend_opens_a_giants_to_nobody_else() -> None:
    door = door_of(3)
    for backend in door.backends:
        backend.models = {"base": b"{}"}
    giant = door.enter(20, 0.0, name="flood", model="base", **GIANT)
    door.first(giant, 0.1)
    home = door.leases[giant].backend
    home.models = {"base": b"{}", "rare": b"{}"}
    for number in range(6):
        ticket = door.enter(100, 0.2 + number, name="chats", model="base", max_tokens=10)
        assert ticket in door.leases or door.wake(0.2 + number) == [ticket]
        assert door.leases[ticket].backend is not home
    ticket = door.enter(100, 7.0, name="chats", model="rare", max_tokens=10)
    assert ticket in door.leases or door.wake(7.0) == [ticket]
    assert door.leases[ticket].backend is home


def test_a_tenant_that_leaves_its_long_prompts_hides_none_of_the_next_ones() -> None:
    """They count as little work then, but take the engine for as long."""
    door = door_of(8)
    chat(door, 0.0)
    whose: dict[str, Any] = {"name": "flood", "client": "flood", "max_tokens": 10}
    for number in range(10):
        ticket = door.enter(LONG, 0.02 * number, **whose)
        lease = door.leases[ticket]
        door.gate.left(lease, 0.02 * number)
        lease.end(0.02 * number)
    chat(door, 0.3)
    for _ in range(20):
        door.enter(LONG, 0.3, **whose)
    door.wake(0.3)
    running = [each for each in door.leases.values() if not each.ended]
    assert max(each.ask.likely for each in running) < 0.5
    assert len(has_long(door)) == 6


def test_a_request_with_many_choices_waits_for_its_tenants_long_prompt() -> None:
    """And not for others with many choices: none runs."""
    door = door_of(2)
    chat(door, 0.0)
    door.enter(LONG, 0.1, name="flood", max_tokens=10)
    ticket = door.enter(20, 0.1, name="flood", choices=300, max_tokens=50)
    assert (ticket.waits, ticket.lack) == (True, Lack.LONG)
