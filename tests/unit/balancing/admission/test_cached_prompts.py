"""Cached prompts before a full cache: the engine keeps what it has of them for who was sent."""

import pytest

from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.engine_report import EngineReport
from tests.unit.balancing.admission.lines import Door

KV_TOKENS = 100_000
TOKENS = 10_000


def document(door: Door, number: int, now_s: float, **fields: float) -> Ticket:
    """One asks for a document. All who ask for the same have the same prompt."""
    blocks = tuple(hash(f"{number} {block}") for block in range(62))
    answer = {"max_tokens": 10, "output_tokens": 10}
    return door.enter(
        TOKENS, now_s, name="a", blocks=blocks, block_tokens=160.0, **answer, **fields
    )


def known(documents: int) -> Door:
    """So many have been answered, and are in the cache. Streams hold 60,000 tokens of it."""
    door = Door("g", kv_tokens=KV_TOKENS)
    now_s = 0.0
    for number in range(documents):
        now_s += 1.0
        door.finish(document(door, number, now_s), now_s, 10)
    for _ in range(30):
        now_s += 0.5
        ticket = door.enter(2_000, now_s, name="s", max_tokens=100, output_tokens=100)
        door.wake(now_s)
        door.first(ticket, now_s)
    return door


@pytest.mark.parametrize(("documents", "fit"), [(9, 4), (1, 9)])
def test_those_sent_at_once_have_room_together(documents: int, fit: int) -> None:
    """Little of them need be computed. So nothing else holds them back."""
    door = known(documents)
    asked = [document(door, number % documents, 60.0) for number in range(9)]
    assert fit - 1 <= sum(ticket in door.leases for ticket in asked) <= fit


@pytest.mark.parametrize("report", [False, True])
def test_what_a_report_says_of_them_counts_once(*, report: bool) -> None:
    """Who comes then finds as much room with it as without it."""
    door = known(2)
    for number in range(2):
        assert document(door, number, 60.0) in door.leases
    if report:
        usage = (60_000 + 2 * TOKENS) / KV_TOKENS
        door.backends[0].take(EngineReport(60.1, kv_tokens=KV_TOKENS, kv_usage=usage))
    for tokens, fits in ((21_000, False), (15_000, True)):
        ticket = door.enter(tokens, 60.2, name=f"{tokens}", max_tokens=10, output_tokens=10)
        assert (ticket in door.leases) is fits


@pytest.mark.parametrize("before", [True, False])
def test_they_hide_nothing_else_that_the_engine_holds(*, before: bool) -> None:
    """Others send it requests, too: 15,000 tokens. Two of these may come before or after that."""
    door = known(2)
    if before:
        assert all(document(door, number, 60.0) in door.leases for number in range(2))
    usage = (60_000 + 2 * TOKENS * before + 15_000) / KV_TOKENS
    door.backends[0].take(EngineReport(60.0, kv_tokens=KV_TOKENS, kv_usage=usage))
    if not before:
        assert all(document(door, number, 60.0) in door.leases for number in range(2))
    for tokens, fits in ((6_000, False), (3_000, True)):
        ticket = door.enter(tokens, 60.0, name=f"{tokens}", max_tokens=10, output_tokens=10)
        assert (ticket in door.leases) is fits


def test_those_that_the_engine_is_likely_to_refuse_keep_nothing() -> None:
    """Such prompts without end would keep others from an idle engine."""
    door = known(1)
    cache = door.admission.lines["p"].places.rooms[door.backends[0]].cache
    assert document(door, 0, 60.0, likely=0.25) in door.leases
    assert cache._pinned.tokens == 0


@pytest.mark.parametrize("answered", [True, False])
def test_nothing_is_kept_for_one_that_is_answered_or_leaves(*, answered: bool) -> None:
    """What stayed behind would make each later look take the long way."""
    door = known(9)
    cache = door.admission.lines["p"].places.rooms[door.backends[0]].cache
    for number in range(9):
        ticket = document(door, number, 60.0 + number)
        assert cache._pinned.tokens > 9_000
        if answered:
            door.first(ticket, 60.2 + number)
            assert cache._pinned.tokens == 0
        door.leases[ticket].end(60.5 + number)
        assert cache._pinned.tokens == 0
