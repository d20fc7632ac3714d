"""What a class may do to a lower one, and what that is granted."""

from penstock.balancing.admission.queue import YIELD_S
from tests.unit.balancing.admission.lines import FILLS, Door, full


def test_a_higher_class_passes_what_waits() -> None:
    door = full("a", shares=(0.0, 0.0))
    low = door.enter(100, 0.01, rank=1, name="low")
    high = door.enter(FILLS, 0.02, rank=0, name="high")
    door.open_up(0.1)
    assert door.wake(0.1) == [high]
    assert low.waits
    door.open_up(0.2)
    assert door.enter(FILLS, 0.2, rank=0, name="high") in door.leases


def yielding(waited_s: float) -> bool:
    """Whether one of a lower class fits beside a stream and passes one that does not."""
    door = Door("a", kv_tokens=10_000, shares=(0.0, 0.0))
    door.first(door.enter(4_000, name="before"), 0.0)
    high = door.enter(8_000, 1.0, rank=0)
    low = door.enter(100, 1.0 + waited_s, rank=1)
    assert high.waits
    assert low.waits
    sent = door.wake(1.0 + waited_s)
    assert sent in ([], [low])
    return not sent


def test_a_lower_class_passes_no_more_when_a_higher_one_has_waited_for_a_while() -> None:
    assert not yielding(YIELD_S - 0.01)
    assert yielding(YIELD_S + 0.01)


def test_none_makes_way_for_one_whose_own_answers_are_too_many() -> None:
    door = Door("a", kv_tokens=10_000, shares=(0.0, 0.0))
    greedy = [door.enter(100, 0.0, rank=0, name="greedy", max_tokens=2_000) for _ in range(12)]
    for ticket in greedy:
        if ticket in door.leases:
            door.first(ticket, 0.1)
    assert greedy[-1].waits
    assert not greedy[0].waits
    low = door.enter(100, 5.0, rank=1, name="low", max_tokens=100)
    assert low in door.wake(5.0) or low in door.leases


def served_low(*, upper_waits: bool) -> float:
    """The lower class's share of the tokens, with a tenth granted, while the upper never ends."""
    door = full("a", shares=(0.0, 0.1))
    for _ in range(30):
        door.enter(FILLS, 0.0, rank=1, name="low")
    if upper_waits:
        for _ in range(200):
            door.enter(FILLS, 0.0, name="high")
    counts, now_s = [0, 0], 0.0
    for _ in range(150):
        now_s += 0.2
        door.open_up(now_s)
        if not upper_waits:
            counts[0] += door.enter(FILLS, now_s, name="high") in door.leases
        for ticket in door.wake(now_s):
            counts[ticket.rank] += 1
    return counts[1] / sum(counts)


def test_a_lower_class_has_its_share_while_a_higher_one_waits() -> None:
    assert 0.08 <= served_low(upper_waits=True) <= 0.11


def test_a_lower_class_has_its_share_while_a_higher_one_passes_at_once() -> None:
    assert 0.08 <= served_low(upper_waits=False) <= 0.11


def full_cache(low_tokens: int) -> tuple[Door, float]:
    """Two classes before a full cache. The low one leaves a tenth of it, and has its share."""
    door = Door("a", kv_tokens=40_000, shares=(0.0, 0.1))
    counts = [0, 0]
    for number in range(300):
        now_s = 0.1 * number
        for _ in range(3):
            door.enter(2_000, now_s, name="high", max_tokens=10)
        door.enter(low_tokens, now_s, name="low", rank=1, max_tokens=10, reserve=0.1)
        door.wake(now_s)
        running = [each for each, lease in door.leases.items() if not lease.ended]
        for ticket in running:
            if door.leases[ticket].first_token_s is None:
                door.first(ticket, now_s)
        if len(running) == 19:
            counts[running[0].rank] += 1
            door.finish(running[0], now_s, 10)
    return door, counts[1] / sum(counts)


def test_a_class_that_leaves_room_in_a_full_cache_has_its_share_of_it() -> None:
    """Higher requests take what it leaves again and again."""
    door, share = full_cache(2_000)
    assert 0.07 <= share <= 0.13
    assert {each.reserve for each in door.leases if each.rank} == {0.1}  # for another attempt


def test_it_leaves_room_again_if_that_was_not_enough() -> None:
    door, share = full_cache(4_000)
    assert share < 0.02
    assert {each.reserve for each in door.queue.oldest(10_000) if each.rank} == {0.1}


def test_nobody_makes_way_for_one_that_waits_for_its_own_answers() -> None:
    """A tenant of the high class has three streams, and a prompt that lacks room beside them."""
    door = Door("a", kv_tokens=40_000, shares=(0.0, 0.0), classes=("high", "low"))
    for number in range(3):
        door.first(door.enter(4_000, 0.1 * number, name="high", max_tokens=1_500), 0.1 * number)
    large = door.enter(28_000, 1.0, name="high", max_tokens=1_500, deadline_s=10.0)
    assert large.waits
    sent = 0
    for step in range(40):
        ticket = door.enter(60, 1.5 + 0.2 * step, name="low", rank=1, max_tokens=20)
        door.wake(1.5 + 0.2 * step)
        if ticket in door.leases:
            sent += 1
            door.finish(ticket, 1.6 + 0.2 * step)
        else:
            door.admission.leave(ticket, 1.7 + 0.2 * step)
    assert large.waits
    assert sent >= 20
