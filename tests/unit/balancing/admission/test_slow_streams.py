"""A low class's long prompts beside streams of a higher class that get their tokens slowly."""

from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.room import LONG_PACE, SLOW_GAP_S
from penstock.balancing.admission.ticket import Ticket
from tests.unit.balancing.admission.lines import Door

LONG = 28_000  # more than two seconds of prefill, and no giant
SLOW_S, QUICK_S = 2 * SLOW_GAP_S, SLOW_GAP_S / 3


def door_of(*names: str) -> Door:
    return Door(*names, kv_tokens=400_000, shares=(0.0, 0.0), classes=("high", "low"))


def beside_a_stream(rank: int = 0, gap_s: float = SLOW_S) -> tuple[Door, Ticket, Ticket, float]:
    """A stream, and a long prompt of the low class that is sent, prefilled 2 s later. A second one
    waits. Returns both, and how long the prefill was expected to take."""
    door = door_of("a")
    door.first(door.enter(100, 0.0, rank=rank, max_tokens=5_000), 0.0)
    before = door.enter(LONG, 0.0, rank=1, max_tokens=10)
    waits = door.enter(LONG, 0.0, rank=1, max_tokens=10)
    prefill_s = door.backends[0].queued_work * door.backends[0].prefill_speed.work_s
    door.stream(2.0, gap_s)
    door.finish(before, 2.0)
    return door, before, waits, prefill_s


def sent_s(door: Door, ticket: Ticket, gap_s: float, until_s: float = 12.0) -> float:
    """When it is sent while the streams go on."""
    now_s = 2.0
    while now_s < until_s:
        if ticket in door.leases:
            return now_s
        now_s = door.stream(0.1, min(0.1, gap_s), now_s) if gap_s < 0.1 else _slowly(door, now_s)
    return inf


def _slowly(door: Door, now_s: float) -> float:
    for lease in door.leases.values():
        if lease.first_token_s is not None and not lease.ended:
            lease.tokens(1)
    door.wake(now_s + SLOW_S)
    return now_s + SLOW_S


def test_the_next_one_waits_until_the_streams_had_as_much_time() -> None:
    door, _, waits, prefill_s = beside_a_stream()
    assert LONG_PACE * prefill_s > 4.0
    door.wake(2.0)
    assert door.admission.lack(waits, 2.0)[1] is Lack.STREAMS
    at_s = sent_s(door, waits, SLOW_S)
    assert at_s == pytest.approx(LONG_PACE * prefill_s, abs=2 * SLOW_S)


def test_it_goes_when_the_streams_are_quick_again() -> None:
    door, _, waits, prefill_s = beside_a_stream()
    assert 2.0 < sent_s(door, waits, QUICK_S) < LONG_PACE * prefill_s - 0.2


def test_it_does_not_wait_where_they_are_quick_all_the_time() -> None:
    door, _, waits, _ = beside_a_stream(gap_s=QUICK_S)
    assert door.wake(2.0) == [waits]


def test_streams_of_its_own_class_do_not_count() -> None:
    door, _, waits, _ = beside_a_stream(rank=1)
    assert door.wake(2.0) == [waits]


def test_nor_does_a_stream_whose_client_does_not_read() -> None:
    door, _, waits, _ = beside_a_stream()
    for lease in door.leases.values():
        lease.held_up = True
    assert door.wake(2.0) == [waits]


def test_nor_do_those_that_have_ended() -> None:
    door, _, waits, _ = beside_a_stream()
    for lease in door.leases.values():
        lease.end(2.0)
    assert door.wake(2.0) == [waits]


def test_short_prompts_of_its_class_and_long_ones_of_a_higher_one_pass_it() -> None:
    door, _, waits, _ = beside_a_stream()
    door.wake(2.0)
    high = door.enter(LONG, 2.0, rank=0, max_tokens=10)
    assert high in door.leases
    door.finish(high, 4.0)
    short = door.enter(100, 4.0, rank=1, max_tokens=10)
    assert door.wake(4.0) == [short]
    assert waits.waits


def test_long_ones_of_a_higher_class_take_nothing_of_its_time() -> None:
    door, _, waits, prefill_s = beside_a_stream()
    now_s = 2.0
    while waits not in door.leases and now_s < 20.0:
        high = door.enter(9_000, now_s, rank=0, max_tokens=10)
        assert high in door.leases
        now_s = _slowly_until(door, now_s + 0.7)
        door.finish(high, now_s)
        now_s = _slowly_until(door, now_s + 1.0)
    assert now_s == pytest.approx(LONG_PACE * prefill_s, abs=2.0)


@pytest.mark.parametrize("fields", [{}, {"generates": False, "stream": False}])
def test_who_leaves_at_once_delays_the_next_one_by_hardly_anything(
    fields: dict[str, Any],
) -> None:
    door, _, waits, prefill_s = beside_a_stream()
    _slowly_until(door, LONG_PACE * prefill_s - 0.1)
    door.admission.leave(waits, LONG_PACE * prefill_s - 0.1)
    now_s = _slowly_until(door, LONG_PACE * prefill_s + 0.2)
    left = door.enter(LONG, now_s, rank=1, max_tokens=10, **fields)
    door.wake(now_s)
    door.leases[left].end(now_s + 0.02)
    following = door.enter(LONG, now_s + 0.05, rank=1, max_tokens=10)
    now_s = _slowly_until(door, now_s + 0.3)
    assert following in door.leases


def test_a_long_list_of_embeddings_waits_as_a_long_prompt_does() -> None:
    door, _, _, _ = beside_a_stream()
    texts = door.enter(LONG, 2.0, rank=1, prompts=30, generates=False, stream=False)
    assert texts.waits
    assert door.admission.lack(texts, 2.0)[1] is Lack.STREAMS


def _slowly_until(door: Door, until_s: float) -> float:
    now_s = max(2.0, *[lease.first_token_s or 0.0 for lease in door.leases.values()])
    while now_s < until_s:
        now_s = _slowly(door, now_s)
    return now_s
