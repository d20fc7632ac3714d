"""A request goes to another backend than the best one if that costs little more than to wait."""

from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.spillover import SHORT_S, SPILL, SPILL_LATE
from tests.unit.balancing.admission.door import FILLS, Door

# What may be paid near to the deadline after three tenths of it.
DEAR = 1.0 + SPILL + 0.3 * SPILL_LATE


def priced(*prices: float) -> Door:
    """The first backend is the cheapest, and has no room. The others are idle."""
    names = [f"b{number}" for number in range(len(prices))]
    door = Door(*names, prices={name: float(name != "b0") for name in names})
    door.backends[0].max_requests = 1
    door.enter(FILLS, name="before")
    door.policy.prices = dict(zip(names, prices, strict=True))
    return door


def sent_to(door: Door, waited_s: float, deadline_s: float = 10.0) -> str | None:
    """Where one is sent that has waited for so long, if it is sent."""
    request = door.enter(100, 1.0, deadline_s=deadline_s)
    if waited_s:
        assert request.waits
        door.wake(1.0 + waited_s)
    return door.where(request) if door.is_sent(request) else None


@pytest.mark.parametrize(
    ("prices", "has_room", "to"),
    [
        ((1.0, 1.0 + SPILL - 0.01), True, "b1"),
        ((1.0, 1.0 + SPILL + 0.01), True, None),
        ((1.0, 1.09, 1.05, 1.07), True, "b2"),
        ((1.0, 1.05, 1.09), False, "b2"),
    ],
)
def test_of_the_backends_that_have_room_and_cost_little_more_the_cheapest_is_taken_at_once(
    prices: tuple[float, ...], to: str | None, *, has_room: bool
) -> None:
    door = priced(*prices)
    door.backends[1].max_requests = None if has_room else 0
    assert sent_to(door, 0.0) == to


@pytest.mark.parametrize(
    ("waited_s", "deadline_s", "to"),
    [(2.9, 10.0, None), (3.1, 10.0, "b1"), (3.1, 20.0, None), (8.9, inf, None), (9.1, inf, "b1")],
)
def test_the_nearer_the_deadline_the_more_a_backend_may_cost(
    waited_s: float, deadline_s: float, to: str | None
) -> None:
    """Without a deadline, thirty seconds count."""
    assert sent_to(priced(1.0, DEAR), waited_s, deadline_s) == to


def test_the_best_backend_is_taken_if_it_has_room_again() -> None:
    door = priced(1.0, DEAR)
    request = door.enter(100, 1.0)
    door.finish(door.running[0], 1.1)
    assert door.wake(1.1) == [request]
    assert door.where(request) == "b0"


def test_a_backend_that_costs_far_more_is_not_taken_if_the_cache_of_the_best_is_full() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 2.0}, kv_tokens=1_000)
    door.first(door.enter(900, 0.5, max_tokens=10), 0.5)
    request = door.enter(100, 1.0, max_tokens=50)
    assert request.waits
    door.policy.prices = {"a": 1.0, "b": 1.05}
    assert door.wake(2.0) == [request]
    assert door.where(request) == "b"


BLOCKS = (1, 2, 3, 4)
PROMPT: dict[str, Any] = {"blocks": BLOCKS, "block_tokens": 250.0}


@pytest.mark.parametrize("cached", [0, 4])
def test_a_prompt_whose_beginning_is_cached_waits_for_that_backend(cached: int) -> None:
    door = Door("a", "b", prices={"a": 0.0, "b": 1.0})
    fields: dict[str, Any] = {"blocks": BLOCKS[:cached], "block_tokens": 250.0}
    door.first(door.enter(1_000, name="before", **fields), 0.1)
    door.backends[0].max_requests = 1
    door.policy.prices = {"a": 1.0, "b": 1.01}
    request = door.enter(1_000, 1.0, deadline_s=10.0, **PROMPT)
    door.wake(5.0)
    assert door.is_sent(request) is not bool(cached)


ALIKE: dict[str, Any] = {"blocks": BLOCKS, "block_tokens": 100.0, "max_tokens": 10}


def with_its_beginning_at_b(tokens_at_a: int) -> Door:
    """Backend a is far cheaper, and holds a stream of so many tokens. Backend b holds one with the
    beginning of the prompts that come."""
    door = Door("a", "b", prices={"a": 1.0, "b": 0.5}, kv_tokens=10_000)
    door.first(door.enter(450, 0.0, **ALIKE), 0.1)
    door.policy.prices = {"a": 0.0, "b": 9.0}
    door.first(door.enter(tokens_at_a, 0.2, name="x", max_tokens=10), 0.9)
    return door


@pytest.mark.parametrize(
    ("tokens_at_a", "fields", "short_s", "to"),
    [
        (9_500, ALIKE, None, "b"),  # there it takes less room
        (9_500, {"max_tokens": 10}, None, None),  # it waits for the best backend
        (6_000, ALIKE, None, "a"),  # no recent request lacked room there
        (6_000, ALIKE, 5.0 - 2.0 * SHORT_S, "a"),
    ],
)
def test_while_a_cache_is_short_a_prompt_goes_where_streams_hold_its_beginning(
    tokens_at_a: int, fields: dict[str, Any], short_s: float | None, to: str | None
) -> None:
    door = with_its_beginning_at_b(tokens_at_a)
    if short_s is not None:
        large = door.enter(9_000, short_s, name="x", max_tokens=10)
        assert large.waits
        door.admission.leave(large, short_s)
    request = door.enter(1_000 if tokens_at_a == 9_500 else 450, 5.0, name="y", **fields)
    door.wake(5.0 + 0.5 * SHORT_S)
    assert (door.where(request) if door.is_sent(request) else None) == to
