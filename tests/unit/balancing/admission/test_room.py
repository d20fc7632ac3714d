"""Whether a backend has room for one more: in its next step, and in its cache."""

from collections.abc import Sequence
from itertools import count
from math import inf
from random import Random

import pytest

from penstock.balancing.admission.kv_peak import spare_tokens
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.room import WINDOW_S, WINDOW_WORK_MIN, Room
from penstock.balancing.admission.slots import kept_places
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.lines import ready

NUMBER = count()


def ask_of(tokens: int, *, max_tokens: int | None = None, output_tokens: float = 100.0) -> Ask:
    return Ask(
        "/",
        prompt_tokens=tokens,
        stream=True,
        max_tokens=max_tokens,
        output_tokens=output_tokens,
    )


def room_of(kv_tokens: int | None = None) -> tuple[Room, Spread]:
    spread = Spread()
    return Room(ready("a", kv_tokens), spread), spread


def put(room: Room, ask: Ask, flow: Flow | None = None, *, begun: bool = True) -> Lease:
    """Send it there. `begun`: it has its first token."""
    lease = Lease(room.backend, ask, 0.0)
    ticket = Ticket(ask, 0.0, lambda _: None)
    ticket.flow = flow or Flow(f"{next(NUMBER)}", 1)
    room.add(lease, ticket)
    if begun:
        lease.first_token(0.0)
        room.prefilled(lease)
    return lease


def fast(backend: Backend, work_per_s: float) -> None:
    """It has been measured to be so fast."""
    for tokens in (500.0, 2_000.0, 8_000.0) * 200:
        backend.prefill_speed.observe(tokens, 0.02 + tokens / work_per_s)


@pytest.mark.parametrize(("kv_tokens", "giant"), [(None, True), (100_000, True), (400_000, False)])
def test_a_long_list_is_a_giant_before_any_report_has_told_of_the_cache(
    kv_tokens: int | None, giant: bool
) -> None:
    room, _ = room_of(kv_tokens)
    texts = Ask("/v1/embeddings", prompt_tokens=141_000, prompts=30, generates=False)
    assert room.cache.is_giant(Flow("f", 1), texts) is giant


# The window --------------------------------------------------------------------------------


def test_one_prompt_has_room_always_however_long_it_is() -> None:
    room, _ = room_of()
    assert room.takes_prompts()
    put(room, ask_of(100_000), begun=False)
    assert not room.takes_prompts()


def test_a_step_has_room_for_some_work_whatever_the_speed_was_measured_to_be() -> None:
    room, _ = room_of()
    fast(room.backend, 1_000.0)
    put(room, ask_of(1_900), begun=False)
    assert room.backend.queued_work < WINDOW_WORK_MIN
    assert room.takes_prompts()
    put(room, ask_of(200), begun=False)
    assert not room.takes_prompts()


def test_a_fast_engine_gets_more_beforehand() -> None:
    room, _ = room_of()
    fast(room.backend, 100_000.0)
    while room.takes_prompts():
        put(room, ask_of(500), begun=False)
    assert room.backend.queued_work == pytest.approx(WINDOW_S * 100_000, 0.1)


def test_a_first_token_opens_the_window_again() -> None:
    room, _ = room_of()
    lease = put(room, ask_of(5_000), begun=False)
    assert not room.takes_prompts()
    lease.first_token(0.1)
    assert room.takes_prompts()


# The cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_tokens", [None, 0])
def test_without_a_report_of_its_size_every_prompt_fits(kv_tokens: int | None) -> None:
    room, _ = room_of()
    room.backend.take(EngineReport(0.0, kv_tokens=kv_tokens))
    for _ in range(10):
        put(room, ask_of(100_000))
    assert room.cache.fits(Flow("f", 1), ask_of(100_000), 0.0)


def test_one_at_an_empty_backend_always_fits() -> None:
    room, _ = room_of(1_000)
    assert room.cache.fits(Flow("f", 1), ask_of(900), 0.0)
    put(room, ask_of(100))
    assert not room.cache.fits(Flow("f", 1), ask_of(900), 0.0)


def test_a_cache_that_is_told_to_be_too_small_for_it_is_no_measure() -> None:
    """Otherwise a backend that reports nonsense would look idle, and keep requests waiting."""
    room, _ = room_of(1_000)
    put(room, ask_of(100))
    assert room.cache.fits(Flow("f", 1), ask_of(950), 0.0)


def test_a_request_with_a_great_many_answers_counts_for_a_part_of_the_cache() -> None:
    room, _ = room_of(10_000)
    many = Ask("/", prompt_tokens=20, choices=128, output_tokens=500.0, stream=True)
    put(room, many)
    assert room.cache.fits(Flow("f", 1), ask_of(5_000), 0.0)
    assert not room.cache.may_grow(Flow("f", 1), many, 0.0)  # one at a time


def test_it_must_fit_until_it_ends_beside_all_that_grow() -> None:
    """Two answers of 100 tokens to prompts of 300: beside them, 100 more each."""
    room, _ = room_of(1_000)
    put(room, ask_of(300))
    put(room, ask_of(300))
    flow = Flow("f", 1)
    assert room.cache.fits(flow, ask_of(100), 0.0)
    assert not room.cache.fits(flow, ask_of(101), 0.0)
    short = ask_of(370, max_tokens=10)  # ends before the others are long
    assert room.cache.fits(flow, short, 1.0)
    assert not room.cache.fits(flow, ask_of(371, max_tokens=10), 2.0)


def test_prompts_that_wait_there_are_held_too() -> None:
    room, _ = room_of(1_000)
    put(room, ask_of(600), begun=False)
    assert not room.cache.fits(Flow("f", 1), ask_of(300), 0.0)


def test_what_other_replicas_hold_there_is_not_spare() -> None:
    room, _ = room_of(1_000)
    put(room, ask_of(100))
    assert room.cache.fits(Flow("f", 1), ask_of(500), 0.0)
    room.backend.remote.active_decode_tokens = 400
    assert not room.cache.fits(Flow("f", 1), ask_of(500), 1.0)


def test_at_one_moment_each_flow_is_asked_for_by_its_own_answers() -> None:
    room, _ = room_of(8_000)
    put(room, ask_of(300, output_tokens=2_000.0))
    brief, lengthy = Flow("brief", 1), Flow("lengthy", 1)
    brief.answer_tokens, lengthy.answer_tokens = 10.0, 1_500.0
    assert room.cache.fits(brief, ask_of(7_680), 0.0)  # 310 are beside it at its end
    assert not room.cache.fits(lengthy, ask_of(5_000), 0.0)
    assert not room.cache.fits(lengthy, ask_of(5_000), 1.0)
    assert room.cache.fits(brief, ask_of(7_680), 1.0)


@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_beside_one_that_makes_no_answer_only_its_prompt_is_held(mean: float) -> None:
    """The answers of its flow, if there were any, say nothing about it."""
    room, _ = room_of(2_000)
    flow = Flow("f", 1)
    flow.answer_tokens = mean
    embedding = Ask("/", prompt_tokens=500, generates=False, output_tokens=0.0)
    put(room, embedding, flow, begun=False)
    other = Flow("other", 1)
    assert room.cache.fits(other, ask_of(1_500), 0.0)
    assert not room.cache.fits(other, ask_of(1_501), 0.0)


def spare_of(room: Room, spread: Spread, flow: Flow, ask: Ask) -> float:
    """The longest prompt that fits, by the definition."""
    streams = []
    for lease, ticket in room.tickets.items():
        left = ticket.flow.left_tokens(lease.ask, lease.generated_tokens, spread)
        streams.append((left, float(lease.ask.prompt_tokens + lease.generated_tokens)))
    report = room.backend.report
    assert report is not None
    assert report.kv_tokens is not None
    return spare_tokens(streams, flow.left_tokens(ask, 0, spread), report.kv_tokens)


def earn(room: Room, flow: Flow, tokens: float) -> None:
    """It was given so many tokens there, as was expected."""
    lease = put(room, ask_of(1, output_tokens=tokens), flow)
    lease.end(0.0)
    lease.generated_tokens = int(tokens)
    room.remove(lease, 0.0)


def disagreements(seed: int, answers: Sequence[int]) -> int:
    """How often it says otherwise than the definition, as answers of these lengths are learnt."""
    rng = Random(seed)
    room, spread = room_of(20_000)
    flows = [Flow(name, 1) for name in "abc"]
    for flow in flows:
        earn(room, flow, 1e12)
    leases: list[Lease] = []
    wrong = 0
    for step in range(300):
        if answers:
            spread.observe(rng.choice(flows).answered(rng.choice(answers)))
        kind = rng.randrange(3)
        if kind == 0 and leases:
            lease = leases.pop(rng.randrange(len(leases)))
            lease.end(float(step))
            room.remove(lease, float(step))
        elif kind == 1 and leases:
            rng.choice(leases).tokens(rng.randint(1, 50))
        most = sum(ticket.most_tokens for ticket in room.tickets.values())
        assert room.cache.most_tokens == pytest.approx(most)
        flow, ask = rng.choice(flows), ask_of(rng.randint(1, 4_000))
        fits = room.cache.fits(flow, ask, float(step))
        if room.tickets:
            wrong += fits != (ask.prompt_tokens <= spare_of(room, spread, flow, ask))
        if fits:
            leases.append(put(room, ask, flow))
    return wrong


@pytest.mark.parametrize("seed", range(5))
def test_the_short_way_says_what_the_long_one_says(seed: int) -> None:
    assert disagreements(seed, []) == 0


# How long it waits for the cache -----------------------------------------------------------------


def waits(room: Room, flow: Flow, ask: Ask) -> tuple[float, float]:
    """What is likely, and what is sure, in seconds."""
    ticket = Ticket(ask, 0.0, lambda _: None)
    ticket.flow = flow
    cache = room.cache
    return cache.likely_wait_s(ticket, ask, 0.0), cache.sure_wait_s(ticket, ask, 0.0)


def test_who_fits_waits_for_nothing() -> None:
    room, _ = room_of(10_000)
    put(room, ask_of(5_000))
    assert waits(room, Flow("f", 1), ask_of(1_000)) == (0.0, 0.0)


def test_among_many_streams_one_is_likely_to_end_soon_and_sure_to_end_late() -> None:
    """Ninety streams of 100 held and 100 expected tokens each: 180 come back in a step."""
    room, _ = room_of(10_000)
    for _ in range(90):
        put(room, ask_of(100))
    step_s = room.backend.decode_speed.itl_s(9_000)
    likely_s, sure_s = waits(room, Flow("f", 1), ask_of(500))
    assert likely_s == pytest.approx(600 / 180 * step_s)  # 500 and its answer of 100
    assert sure_s == pytest.approx(100 * step_s)  # when the first of them ends


def test_who_waits_for_its_own_answers_waits_until_those_before_it_have_had_one() -> None:
    room, _ = room_of(10_000)
    flow, other = Flow("f", 1), Flow("g", 1)
    for _ in range(3):
        put(room, ask_of(100), flow)
    put(room, ask_of(100), other)
    ticket = Ticket(ask_of(100), 0.0, print)
    ticket.flow = flow
    assert not room.cache.may_grow(flow, ask_of(100), 0.0)
    step_s = room.cache.step_s
    first_s, tenth_s = (room.cache.own_wait_s(ticket, ask_of(100), n, 0.0) for n in (0, 9))
    assert first_s == pytest.approx(100 * step_s / 3)
    assert tenth_s == pytest.approx(10 * first_s)
    ticket.flow = Flow("new", 1)
    assert room.cache.own_wait_s(ticket, ask_of(100, max_tokens=50), 9, 0.0) == 0.0


def test_choices_of_one_request_grow_at_once() -> None:
    room, _ = room_of(10_000)
    many = Ask("/", prompt_tokens=100, stream=True, output_tokens=100.0, choices=20)
    for _ in range(4):
        put(room, many)
    step_s = room.backend.decode_speed.itl_s(room.backend.active_decode_tokens)
    _, sure_s = waits(room, Flow("f", 1), ask_of(3_000))
    assert sure_s == pytest.approx(100 * step_s)


def shared(usage: float, waiting: int = 0) -> Room:
    """Ten streams of 1,000 tokens, of which the engine holds less."""
    room, _ = room_of(12_000)
    for _ in range(10):
        put(room, ask_of(1_000, max_tokens=1))
    room.backend.take(
        EngineReport(1.0, running=10, waiting=waiting, kv_usage=usage, kv_tokens=12_000)
    )
    return room


def longest(room: Room, now_s: float, blocks: tuple[int, ...] = ()) -> int:
    """The longest prompt that fits beside the streams, in hundreds of tokens."""
    flow = Flow("", 1)
    fits = [
        tokens
        for tokens in range(100, 12_000, 100)
        if room.cache.fits(flow, ask_of(tokens, max_tokens=1), now_s)
    ]
    return max(fits, default=0)


def test_what_several_streams_hold_once_is_counted_once_when_the_engine_has_told() -> None:
    assert longest(shared(10_000 / 12_000), 1.0) < 2_000
    assert 7_500 <= longest(shared(4_000 / 12_000), 1.0) <= 8_000


def test_a_report_that_is_old_tells_nothing() -> None:
    assert longest(shared(4_000 / 12_000), 100.0) < 2_000


def test_a_stream_that_was_stopped_counts_as_if_it_were_held() -> None:
    """Five of ten wait for room in a full cache: there is none for others."""
    assert longest(shared(5_000 / 12_000, waiting=5), 1.0) < 2_000


def test_what_an_engine_holds_beyond_what_is_known_is_no_room_up_to_a_quarter() -> None:
    """Prompts were estimated too low, or a backend says nonsense."""
    assert longest(shared(11_000 / 12_000), 1.0) == longest(shared(10_000 / 12_000), 1.0) - 1_000
    room, _ = room_of(12_000)
    put(room, ask_of(1_000, max_tokens=1))
    before = longest(room, 1.0)
    room.backend.take(EngineReport(1.0, running=1, kv_usage=1.0, kv_tokens=12_000))
    assert longest(room, 1.1) == before - 3_000


def test_a_prompt_that_waits_for_room_in_the_engine_is_not_what_the_engine_holds() -> None:
    """It holds 2,000 tokens more than is known, whether the prompt waits or is prefilled."""
    found = []
    for waiting, held in ((1, 9_000), (0, 11_500)):
        room, _ = room_of(12_000)
        for _ in range(7):
            put(room, ask_of(1_000, max_tokens=1))
        stuck = put(room, ask_of(2_500, max_tokens=1), begun=False)
        report = EngineReport(1.0, 7, waiting, kv_usage=held / 12_000, kv_tokens=12_000)
        room.backend.take(report)
        stuck.first_token(1.0)
        room.prefilled(stuck)
        found.append(longest(room, 1.0))
    assert found[0] == found[1] <= 1_000


def test_a_prompt_that_is_too_long_for_what_the_cache_has_free_teaches_no_slots() -> None:
    for tokens, learns in ((9_000, False), (5_000, True)):
        room, _ = room_of(12_000)
        for _ in range(2):
            put(room, ask_of(100, max_tokens=1))
        put(room, ask_of(tokens, max_tokens=1), begun=False)
        room.backend.take(EngineReport(20.0, running=2, waiting=1, kv_usage=0.1, kv_tokens=12_000))
        room.look_at_report(20.0)
        assert (room.lack(Ticket(ask_of(1), 20.0, print), ask_of(1), 20.0) is Lack.SEQUENCES) is (
            learns
        )


def test_the_last_places_are_for_flows_that_have_hardly_any() -> None:
    assert [kept_places(most) for most in (1, 2, 8, 256, inf)] == [0, 1, 1, 16, 0]
