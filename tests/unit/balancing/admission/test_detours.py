"""A request goes to another place than the best one if that costs little more than to wait."""

from math import inf
from typing import Any, ClassVar

import pytest

from penstock.balancing.admission.cache_room import SHORT_S
from penstock.balancing.admission.detour import DETOUR, DETOUR_LATE, GAP_MAX_S, lighter
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies.token_cost import TokenCost
from tests.unit.balancing.admission.lines import FILLS, Door, Priced


def priced(*prices: float, kv_tokens: int | None = None) -> Door:
    """The first backend is the cheapest, and full. The others are idle and have served before."""
    names = [f"b{number}" for number in range(len(prices))]
    found = dict(zip(names, prices, strict=True))
    door = Door(*names, prices=found, kv_tokens=kv_tokens)
    for name in names[1:] + names[:1]:
        door.policy.prices = {other: float(other != name) for other in names}
        ticket = door.enter(FILLS, name="before")
        assert door.leases[ticket].backend.name == name
        if name != names[0]:
            door.leases[ticket].end(0.0)
    door.policy.prices = found
    return door


def detour(door: Door, waited_s: float, deadline_s: float = 10.0) -> Backend | None:
    """Where one is sent that has waited for so long, if it is sent."""
    ticket = door.enter(100, 1.0, deadline_s=deadline_s)
    assert ticket.waits
    door.wake(1.0 + waited_s)
    lease = door.leases.get(ticket)
    return lease.backend if lease is not None else None


def test_a_place_that_costs_little_more_is_taken_at_once() -> None:
    door = priced(1.0, 1.0 + DETOUR - 0.01)
    assert detour(door, 0.0) is door.backends[1]


def test_the_nearer_the_deadline_the_more_a_place_may_cost() -> None:
    dear = 1.0 + DETOUR + 0.3 * DETOUR_LATE
    assert detour(priced(1.0, dear), 2.9) is None
    door = priced(1.0, dear)
    assert detour(door, 3.1) is door.backends[1]
    assert detour(priced(1.0, dear), 3.1, deadline_s=20.0) is None


def test_without_a_deadline_it_counts_as_thirty_seconds() -> None:
    dear = 1.0 + DETOUR + 0.3 * DETOUR_LATE
    assert detour(priced(1.0, dear), 8.9, deadline_s=inf) is None
    assert detour(priced(1.0, dear), 9.1, deadline_s=inf) is not None


def test_a_place_that_costs_far_more_is_not_taken_either_if_the_cache_of_the_best_is_full() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 2.0}, kv_tokens=1_000)
    door.first(door.enter(900, 0.5, max_tokens=10), 0.5)
    ticket = door.enter(100, 1.0, max_tokens=50)
    assert ticket.waits
    assert not door.wake(1.0)
    door.policy.prices = {"a": 1.0, "b": 1.05}
    assert door.wake(2.0) == [ticket]
    assert door.leases[ticket].backend is door.backends[1]


class Timed(Priced):
    """The prices are seconds."""

    costs_seconds: ClassVar[bool] = True


def test_the_time_until_a_full_cache_has_room_counts_as_cost() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 10.0}, kv_tokens=1_000)
    door.first(door.enter(700, 0.5, output_tokens=450.0), 0.5)
    ticket = door.enter(100, 1.0, max_tokens=200)
    assert ticket.waits
    room = door.admission.lines["p"].places.room_of(door.backends[0])
    full_s = room.cache.sure_wait_s(ticket, ticket.ask, 1.0)
    assert full_s > 1.0
    for price, taken in ((1.2 + full_s, False), (1.0 + full_s, True)):
        timed = Timed({"a": 1.0, "b": price})
        door.fleet = Fleet((Pool("p", door.backends, timed),))
        door.admission.lines["p"].looks.futile(frozenset(), 0.0)
        assert (door.wake(1.0) == [ticket]) is taken


ALIKE: dict[str, Any] = {"blocks": (1, 2, 3, 4), "block_tokens": 100.0, "max_tokens": 10}


def chosen(*, held_at: str, short_s: float | None) -> str:
    """Where a prompt goes at second 2 whose choice is "a", and whose beginning a stream holds
    there or at "b". `short_s`: when somebody found no room in the cache of "a"."""
    door = Door("a", "b", prices={"a": float(held_at != "a"), "b": 0.5}, kv_tokens=10_000)
    door.first(door.enter(450, 0.0, **ALIKE), 0.1)
    door.policy.prices = {"a": 0.0, "b": 1.0}
    places, (first, _) = door.admission.lines["p"].places, door.backends
    ask = door.ticket(450, **ALIKE).ask
    if short_s is not None:
        places.room_of(first).cache.found(Lack.KV_CACHE, Flow("f", 1), ask, short_s)
    return lighter(places, door.gate.look(ask, 2.0), 2.0).chosen.name


def test_while_a_cache_is_short_a_prompt_goes_where_streams_hold_its_beginning() -> None:
    assert chosen(held_at="b", short_s=2.0 - 0.9 * SHORT_S) == "b"


def test_it_stays_if_streams_hold_it_at_the_choice() -> None:
    assert chosen(held_at="a", short_s=2.0) == "a"


@pytest.mark.parametrize("short_s", [None, 2.0 - 1.1 * SHORT_S])
def test_it_stays_if_nobody_lacked_room_there_of_late(short_s: float | None) -> None:
    assert chosen(held_at="b", short_s=short_s) == "a"


def test_of_several_places_the_cheapest_is_taken() -> None:
    door = priced(1.0, 1.09, 1.05, 1.07)
    assert detour(door, 0.0) is door.backends[2]


def test_a_place_without_room_is_not_taken() -> None:
    door = priced(1.0, 1.05, 1.09)
    door.policy.prices = {"b0": 2.0, "b1": 1.0, "b2": 2.0}
    door.enter(FILLS)
    door.policy.prices = {"b0": 1.0, "b1": 1.05, "b2": 1.09}
    assert detour(door, 0.0) is door.backends[2]


def test_the_best_place_is_taken_if_it_has_room_again() -> None:
    door = priced(1.0, 1.1)
    ticket = door.enter(100, 1.0)
    door.open_up(1.0)
    assert door.wake(1.0) == [ticket]
    assert door.leases[ticket].backend is door.backends[0]


def sent_beside(gap_s: float) -> bool:
    """Whether a detour leads to a backend with streams of such a time between tokens."""
    door = priced(1.0, 1.2)
    door.policy.prices = {"b0": 3.0, "b1": 1.0}
    for _ in range(10):
        door.first(door.enter(100, 0.5), 0.5)
    door.policy.prices = {"b0": 1.0, "b1": 1.2}
    ticket = door.enter(100, 1.0, deadline_s=10.0)
    assert ticket.waits
    door.stream(5.0, gap_s, 1.0)
    return ticket in door.leases


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_place_with_quick_streams_is_taken(share: float) -> None:
    assert sent_beside(share * GAP_MAX_S)


@pytest.mark.parametrize("share", [1.3, 4.0])
def test_a_place_with_slow_streams_is_not(share: float) -> None:
    assert not sent_beside(share * GAP_MAX_S)


def test_a_place_that_has_served_nothing_yet_is_taken_too() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 1.05})
    door.enter(FILLS)
    assert detour(door, 0.0) is door.backends[1]


BLOCKS = (1, 2, 3, 4)


def warm(*names: str, cached: int = 4, prompts: bool = True) -> Door:
    """The first backend holds that many blocks of four, and has no room. All cost much the same.

    `prompts`: it has a prompt to compute. Otherwise it has as many requests as it may have.
    """
    door = Door(*names, prices=dict.fromkeys(names, 1.0))
    door.policy.prices = {name: float(name != names[0]) for name in names}
    door.first(door.enter(1_000, name="before", blocks=BLOCKS[:cached], block_tokens=250.0), 0.1)
    if prompts:
        door.enter(FILLS, 0.2, name="before")
    else:
        door.backends[0].max_requests = 1
    door.policy.prices = {name: 1.0 + 0.01 * (name != names[0]) for name in names}
    return door


def come(door: Door, now_s: float, name: str = "") -> Ticket:
    ticket = door.enter(1_000, now_s, deadline_s=10.0, name=name, blocks=BLOCKS, block_tokens=250.0)
    assert ticket.waits
    return ticket


def test_a_prompt_whose_beginning_is_cached_waits_for_that_place() -> None:
    door = warm("a", "b")
    assert door.backends[0].cache.cached_tokens(come(door, 1.0).ask) > 500
    assert door.wake(1.0) == []
    assert door.wake(9.0) == []
    cold = warm("a", "b", cached=0)
    ticket = come(cold, 1.0)
    assert cold.wake(1.0) == [ticket]


def test_if_no_prompt_is_in_its_way_it_leaves_after_half_of_its_time() -> None:
    door = warm("a", "b", prompts=False)
    ticket = come(door, 1.0)
    assert door.wake(5.9) == []
    assert door.wake(6.1) == [ticket]
    assert door.leases[ticket].backend is door.backends[1]


def test_but_not_to_a_place_for_which_others_wait() -> None:
    door = warm("a", "b", prompts=False)
    door.policy.prices = {"a": 2.0, "b": 1.0}
    door.enter(FILLS, 0.5, name="before")
    other = door.enter(8_000, 0.6, name="other")
    assert other.waits
    rooms = door.admission.lines["p"].places.rooms
    assert [rooms[backend].wanted for backend in door.backends] == [0, 1]
    door.policy.prices = {"a": 1.0, "b": 1.01}
    ticket = come(door, 1.0)
    assert [rooms[backend].wanted for backend in door.backends] == [1, 1]
    door.admission.leave(other, 2.0)
    door.admission.leave(ticket, 2.0)
    assert [rooms[backend].wanted for backend in door.backends] == [0, 0]


@pytest.mark.parametrize("strict", [False, True])
def test_only_a_strict_session_waits_for_its_home(*, strict: bool) -> None:
    """The home has a prompt in its queue, and the other backend has nothing to do."""
    door = Door("a", "b")
    door.fleet = Fleet((Pool("p", door.backends, TokenCost(strict=strict)),))
    home = door.leases[door.enter(FILLS, 0.0, session="agent")].backend
    ticket = door.enter(FILLS, 0.1, session="agent", deadline_s=20.0)
    assert ticket.waits is strict
    door.wake(3.0)
    assert ticket.waits is strict
    if not strict:
        assert door.leases[ticket].backend is not home
