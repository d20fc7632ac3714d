"""Whether a KV cache has room for a prompt and its answer."""

from bisect import bisect_left
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from penstock.balancing.admission.kv_cache import spare_tokens
from penstock.balancing.admission.queued_request import QueuedRequest, WaitReason
from penstock.balancing.engine_report import EngineReport
from tests.unit.balancing.admission.door import Door, taught
from tests.unit.balancing.admission.walk import Walk, shared

# The peak ----------------------------------------------------------------------------------

Streams = list[tuple[int, int]]  # tokens still to come, tokens held now


def most_held(streams: Streams, prompt: int, left: int) -> int:
    """The most that is held in any step until the new one ends. Ends give back after a step."""
    held = []
    for step in range(left + 1):
        others = sum(tokens + step for to_come, tokens in streams if to_come >= step)
        held.append(others + prompt + step)
    return max(held)


def drawn(rng: Random) -> Streams:
    longest = rng.choice([3, 30, 120])  # of small numbers many are equal
    return [(rng.randint(0, longest), rng.randint(1, 500)) for _ in range(rng.randint(1, 12))]


@pytest.mark.parametrize("seed", range(10))
def test_a_prompt_of_the_spare_fits_until_it_ends_and_one_token_more_does_not(seed: int) -> None:
    """Against a cache that is filled token by token."""
    rng = Random(seed)
    for _ in range(50):
        streams = drawn(rng)
        ends = [left for left, _ in streams]
        for left in (rng.randint(0, 120), 0, min(ends), max(ends), max(ends) + 1):
            capacity = rng.randint(5_000, 9_000)
            spare = spare_tokens(streams, left, capacity)
            assert spare == int(spare)
            assert most_held(streams, int(spare), left) <= capacity
            assert most_held(streams, int(spare) + 1, left) > capacity


def test_an_empty_cache_has_room_for_all_but_the_answer() -> None:
    assert spare_tokens([], 100, 1_000) == 900
    assert spare_tokens([], 0, 1_000) == 1_000


def test_what_runs_over_after_its_end_is_no_reason_to_refuse_it() -> None:
    growing = [(1_000, 300), (1_000, 300)]  # 2,600 at their end
    assert spare_tokens(growing, 10, 1_000) == 1_000 - 600 - 3 * 10


# Prompts and answers -----------------------------------------------------------------------

KV_TOKENS = 30_000


def spare(door: Door, now_s: float, answer: int = 10, **fields: Any) -> int:
    """The longest prompt of a new tenant that has room now."""

    def has_room(tokens: int) -> bool:
        found = door.forecast(tokens, now_s, name="new", max_tokens=answer, **fields)
        return found.reason is not WaitReason.KV_CACHE

    most = (door.backends[0].report.kv_tokens or 0) - answer if door.backends[0].report else 0
    if not door.running:
        return most
    # What not even an empty cache has room for is let in.
    return bisect_left(range(most + 1), True, key=lambda tokens: not has_room(tokens)) - 1


def running(door: Door, tokens: int, now_s: float = 0.0, **fields: Any) -> QueuedRequest:
    """One that has its first token."""
    request = door.enter(tokens, now_s, **fields)
    assert door.is_sent(request)
    door.first(request, now_s)
    return request


def test_prompts_and_expected_answers_take_room_until_they_end() -> None:
    door = Door("a", kv_tokens=KV_TOKENS)
    first = running(door, 5_000, max_tokens=10)
    running(door, 5_000, max_tokens=10)
    before = spare(door, 0.0)
    assert before == pytest.approx(20_000, abs=40)
    door.leases[first].end(0.1)
    assert spare(door, 0.1) == pytest.approx(before + 5_000, abs=20)


def test_short_answers_that_end_soon_leave_room_to_one_that_comes_later() -> None:
    """Not all answers are held at their full length at once."""
    door = Door("a", kv_tokens=10_000)
    running(door, 1_000, max_tokens=2_000, output_tokens=2_000.0)
    running(door, 1_000, max_tokens=2_000, output_tokens=2_000.0)
    left = 10_000 - 2_000 - 3 * 100  # the new one has ended when they have 100 tokens
    assert spare(door, 0.0, answer=100) == pytest.approx(left, abs=5)


def test_a_tenant_with_long_answers_needs_more_room_than_one_with_short_answers() -> None:
    door = Door("a", kv_tokens=KV_TOKENS)
    taught(door, "long", 4_000)
    taught(door, "short", 10)
    running(door, 20_000, 1.0, name="other", max_tokens=5_000, output_tokens=5_000.0)
    assert door.forecast(7_500, 1.0, name="short").reason is None
    assert door.forecast(7_500, 1.0, name="long").reason is WaitReason.KV_CACHE


def test_the_answer_of_one_request_counts_for_a_quarter_of_the_cache_at_most() -> None:
    """An engine with less room computes choices one after another. Otherwise it would wait for
    ever beside others."""
    door = Door("a", kv_tokens=40_000)
    running(door, 1_000, max_tokens=10)
    request = door.enter(100, 0.1, choices=7, max_tokens=8_000, output_tokens=8_000.0)
    assert door.is_sent(request)


def test_what_no_empty_cache_could_hold_does_not_wait_for_it() -> None:
    """What the engine reports is no measure of this."""
    door = Door("a", kv_tokens=1_000)
    running(door, 900, max_tokens=10)
    assert door.is_sent(door.enter(5_000, 0.1))


def test_a_prompt_waits_until_streams_have_ended() -> None:
    door = Door("a", kv_tokens=10_000)
    first = running(door, 6_000, max_tokens=100)
    waits = door.enter(5_000, 0.1, name="y", max_tokens=100)
    assert waits.reason is WaitReason.KV_CACHE
    assert door.wake(1.0) == []
    door.finish(first, 2.0, 50)
    assert door.wake(2.0) == [waits]


def test_plain_answers_grow_by_the_clock() -> None:
    """Nobody sees their tokens before the end."""
    door = Door("a", kv_tokens=KV_TOKENS)
    request = door.enter(5_000, 0.0, stream=False, max_tokens=8_000, output_tokens=100.0)
    door.first(request, 0.5)
    soon = spare(door, 1.0)
    door.report(51.0)
    later = spare(door, 51.0)
    step_s = door.pool.capacities[door.backends[0]].step_s
    assert soon - later > 0.5 * min(8_000.0, 50.0 / step_s)


def test_embeddings_wait_for_no_room() -> None:
    door = Door("a", kv_tokens=KV_TOKENS)
    running(door, 20_000, max_tokens=10)
    assert door.forecast(20_000, 0.1, generates=False, stream=False).reason is None
    assert door.forecast(20_000, 0.1).reason is WaitReason.KV_CACHE


# What the engine reports -------------------------------------------------------------------


def reported(usage_tokens: int, streams: int = 10, waiting: int = 0) -> Door:
    """So many streams of 1,000 tokens, and what the engine says that it holds."""
    door = Door("a", kv_tokens=12_000)
    for _ in range(streams):
        running(door, 1_000, max_tokens=1)
    usage = usage_tokens / 12_000
    door.backends[0].take(EngineReport(1.0, streams, waiting, kv_usage=usage, kv_tokens=12_000))
    return door


def test_what_streams_hold_in_common_counts_once_when_the_engine_has_told() -> None:
    assert spare(reported(10_000), 1.0) < 2_000
    assert spare(reported(4_000), 1.0) == pytest.approx(8_000, abs=300)


def test_what_an_engine_holds_beyond_what_is_known_is_no_room_up_to_a_quarter() -> None:
    """Prompts were estimated too low, other proxies use it, or a backend says nonsense."""
    known = spare(reported(1_000, streams=1), 1.0)
    assert spare(reported(3_000, streams=1), 1.0) == pytest.approx(known - 2_000, abs=20)
    assert spare(reported(12_000, streams=1), 1.0) == pytest.approx(known - 3_000, abs=20)


# Shared beginnings -------------------------------------------------------------------------


def learnt(kv_tokens: int = KV_TOKENS) -> Door:
    """The common beginning is in the engine's cache."""
    door = Door("a", kv_tokens=kv_tokens)
    request = door.enter(0, **shared())
    door.first(request, 1.0)
    door.finish(request, 1.1, 100)
    return door


def common(door: Door, number: int, now_s: float, tokens: int = 2_400) -> QueuedRequest:
    request = door.enter(0, now_s, name="s", **shared(tokens, number, max_tokens=10))
    assert door.is_sent(request)
    return request


def test_a_common_beginning_is_held_once() -> None:
    """Six prompts of 2,400 tokens, of which 1,600 are in common: they hold 6,400."""
    door, sent = learnt(7_000), 0
    for number in range(1, 9):
        fields = shared(2_400, number, max_tokens=10)
        request = door.enter(0, 2.0, name=f"{number}", **fields)
        if door.is_sent(request):
            sent += 1
            door.first(request, 2.0)
    assert sent == 6


def test_the_first_that_computes_a_beginning_shares_nothing() -> None:
    door = Door("a", kv_tokens=3_000)
    running(door, 0, **shared(2_000, max_tokens=10))
    assert spare(door, 1.0) == pytest.approx(1_000, abs=30)


def test_a_beginning_stays_held_until_the_last_that_shares_it_has_ended() -> None:
    door = learnt()
    requests = [common(door, number, 2.0) for number in (1, 2, 3)]
    for request in requests:
        door.first(request, 2.1)
    found = [spare(door, 2.2)]
    for request in requests:
        door.finish(request, 2.3, 10)
        found.append(spare(door, 2.3))
    less = [after - before for before, after in pairwise(found)]
    assert less[:2] == pytest.approx([800, 800], abs=30)
    assert found[-1] == KV_TOKENS - 10


def test_one_that_ends_before_its_first_token_takes_nothing_from_the_others() -> None:
    door = learnt()
    for number in (1, 2):
        door.first(common(door, number, 2.0), 2.1)
    before = spare(door, 2.5)
    third = common(door, 3, 3.0)
    door.leases[third].end(3.1)
    assert spare(door, 3.2) == before


def test_nobody_makes_the_prompts_of_others_look_smaller() -> None:
    """One client's estimate of the same text is ten times too high."""
    door = learnt()
    wrong = door.enter(0, 2.0, name="x", **shared(16_000, max_tokens=10))
    door.first(wrong, 2.1)
    right = common(door, 1, 2.2)
    door.first(right, 2.3)
    held = KV_TOKENS - spare(door, 2.4)
    assert held >= 800 + 1_600


# Nothing stays -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "streams"), [(False, True), (False, False), (True, True), (True, False)]
)
@pytest.mark.parametrize("seed", range(10))
def test_when_all_have_ended_nothing_is_counted(seed: int, *, blocks: bool, streams: bool) -> None:
    walk = Walk(seed, blocks=blocks, streams=streams)
    door = walk.door
    for _ in range(150):
        walk.step()
    walk.end()
    assert door.admission.waiting == 0
    for capacity in door.pool.capacities.values():
        assert capacity.backend.own.idle
        assert not capacity.charges
        assert not capacity.kv.surprises
        assert (capacity.sequences, capacity.fills, capacity.wanted) == (0, 0, 0)
        assert capacity.kv.shared_tokens == 0.0
    for backend in door.backends:  # and the next one finds the whole cache
        backend.take(EngineReport(1e3, kv_tokens=KV_TOKENS))
        door.policy.prices = {each.name: float(each is not backend) for each in door.backends}
        door.first(door.enter(100, 1e3, max_tokens=10), 1e3)
        now_spare = spare(door, 1e3)
        assert now_spare == pytest.approx(KV_TOKENS - 100 - 20, abs=20)


def test_answers_that_are_nearly_as_long_as_their_limit_end_without_a_fault() -> None:
    """Each value may be a third of a token larger than expected."""
    door = Door("a", kv_tokens=40_000)
    for tokens in (15, 16, 16):
        door.finish(door.enter(10, name="x"), 0.0, tokens)
    requests = [door.enter(10, 1.0, name="x", max_tokens=16) for _ in range(2)]
    for request in requests:
        door.finish(request, 2.0, 16)
    assert door.backends[0].own.idle
