"""A low class's long prompts beside streams of a higher class that get their tokens slowly."""

from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.long_pace import LONG_PACE
from penstock.balancing.admission.room import SLOW_GAP_S
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.prefill_speed import work_of
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


def _tokens(door: Door) -> None:
    """All streams have one more token for each choice."""
    for lease in door.leases.values():
        if lease.first_token_s is not None and not lease.ended:
            lease.tokens(lease.ask.choices)


def _slowly(door: Door, now_s: float) -> float:
    _tokens(door)
    door.wake(now_s + SLOW_S)
    return now_s + SLOW_S


def test_the_next_one_waits_until_the_streams_had_as_much_time() -> None:
    door, _, waits, prefill_s = beside_a_stream()
    assert LONG_PACE * prefill_s > 4.0
    door.wake(2.0)
    assert door.admission.lack(waits, 2.0)[1] is Lack.STREAMS
    own_s = work_of(LONG, LONG, 1) * door.backends[0].prefill_speed.work_s
    at_s = sent_s(door, waits, SLOW_S)
    assert at_s == pytest.approx(prefill_s + (LONG_PACE - 1.0) * own_s, abs=2 * SLOW_S)


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
    door.admission.leave(waits, 2.0)
    now_s = _slowly_until(door, LONG_PACE * prefill_s + 0.2)
    left = door.enter(LONG, now_s, rank=1, max_tokens=10, **fields)
    assert left in door.leases
    now_s = _on(door, now_s, 0.2)
    door.leases[left].end(now_s)
    following = door.enter(LONG, now_s, rank=1, max_tokens=10)
    assert door.wake(now_s) == []
    assert door.admission.lack(following, now_s)[1] is Lack.STREAMS
    _on(door, now_s, 0.8)
    assert following in door.leases


def _on(door: Door, now_s: float, seconds: float) -> float:
    for _ in range(round(seconds / SLOW_S)):
        now_s = _slowly(door, now_s)
    return now_s


def test_it_does_not_wait_for_what_a_much_longer_one_before_it_took() -> None:
    door, _, waits, prefill_s = beside_a_stream()
    door.admission.leave(waits, 2.0)
    shorter = door.enter(LONG // 3, 2.0, rank=1, max_tokens=10)
    own_s = work_of(LONG // 3, LONG // 3, 1) * door.backends[0].prefill_speed.work_s
    at_s = sent_s(door, shorter, SLOW_S)
    assert at_s == pytest.approx(prefill_s + (LONG_PACE - 1.0) * own_s, abs=2 * SLOW_S)
    assert at_s < LONG_PACE * prefill_s - 2.0


def test_short_ones_between_them_put_a_long_one_off_for_its_time_at_most() -> None:
    door, _, waits, prefill_s = beside_a_stream()
    now_s, passed = 2.0, 0
    while waits not in door.leases and now_s < 20.0:
        shorter = door.enter(LONG // 3, now_s, name="other", rank=1, max_tokens=10)
        while shorter not in door.leases and waits not in door.leases and now_s < 20.0:
            now_s = _slowly(door, now_s)
        if shorter in door.leases:
            passed += 1
            now_s = _on(door, now_s, 0.5)
            door.finish(shorter, now_s)
    assert passed > 1
    assert LONG_PACE * prefill_s + 1.0 < now_s < 2 * LONG_PACE * prefill_s + 1.0


def test_one_client_that_sends_them_one_after_another_is_held_back_too() -> None:
    """Nothing waits between them, so nobody looked at the streams."""
    door = door_of("a")
    door.first(door.enter(100, 0.0, rank=0, max_tokens=5_000), 0.0)
    _slowly_until(door, 3.0)
    before = door.enter(LONG, 3.0, rank=1, max_tokens=10)
    assert before in door.leases
    now_s = _slowly_until(door, 5.0)
    door.finish(before, now_s)
    following = door.enter(LONG, now_s, rank=1, max_tokens=10)
    assert door.wake(now_s) == []
    _slowly_until(door, now_s + 1.0)
    assert door.admission.lack(following, now_s + 1.0)[1] is Lack.STREAMS


@pytest.mark.parametrize(("first_s", "tokens", "slow"), [(0.5, 25, True), (2.4, 10, False)])
def test_a_stream_that_begins_beside_one_of_them_counts_from_then_on(
    first_s: float, tokens: int, *, slow: bool
) -> None:
    """Nothing waits meanwhile, so nobody looks at the streams."""
    door = door_of("a")
    stream = door.enter(100, 0.0, rank=0, max_tokens=5_000)
    before = door.enter(LONG, 0.0, rank=1, max_tokens=10)
    door.first(stream, first_s)
    for _ in range(tokens):
        _tokens(door)
    door.finish(before, 2.5)
    following = door.enter(LONG, 2.5, rank=1, max_tokens=10)
    assert (following not in door.leases) is slow
    assert (door.admission.lack(following, 2.5)[1] is Lack.STREAMS) is slow


def test_each_choice_of_a_stream_counts() -> None:
    door, _, waits, _ = beside_a_stream()
    for number in range(3):
        now_s = 2.0 + number / 100
        choices = door.enter(10, now_s, name=f"{number}", rank=1, max_tokens=900, choices=20)
        door.first(choices, now_s)
    now_s = _slowly_until(door, 3.0)
    assert door.admission.lack(waits, now_s)[1] is Lack.STREAMS


def test_the_time_that_the_process_slept_shows_no_slow_streams() -> None:
    door = door_of("a")
    stream = door.enter(100, 0.0, rank=0, max_tokens=5_000)
    door.first(stream, 0.0)
    door.leases[stream].tokens(1)
    before = door.enter(LONG, 0.1, rank=1, max_tokens=10)
    door.admission.slept(2.0)
    door.leases[stream].tokens(10)
    door.finish(before, 2.3)
    following = door.enter(LONG, 2.3, rank=1, max_tokens=10)
    assert following in door.leases


def test_lower_classes_do_not_wait_for_one_that_waits_for_slow_streams() -> None:
    door = Door("a", kv_tokens=400_000, shares=(0.0,) * 3, classes=("high", "mid", "low"))
    door.first(door.enter(100, 0.0, rank=0, max_tokens=5_000), 0.0)
    before = door.enter(LONG, 0.0, rank=1, max_tokens=10)
    waits = door.enter(LONG, 0.0, rank=1, max_tokens=10)
    door.stream(2.0, SLOW_S)
    door.finish(before, 2.0)
    low = door.enter(100, 2.0, rank=2, max_tokens=10)
    assert door.wake(2.1) == [low]
    assert waits.waits


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
