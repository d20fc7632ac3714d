"""A backend that is kept for a long prompt, and who may go there meanwhile."""

import pytest

from penstock.balancing.admission.backfill import KEPT_ALONE_S, KEPT_S, Backfill
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from tests.unit.balancing.admission.lines import ready

BACKENDS = [ready(str(number)) for number in range(8)]
STEP_S = 0.05


def ticket(since_s: float = 0.0, *, rank: int = 1, max_tokens: int = 100) -> Ticket:
    ask = Ask("/v1/completions", max_tokens=max_tokens, output_tokens=400.0)
    made = Ticket(ask, since_s, lambda _: None, rank=rank, deadline_s=30.0)
    made.flow = Flow("", 2)
    return made


def kept(within_s: float = 10.0, able: int = 8) -> tuple[Backfill, Ticket]:
    backfill, long = Backfill(), ticket()
    backfill.keep(BACKENDS[0], long, within_s, able, 5.0)
    return backfill, long


def admits(backfill: Backfill, other: Ticket, now_s: float = 5.0) -> bool:
    return backfill.admits(BACKENDS[0], other, other.ask, STEP_S, now_s)


def test_one_that_has_waited_a_tenth_of_its_time_wants_a_backend_once() -> None:
    backfill, long = Backfill(), ticket()
    assert not backfill.wants(long, 2.9)
    assert backfill.wants(long, 3.1)
    backfill.keep(BACKENDS[0], long, 1.0, 8, 3.1)
    assert not backfill.wants(long, 4.0)


def test_only_what_ends_in_time_goes_there_and_what_has_a_higher_class() -> None:
    backfill, long = kept(within_s=10.0)
    assert admits(backfill, long)
    assert admits(backfill, ticket(max_tokens=190))  # 9.5 s
    assert not admits(backfill, ticket(max_tokens=210))
    assert not admits(backfill, ticket(max_tokens=110), now_s=10.0)
    assert admits(backfill, ticket(rank=0, max_tokens=210))
    assert backfill.admits(BACKENDS[1], ticket(), ticket().ask, STEP_S, 5.0)


def test_when_it_is_sent_or_has_left_others_go_there_again() -> None:
    backfill, long = kept()
    backfill.release(long)
    assert admits(backfill, ticket(max_tokens=1_000))


def test_no_backend_is_kept_for_long() -> None:
    backfill, _ = kept()
    backfill.expire(5.0 + KEPT_S - 0.1)
    assert not admits(backfill, ticket(max_tokens=1_000))
    backfill.expire(5.0 + KEPT_S + 0.1)
    assert admits(backfill, ticket(max_tokens=1_000))


@pytest.mark.parametrize(("able", "within_s"), [(8, KEPT_S), (2, KEPT_S), (1, KEPT_ALONE_S)])
def test_none_is_kept_if_there_will_be_no_room_in_time(able: int, within_s: float) -> None:
    assert not kept(within_s + 0.1, able)[0].kept
    assert kept(within_s - 0.1, able)[0].kept


def test_none_is_kept_beyond_the_prompts_own_time() -> None:
    backfill, late = Backfill(), ticket()
    backfill.keep(BACKENDS[0], late, 10.0, 8, 25.0)
    assert not backfill.kept


@pytest.mark.parametrize(("able", "most"), [(1, 1), (3, 1), (8, 2)])
def test_a_quarter_of_the_backends_is_kept_at_most(able: int, most: int) -> None:
    backfill = Backfill()
    for backend in BACKENDS[:able]:
        backfill.keep(backend, ticket(), 1.0, able, 5.0)
    assert len(backfill.kept) == most
