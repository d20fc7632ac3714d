"""What a class leaves of a KV cache to higher ones: a part of what these take."""

from typing import Any

import pytest

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.reserve import LEFT_MAX, Reserve
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.ask import Ask
from tests.unit.balancing.admission.lines import Door

CLASSES: dict[str, Any] = {"classes": ("a", "b", "c"), "shares": (0.0, 0.0, 0.0)}


def of(rank: int, always: float = 0.0) -> Ticket:
    """A request of this class, which leaves `always` in any case."""
    return Ticket(Ask("/"), 0.0, lambda _: None, rank=rank, reserve=always)


def given(*sent: tuple[int, float, float]) -> Reserve:
    """A class, tokens and time of each that was sent."""
    reserve = Reserve()
    for rank, tokens, at_s in sent:
        reserve.take(rank, tokens, at_s, at_s)
    return reserve


def test_a_class_leaves_what_higher_ones_take() -> None:
    reserve = given((0, 2.0, 0.0), (1, 97.0, 0.0), (2, 1.0, 0.0))
    assert [reserve.of(of(rank)) for rank in (0, 1, 2)] == [0.0, 0.02, LEFT_MAX]


def test_nothing_if_nobody_uses_those() -> None:
    assert given().of(of(1)) == 0.0
    assert given((1, 10.0, 0.0)).of(of(1)) == 0.0
    assert given((1, 10.0, 0.0), (2, 10.0, 0.0)).of(of(1)) == 0.0


def test_but_what_it_always_leaves() -> None:
    assert given().of(of(2, 0.1)) == 0.1
    assert given((0, 10.0, 0.0)).of(of(2, 0.1)) == 0.1
    assert given((0, 1.0, 0.0), (1, 99.0, 0.0)).of(of(2, 0.01)) == LEFT_MAX
    assert given((0, 1.0, 0.0), (2, 99.0, 0.0)).of(of(2, 0.02)) == 0.02


def test_what_was_sent_is_forgotten_with_time() -> None:
    late = given((0, 100.0, 0.0), (1, 100.0, 300.0))
    assert late.of(of(1)) == pytest.approx(0.0067, rel=0.01)


def test_a_clock_that_goes_back_adds_nothing() -> None:
    assert given((0, 2.0, 300.0), (1, 98.0, 0.0)).of(of(1)) == 0.02


def test_what_is_given_back_fades_like_what_was_given() -> None:
    reserve = given((0, 2.0, 0.0), (1, 98.0, 0.0), (2, 500.0, 0.0))
    reserve.take(2, -500.0, 0.0, 100.0)
    assert reserve.of(of(1)) == pytest.approx(0.02)
    reserve.take(0, -10.0, 100.0, 100.0)
    assert reserve.of(of(1)) == 0.0


@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_nobody_stays_for_change_nothing(*, stream: bool) -> None:
    """Otherwise a low class would take from the highest what the middle one leaves to it."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    for rank, prompt_tokens in ((0, 200), (1, 9_800)):
        door.finish(door.enter(prompt_tokens, name=f"{rank}", rank=rank, max_tokens=1), 0.0, 1)
    reserve = door.admission.lines["p"].places.reserve
    before = reserve.of(of(1))
    assert before > 0.015
    for _ in range(5):
        answers = {"max_tokens": 2_000, "choices": 8, "output_tokens": 300, "stream": stream}
        ticket = door.enter(10, name="c", rank=2, **answers)
        door.leases[ticket].end(0.0)
    assert reserve.of(of(1)) == pytest.approx(before, rel=0.02)


def test_other_classes_were_given_what_their_requests_were() -> None:
    reserve = given((0, 1.0, 0.0), (1, 1.0, 0.0), (2, 98.0, 0.0))
    reserve.reshape([0, 0, 1])
    assert reserve.of(of(1)) == 0.02
    reserve.take(0, -1.0, 0.0, 0.0)
    assert reserve.of(of(1)) == pytest.approx(1 / 99)


def filled(*ranks_before: int) -> Door:
    """A cache that the middle class fills as far as it may, after these have been answered."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    for rank in ranks_before:
        ticket = door.enter(10_000, 0.0, name=f"{rank}", rank=rank, max_tokens=10)
        door.finish(ticket, 0.0, 10)
    for number in range(120):
        ticket = door.enter(1_000, 0.1, name="b", rank=1, max_tokens=10)
        door.wake(0.1 + number / 100)
        if ticket in door.leases:
            door.first(ticket, 0.1 + number / 100)
    return door


@pytest.mark.parametrize(
    ("ranks_before", "at_once"), [((0, 1), True), ((1,), False), ((2, 1), False)]
)
def test_a_high_class_that_is_used_finds_room_in_a_full_cache(
    ranks_before: tuple[int, ...], at_once: bool
) -> None:
    door = filled(*ranks_before)
    urgent = door.enter(1_500, 2.0, name="a", rank=0, max_tokens=10)
    assert (urgent in door.leases) is at_once


def test_a_prompt_that_takes_most_of_a_cache_is_not_kept_out_by_a_trickle() -> None:
    """It leaves half of the rest, where 3 % of the cache are more than the whole rest."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    door.finish(door.enter(10_000, name="a", rank=0, max_tokens=10), 0.0, 10)
    for number in range(2):
        door.first(door.enter(100, 0.1, name=f"{number}", rank=0, max_tokens=10), 0.1)
    large = door.enter(58_800, 0.2, name="b", rank=1, max_tokens=10, output_tokens=10)
    assert large in door.leases


def test_embeddings_of_a_high_class_take_no_room_and_keep_none() -> None:
    door = Door("a", kv_tokens=60_000, **CLASSES)
    ask = Ask("/v1/embeddings", prompt_tokens=10_000, generates=False)
    door.come(Ticket(ask, 0.0, lambda _: None, name="0"), 0.0)
    assert len(door.leases) == 1
    places = door.admission.lines["p"].places
    assert places.reserve.of(of(1)) == 0.0


def test_a_prediction_knows_it() -> None:
    door = filled(0, 1)
    room = door.admission.lines["p"].places.rooms[door.backends[0]]
    waits_s = []
    for rank in (0, 1):
        ticket = door.ticket(1_500, 2.0, name="x", rank=rank, max_tokens=10)
        ticket.flow = door.queue.flow("x")
        waits_s.append(room.cache.sure_wait_s(ticket, ticket.ask, 2.0))
    assert (waits_s[0], waits_s[1] > 0.0) == (0.0, True)


def test_so_does_the_wait_for_answers_of_its_own() -> None:
    """Answers that may grow far leave the same."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    door.finish(door.enter(30_000, name="a", rank=0, max_tokens=10), 0.0, 10)
    for _ in range(300):
        last = door.enter(1, 0.1, name="b", rank=1, max_tokens=500)
        if last not in door.leases:
            break
        door.first(last, 0.1)
    assert last.lack is Lack.ANSWERS
    places = door.admission.lines["p"].places
    cache = places.rooms[door.backends[0]].cache
    assert not places.may_grow(last, door.backends, 0.1)
    assert cache.own_wait_s(last, last.ask, 0, 0.1) > 0.0
    last.rank = 0
    assert places.may_grow(last, door.backends, 0.1)
    assert cache.own_wait_s(last, last.ask, 0, 0.1) == 0.0


def test_a_class_that_is_owed_its_share_leaves_nothing_until_it_has_that() -> None:
    """Else one with tiny prompts and long answers, which is always owed, would fill the cache."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    door.finish(door.enter(10, name="x", rank=2, max_tokens=10), 0.0, 10)
    cache = door.admission.lines["p"].places.rooms[door.backends[0]].cache
    low = of(2, 0.1)
    assert cache.left_share(low, 0.1) == 0.1
    low.owed = 0.1
    for number in range(3):
        assert cache.left_share(low, 0.1) == 0.0, number
        ticket = door.enter(10, 0.1, name="c", rank=2, max_tokens=2_900, output_tokens=2_900)
        door.first(ticket, 0.1)
    low.flow = door.queue.flow("c")
    assert cache.left_share(low, 0.1) == 0.1
    door.enter(10, 0.1, name="b", rank=1, max_tokens=2_900)
    low.rank = 1
    assert cache.left_share(low, 0.1) == 0.0  # others have that room


def test_but_one_flow_takes_half_of_that_from_others_at_most() -> None:
    """Its answers may never end."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    for _ in range(3):
        door.first(door.enter(2_000, name="hog", rank=2, max_tokens=10), 0.0)
    cache = door.admission.lines["p"].places.rooms[door.backends[0]].cache
    low = of(2, 0.1)
    low.owed, low.flow = 0.1, door.queue.flow("x")
    for number in range(3):
        assert cache.left_share(low, 0.1) == 0.0, number
        door.first(door.enter(1_000, 0.1, name="x", rank=2, max_tokens=10), 0.1)
    assert cache.left_share(low, 0.1) == 0.1
    low.flow = door.queue.flow("hog")
    assert cache.left_share(low, 0.1) == 0.1


@pytest.mark.parametrize(("beginnings", "left"), [(1, 0.0), (4, 0.1)])
def test_what_streams_share_of_their_prompts_counts_once(beginnings: int, left: float) -> None:
    """Cached tokens take room, too, if no other stream holds them."""
    door = Door("a", kv_tokens=60_000, **CLASSES)
    for number in range(4):
        blocks = tuple(hash((number % beginnings, block)) for block in range(250))
        ticket = door.enter(4_000, name="c", rank=2, max_tokens=10, blocks=blocks, block_tokens=16)
        door.first(ticket, 0.0)
        ticket.tokens = 100  # the others were cached
    cache = door.admission.lines["p"].places.rooms[door.backends[0]].cache
    low = of(2, 0.1)
    low.owed, low.flow = 0.1, ticket.flow
    assert cache.left_share(low, 0.1) == left
