"""How fast backends are beside each other."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import STALE_S, Backend, State
from penstock.balancing.lease import Lease
from penstock.balancing.policies.token_cost import COMPARE, TokenCost
from penstock.balancing.speed.compare import (
    ALIKE,
    PEERS_MAX,
    SAMPLES_MIN,
    compare,
    slower,
)
from penstock.balancing.speed.estimates import ENOUGH, KEPT, SLOWEST, RecentPace, prior_prefill_s
from tests.unit.balancing.policies.sending import sent

ORDINARY = 4_000.0  # work of one request


def measured(name: str, work_s: float, step_s: float = 0.02, samples: int = 300) -> Backend:
    """A backend that has shown to be that fast."""
    backend = Backend(name, "")
    backend.state = State.READY
    if samples:
        backend.refresh(0.0)
    rng = Random(name)
    for _ in range(samples):
        work = rng.uniform(0.5, 1.5) * ORDINARY
        backend.prefill_speed.observe(work, step_s + work * work_s)
        backend.prefill_speed.recent.observe((step_s + work * work_s) / prior_prefill_s(work))
    return backend


def found(*backends: Backend) -> list[float]:
    known = [each for each in backends if each.prefill_speed.samples]
    mean_s = sum(each.prefill_speed.work_s for each in known) / len(known)
    return speeds(backends, ORDINARY * mean_s, 1.0)


def speeds(backends: Sequence[Backend], ordinary_s: float, now_s: float) -> list[float]:
    told = compare(backends, ordinary_s, now_s)
    return [told.apart.get(backend, (told.mean_s, 1.0))[0] for backend in backends]


def test_where_nothing_is_known_all_are_alike() -> None:
    one, other = speeds([Backend("a", ""), Backend("b", "")], 0.1, 1.0)
    assert one == other


def test_a_mixed_fleet_is_seen_as_it_is() -> None:
    fast, slow = found(measured("a", 50e-6, 0.010), measured("b", 100e-6, 0.020))
    assert slow / fast == pytest.approx(2.0, rel=0.05)


def test_nearly_equal_ones_are_equal() -> None:
    one, other, slow = found(
        measured("a", 50e-6, 0.01), measured("b", 55e-6, 0.01), measured("c", 100e-6, 0.02)
    )
    assert one == other
    assert slow > 1.7 * one


def test_what_a_request_takes_counts_not_how_it_is_made_up() -> None:
    """Much step and little slope, or the other way round: 0.22 s in all for both."""
    one, other = found(measured("a", 45e-6, 0.040), measured("b", 54e-6, 0.004))
    assert one == other


@pytest.mark.parametrize(
    ("slower", "samples"), [(10_000.0, ENOUGH - 1), (2.0, SAMPLES_MIN - 1), (0.01, SAMPLES_MIN - 1)]
)
def test_one_that_little_is_known_of_is_as_fast_as_the_mean(slower: float, samples: int) -> None:
    fresh = measured("c", slower * 100e-6, samples=samples)
    fast, slow, unknown = found(measured("a", 50e-6), measured("b", 100e-6), fresh)
    assert fast < unknown < slow


def taken(fleet: Sequence[Backend]) -> Counter[str]:
    policy, rng = TokenCost(), Random(1)
    ask = Ask("/", prompt_tokens=1_000, stream=True)
    for _ in range(COMPARE):
        sent(policy, fleet, ask, 0.0, rng)
    return Counter(sent(policy, fleet, ask, 0.0, rng).name for _ in range(200))


def test_idle_engines_of_nearly_the_same_speed_share_the_work() -> None:
    counts = taken([measured("a", 50e-6), measured("b", 53e-6), measured("c", 200e-6)])
    assert set(counts) == {"a", "b"}
    assert min(counts.values()) > 70


@pytest.mark.parametrize(
    ("slower", "samples"), [(1.0, 0), (100.0, ENOUGH - 1), (2.0, SAMPLES_MIN - 1)]
)
def test_a_fast_one_does_not_keep_work_from_one_that_was_hardly_tried(
    slower: float, samples: int
) -> None:
    fresh = measured("b", slower * 50e-6, slower * 0.02, samples=samples)
    counts = taken([measured("a", 50e-6), fresh])
    assert min(counts["a"], counts["b"]) > 70


def test_one_that_was_away_is_not_judged_alone_by_what_little_it_showed() -> None:
    policy, rng = TokenCost(), Random(1)
    fast, back = measured("a", 1e-6, 0.002), measured("b", 100e-6, samples=SAMPLES_MIN - 1)
    ask = Ask("/", prompt_tokens=1_000, stream=True)
    for _ in range(COMPARE + 1):
        sent(policy, [fast], ask, 0.0, rng)
    one, other = policy.places([fast, back], ask, 0.0)
    assert one.seconds == other.seconds


def test_what_was_measured_long_ago_is_tried_again() -> None:
    """A backend that was slow, and so got nothing: two samples tell that it still is."""
    fast, slow = measured("a", 50e-6), measured("b", 500e-6)
    later_s = STALE_S + 1.0
    assert len(set(speeds([fast, slow], 0.1, 1.0))) == 2
    fast = measured("a", 50e-6)
    for _ in range(ENOUGH):
        first_token(fast, STALE_S, 0.2)
    assert len(set(speeds([fast, slow], 0.1, later_s))) == 1
    for _ in range(2):
        first_token(slow, later_s, 2.0)
    assert len(set(speeds([fast, slow], 0.1, later_s))) == 2


def test_what_is_fast_again_is_found_out_in_a_few_tries() -> None:
    fast, back = measured("a", 50e-6), measured("b", 500e-6)
    for tries in range(1, 6):
        now_s = tries * (STALE_S + 1.0)
        fast.refresh(now_s)
        for _ in range(3):
            first_token(back, now_s, 0.2)
    assert len(set(speeds([fast, back], 0.1, now_s))) == 1


@pytest.mark.parametrize("slower", [3.5, 20.0])
def test_a_handful_of_answers_tells_that_one_is_several_times_slower(slower: float) -> None:
    fast, slow = measured("a", 50e-6), measured("b", slower * 50e-6, slower * 0.02, ENOUGH)
    one, other = found(fast, slow)
    assert other / one == pytest.approx(slower, rel=0.4)
    slow = measured("b", slower * 50e-6, slower * 0.02, ENOUGH - 1)
    one, other = found(fast, slow)
    assert one == other


def decoding(name: str, step_s: float, samples: int) -> Backend:
    """One that prefills as all do and was measured to take so long for a step."""
    backend = measured(name, 50e-6)
    for _ in range(samples):
        backend.decode_speed.observe(100, 100 * step_s, 0.0, 1_000.0)
    return backend


@pytest.mark.parametrize("samples", [ENOUGH, 100])
def test_how_fast_it_decodes_counts_too(samples: int) -> None:
    fast, slow = decoding("a", 0.010, samples), decoding("b", 0.148, samples)
    policy, rng = TokenCost(), Random(1)
    ask = Ask("/", prompt_tokens=1_000, stream=True, output_tokens=100.0)
    for _ in range(COMPARE + 2):
        sent(policy, [fast, slow], ask, 0.0, rng)
    one, other = policy.places([fast, slow], ask, 0.0)
    assert one.prefill_s == other.prefill_s
    assert other.step_s / one.step_s == pytest.approx(14.8, rel=0.3)
    assert taken([fast, slow]) == {"a": 200}


def test_nearly_equal_steps_are_equal() -> None:
    assert compare([decoding("a", 0.010, 100), decoding("b", 0.013, 100)], 0.1, 0.0).apart == {}


def test_one_client_alone_does_not_make_a_backend_slow_that_serves_others() -> None:
    """Nine of ten answers there are one client's, and take ten times as long by what it asks."""
    victim, peer = decoding("a", 0.010, 8), decoding("b", 0.010, 8)
    for number in range(100):
        for _ in range(9):
            victim.decode_speed.recent.observe(5.0, "odd")
            assert victim not in compare([victim, peer], 0.1, 0.0).apart
        victim.decode_speed.recent.observe(0.5, f"other {number}")


@pytest.mark.parametrize("samples", [ENOUGH, 300])
def test_answers_of_a_second_client_hide_no_slow_backend(samples: int) -> None:
    """One client uses all four, another came to one of them: what the first saw is still known."""
    fleet = [measured(name, 50e-6, samples=samples) for name in "abc"]
    slow = measured("d", 500e-6, 0.2, samples)
    fleet[0].prefill_speed.recent.observe(0.5, "another")
    assert set(compare([*fleet, slow], 0.2, 1.0).apart) >= {slow}
    assert found(*fleet, slow)[3] > 4 * found(*fleet, slow)[1]


def test_a_client_that_is_slow_everywhere_makes_no_backend_slow() -> None:
    """Not the one that it alone uses, though it was seen among others elsewhere."""
    fleet = [measured(name, 50e-6, samples=2 * ENOUGH) for name in "abc"]
    alone = Backend("d", "")
    alone.refresh(0.0)
    for backend in (alone, alone, alone, alone, fleet[0]):
        backend.prefill_speed.recent.observe(8.0, "slow")
    assert compare([*fleet, alone], 0.2, 1.0).apart == {}
    fleet[1].prefill_speed.recent.observe(0.5, "slow")
    fleet[2].prefill_speed.recent.observe(0.5, "slow")
    assert set(compare([*fleet, alone], 0.2, 1.0).apart) == {alone}


def test_odd_answers_among_others_do_not_make_a_backend_slow() -> None:
    """Half of what it serves takes ten times as long, by what was asked: the other half shows."""
    victim, peer = decoding("a", 0.010, 4), decoding("b", 0.010, 20)
    for _ in range(8):
        victim.decode_speed.observe(100, 10.0, 0.0, 1_000.0)
        victim.decode_speed.observe(100, 1.0, 0.0, 1_000.0)
        assert compare([victim, peer], 0.1, 0.0).apart == {}


@pytest.mark.parametrize("samples", [20, 100])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_one_quick_beyond_belief_does_not_make_the_others_slow(others: int, samples: int) -> None:
    fleet = [decoding(name, 0.010, samples) for name in "abc"[:others]]
    liar = decoding("d", 0.0001, samples)
    apart = compare([*fleet, liar], 0.1, 0.0).apart
    assert not set(apart) & set(fleet)
    even = 200 / (others + 1)
    assert all(count < 1.2 * even for count in taken([*fleet, liar]).values())


@pytest.mark.parametrize("samples", [ENOUGH, 100])
def test_where_all_are_quick_one_that_is_not_is_seen(samples: int) -> None:
    """Small models decode in a tenth of what large ones take."""
    fleet = [decoding(name, 0.002, samples) for name in "ab"]
    assert "c" not in taken([*fleet, decoding("c", 0.040, samples)])
    assert set(taken([fleet[0], decoding("c", 0.040, samples)])) == {"a"}


def test_one_answer_says_no_more_than_that_it_took_very_long() -> None:
    pace = RecentPace()
    for _ in range(ENOUGH):
        pace.observe(1_125.0, "one that fetches an image for 30 s")
    assert pace.usual == pace.quick == SLOWEST
    assert pace.is_news(1_000.0)


def test_first_tokens_that_come_at_once_and_nothing_after_them_attract_nothing() -> None:
    fleet = [decoding(name, 0.010, 100) for name in "abc"]
    empty = measured("d", 1e-9, 0.001)
    counts = taken([*fleet, empty])
    assert counts["d"] <= 60
    assert min(counts[each.name] for each in fleet) >= 40


def test_where_nobody_decodes_a_fast_one_is_believed() -> None:
    """Embeddings: all that there is to see is prefill."""
    assert set(taken([measured("a", 50e-6), measured("b", 10e-6, 0.004)])) == {"b"}


def test_one_that_is_tried_again_is_sent_one_request_at_a_time() -> None:
    fast, slow = decoding("a", 0.010, 20), decoding("b", 0.148, 20)
    policy, rng = TokenCost(), Random(1)
    ask = Ask("/", prompt_tokens=1_000, stream=True, output_tokens=100.0)
    for _ in range(COMPARE + 2):
        sent(policy, [fast, slow], ask, 0.0, rng)
    later_s = STALE_S + 1.0
    fast.refresh(later_s)
    leases = []
    for _ in range(100):
        chosen = sent(policy, [fast, slow], ask, later_s, rng)
        leases.append(Lease(chosen, ask, later_s))
        if chosen is fast:
            leases.pop().end(later_s)
    assert [lease.backend for lease in leases] == [slow]
    # One that never ends does not keep it from being tried.
    fast.refresh(later_s + STALE_S)
    policy._look(later_s + STALE_S)
    assert slow not in policy._speeds.apart


def first_token(backend: Backend, now_s: float, seconds: float) -> None:
    lease = Lease(backend, Ask("/", prompt_tokens=4_000, stream=True), now_s)
    lease.first_token(now_s + seconds)
    lease.end(now_s + seconds)


@pytest.mark.parametrize("known", range(1, 20))
def test_equals_are_equal_to_the_last_digit(known: int) -> None:
    """Or an idle fleet would give all or nothing to the one that joined."""
    rng = Random(known)
    fleet = [measured(str(number), rng.uniform(50e-6, 60e-6)) for number in range(known)]
    assert len(set(found(*fleet, measured("new", 1.0, samples=0)))) == 1


def test_how_many_times_slower_is_told_of_those_measured_lately() -> None:
    fast = [measured(f"f{number}", 50e-6) for number in range(3)]
    slow = measured("slow", 500e-6)
    unknown = measured("u", 0.0, samples=0)
    told = {each.name: pace for each, pace in slower([*fast, slow, unknown], 1.0)}
    assert set(told) == {"f0", "f1", "f2", "slow"}
    assert told["slow"].prefill / told["f0"].prefill == pytest.approx(10.0, rel=0.3)
    assert told["f0"] == told["f1"] == told["f2"]
    assert list(slower([unknown], 1.0)) == []
    assert list(slower([*fast, slow], 1.0 + 2 * STALE_S)) == []


@pytest.mark.parametrize("samples", [ENOUGH, KEPT - 1, KEPT])
def test_a_few_answers_of_one_moment_accuse_nobody(samples: int) -> None:
    """They are enough to choose by. People are told of who has answered more often."""
    backends = measured("a", 50e-6, samples=KEPT), measured("b", 500e-6, samples=samples)
    assert compare(backends, 0.1, 1.0).apart
    told = {each.name: pace.slower for each, pace in slower(backends, 1.0)}
    assert (told.get("b", 1.0) > 3.0) is (samples == KEPT)


def test_open_streams_accuse_a_backend_whose_answers_go_on() -> None:
    backends = decoding("a", 0.02, 40), decoding("b", 0.02, KEPT - 2)
    streaming = RecentPace()
    for _ in range(ENOUGH):
        streaming.observe(10.0)
    assert {pace.slower for _, pace in slower(backends, 1.0)} == {1.0}
    told = {each.name: pace for each, pace in slower(backends, 1.0, {backends[1]: streaming})}
    assert told["b"].decode > 3.0
    assert told["b"].slower_in == "decode"


def test_one_that_was_seen_to_be_slow_stays_so_with_the_few_answers_that_it_gets_then() -> None:
    backends = measured("a", 50e-6), measured("b", 500e-6)
    backends[1].prefill_speed.recent.forget()
    for _ in range(2):
        backends[1].prefill_speed.recent.observe(20.0)
    told = {each.name: pace.slower for each, pace in slower(backends, 1.0)}
    assert told["b"] > 3.0


def test_in_a_large_pool_each_is_compared_with_some_others() -> None:
    fleet = [measured(f"b{number}", 50e-6, samples=40) for number in range(2 * PEERS_MAX + 1)]
    told = list(slower(fleet, 1.0))
    assert sorted(each.name for each, _ in told) == sorted(each.name for each in fleet)
    assert {pace for _, pace in told} == {ALIKE}
