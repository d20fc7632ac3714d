"""What a room counts: common beginnings, the time between tokens, and nothing in the end."""

from bisect import bisect_left
from random import Random
from typing import Any

import pytest

from penstock.balancing.admission.admission import Admission
from penstock.balancing.admission.held_blocks import STRIDE
from penstock.balancing.admission.room import Room
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.lines import FILLS, Door, Priced, ready, turns

BLOCKS = tuple(range(2 * STRIDE))
KV_TOKENS = 30_000


def shared(tokens: int = 1_600, own: int = 0, **fields: Any) -> dict[str, Any]:
    """A prompt of eight common blocks, and of some of its own."""
    blocks = BLOCKS + tuple(range(1_000 * own, 1_000 * own + STRIDE * bool(own)))
    return {
        "prompt_tokens": tokens,
        "blocks": blocks,
        "block_tokens": tokens / len(blocks),
        **fields,
    }


def room(door: Door, place: int = 0) -> Room:
    return door.admission.lines["p"].places.rooms[door.backends[place]]


def learned(door: Door) -> None:
    """The common beginning is in the cache."""
    ticket = door.enter(0, **shared())
    door.first(ticket, 1.0)
    door.finish(ticket, 1.1, 100)


@pytest.mark.parametrize("output_tokens", [10.0, 500.0])
def test_a_common_beginning_is_held_once(output_tokens: float) -> None:
    """Prompts of 2,400 tokens, 1,600 of them in common: six hold 6,400, and 14,400 are counted."""
    door = Door("a", kv_tokens=7_000)
    learned(door)
    fields: dict[str, Any] = {"max_tokens": 10, "output_tokens": output_tokens}
    fitting = 0
    for number in range(1, 8):
        fields["name"] = f"new {number}"  # of its answers nothing is known
        ticket = door.enter(0, 2.0, **fields | shared(2_400, number))
        if ticket in door.leases:
            fitting += 1
            door.first(ticket, 3.0)
    assert fitting == 6


def test_the_first_that_computes_a_beginning_holds_it_and_shares_nothing() -> None:
    door = Door("a", kv_tokens=3_000)
    ticket = door.enter(0, **shared(2_000, max_tokens=10))
    door.first(ticket, 1.0)
    flow = Flow("f", 1)
    assert room(door).cache.fits(flow, Ask("/", prompt_tokens=900, max_tokens=10), 1.0)
    assert not room(door).cache.fits(flow, Ask("/", prompt_tokens=1_000, max_tokens=10), 2.0)


# Conservation ------------------------------------------------------------------------------


def spare(door: Door, now_s: float, place: int = 0) -> int:
    """The longest prompt that a backend takes now, with an answer of 10 tokens."""
    there, flow = room(door, place), Flow("f", 1)

    def fits(tokens: int) -> bool:
        return there.cache.fits(flow, Ask("/", prompt_tokens=tokens, max_tokens=10), now_s)

    most = KV_TOKENS - 9  # what cannot fit an empty cache is let in
    return bisect_left(range(most), True, key=lambda tokens: not fits(tokens)) - 1


def assert_empty(door: Door) -> None:
    """Nothing is counted at any backend, and another request finds what it would at a new one."""
    for each in door.admission.lines["p"].places.rooms.values():
        assert each.backend.own.idle
        assert not each.tickets
        assert each.cache.most_tokens == 0.0
    for place, backend in enumerate(door.backends):
        door.policy.prices = {each.name: float(each is not backend) for each in door.backends}
        door.first(door.enter(100, 1e3, max_tokens=10), 1e3)
        assert spare(door, 1e3, place) == pytest.approx(KV_TOKENS - 100 - 20, abs=20)


def walk(seed: int, *, blocks: bool, streams: bool = True) -> Door:
    """Requests come, go on and end in any order, until none is left."""
    rng = Random(seed)
    door = Door("a", "b", kv_tokens=KV_TOKENS, shares=(0.0, 0.1))
    open_: list[Ticket] = []
    now_s = 0.0
    for _ in range(400):
        now_s += rng.choice([0.0, 0.01, 0.2])
        kind = rng.randrange(6)
        if kind < 2:
            fields: dict[str, Any] = {"rank": rng.randrange(2), "name": rng.choice("xyz")}
            fields |= {"prompts": rng.choice([1, 1, 2]), "choices": rng.choice([1, 1, 3])}
            if not streams:
                fields |= {"stream": rng.random() < 0.5, "generates": rng.random() < 0.8}
            if blocks:
                fields |= {"prompts": 1} | shared(rng.choice([1_600, 1_700]), rng.randrange(3))
            open_.append(door.enter(rng.randint(1, 5_000), now_s, **fields))
        elif kind == 2:
            door.wake(now_s)
        elif open_:
            ticket = rng.choice(open_)
            step(rng, door.admission, ticket, door.leases.get(ticket), now_s)
            if not ticket.waits and (ticket not in door.leases or door.leases[ticket].ended):
                open_.remove(ticket)
    for ticket in open_:
        door.admission.leave(ticket, now_s)
        if ticket in door.leases:
            door.leases[ticket].end(now_s)
    assert door.admission.waiting == 0
    return door


def step(
    rng: Random, admission: Admission, ticket: Ticket, lease: Lease | None, now_s: float
) -> None:
    """Something happens to one request, which may have happened before."""
    if lease is None:
        if rng.random() < 0.1:
            admission.leave(ticket, now_s)
        return
    kind = rng.randrange(5)
    if kind == 0:
        lease.tokens(rng.randint(1, 30))
    elif kind == 1:
        lease.end(now_s)
    elif kind == 2:
        lease.fail(now_s, suspicious=False)
    elif kind == 3:
        lease.first_token(now_s)
        lease.complete(now_s, 30)
    else:
        lease.first_token(now_s, rng.randrange(6))


@pytest.mark.parametrize("seed", range(20))
def test_when_all_have_ended_nothing_is_counted(seed: int) -> None:
    assert_empty(walk(seed, blocks=False, streams=seed % 2 == 0))


@pytest.mark.parametrize("seed", range(20))
def test_when_all_have_ended_no_common_beginning_is_counted(seed: int) -> None:
    assert_empty(walk(seed, blocks=True))


def learnt() -> Door:
    door = Door("a", kv_tokens=KV_TOKENS)
    learned(door)
    return door


def common(door: Door, number: int, now_s: float, tokens: int = 2_400) -> Ticket:
    """One that finds the common beginning in the cache is sent."""
    ticket = door.enter(0, now_s, **shared(tokens, number, max_tokens=10))
    assert door.leases[ticket].cached_tokens in (1_500, 1_600)
    return ticket


def test_one_that_ends_before_its_first_token_takes_nothing_from_the_others() -> None:
    door = learnt()
    for number in (1, 2):
        door.first(common(door, number, 2.0), 2.1)
    before = spare(door, 2.5)
    assert before == KV_TOKENS - 1_600 - 2 * 800 - 30
    third = common(door, 3, 3.0)
    door.leases[third].end(3.1)
    assert spare(door, 3.2) == before


def test_a_beginning_that_was_estimated_otherwise_leaves_nothing_behind() -> None:
    door = learnt()
    tickets = [common(door, 1, 2.0), common(door, 2, 2.0, 2_250)]
    for ticket in tickets:
        door.first(ticket, 2.1)
    for ticket in tickets:
        door.finish(ticket, 3.0)
    assert_empty(door)


def test_one_that_was_set_aside_counts_once() -> None:
    """Others got their first tokens before its own."""
    door = learnt()
    slow = common(door, 1, 2.0)
    quick = common(door, 2, 2.0)
    door.first(quick, 30.0)
    assert door.leases[slow].held_up  # set aside
    door.first(slow, 31.0)
    door.finish(slow, 32.0)
    door.finish(quick, 32.0)
    tickets = [common(door, number, 33.0) for number in (3, 4)]
    for ticket in tickets:
        door.first(ticket, 33.1)
    assert spare(door, 34.0) == KV_TOKENS - 1_600 - 2 * 800 - 30


def test_one_that_was_sent_without_a_ticket_leaves_nothing_behind() -> None:
    """As when a reload has switched the holding off."""
    door = learnt()
    lease = door.gate.choose(Ask("/", stream=True, **shared(2_400, 1)), 2.0)
    lease.first_token(2.1)
    lease.complete(2.2)
    door.first(common(door, 3, 33.0), 33.1)
    assert spare(door, 34.0) == KV_TOKENS - 2_400 - 20


# The time between tokens -------------------------------------------------------------------


def streams_behind_which_one_waits() -> Door:
    door = Door("a")
    for _ in range(10):
        door.first(door.enter(100), 0.0)
    door.enter(FILLS)
    assert door.enter(FILLS).waits
    return door


@pytest.mark.parametrize("gap_s", [0.02, 0.05, 0.15])
def test_the_time_between_tokens_is_that_of_a_stream_not_of_all(gap_s: float) -> None:
    door = streams_behind_which_one_waits()
    door.stream(5.0, gap_s)
    assert room(door).gap_s == pytest.approx(gap_s, 0.15)


def test_it_follows_when_streams_become_slower() -> None:
    door = streams_behind_which_one_waits()
    now_s = door.stream(3.0, 0.02)
    door.stream(4.0, 0.1, now_s)
    assert room(door).gap_s == pytest.approx(0.1, 0.2)


def test_tokens_of_a_time_when_nothing_waited_do_not_count() -> None:
    door = streams_behind_which_one_waits()
    now_s = door.stream(3.0, 0.1)
    waits = next(ticket for ticket in turns(door.queue, 0, 1))
    door.admission.leave(waits, now_s)
    now_s = door.stream(60.0, 0.01, now_s)
    assert door.enter(FILLS, now_s).waits
    door.stream(1.0, 0.1, now_s)
    assert room(door).gap_s == pytest.approx(0.1, 0.3)


def test_a_stream_whose_client_does_not_read_shows_nothing_of_that_time() -> None:
    door = streams_behind_which_one_waits()
    now_s = door.stream(1.0, 0.02)
    unread = next(lease for lease in door.leases.values() if lease.first_token_s is not None)
    unread.held_up = True
    for number in range(1, 251):
        for lease in door.leases.values():
            if lease.first_token_s is not None and lease is not unread:
                lease.tokens(1)
        door.wake(now_s + number * 0.02)
    assert room(door).gap_s == pytest.approx(0.02, 0.04)


def test_a_backend_that_joins_while_requests_wait_is_measured_from_then_on() -> None:
    door = streams_behind_which_one_waits()
    for _ in range(3):
        door.enter(FILLS)
    joined = ready("joined")
    door.backends += (joined,)
    door.fleet = Fleet((Pool("p", door.backends, Priced()),))
    door.admission.follow(door.admission.rules)
    for ticket in door.wake(0.1):
        door.first(ticket, 0.1)
    assert joined.own.requests
    door.stream(2.0, 0.02, 0.1)
    assert door.admission.waiting
    assert room(door, 1).gap_s == pytest.approx(0.02, 0.15)
