"""How fast backends are beside each other."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from balancing.ask import Ask
from balancing.backend import STALE_S, Backend, State
from balancing.lease import Lease
from balancing.policies.token_cost import COMPARE, TokenCost
from balancing.slowness import SAMPLES_MIN, compare

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
    return backend


def found(*backends: Backend) -> list[float]:
    known = [each for each in backends if each.prefill_speed.samples]
    mean_s = sum(each.prefill_speed.work_s for each in known) / len(known)
    return speeds(backends, ORDINARY * mean_s, 1.0)


def speeds(backends: Sequence[Backend], ordinary_s: float, now_s: float) -> list[float]:
    told = compare(backends, ordinary_s, now_s)
    return [told.apart.get(backend, told.mean_s) for backend in backends]


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


def test_one_that_nothing_is_known_of_is_as_fast_as_the_mean() -> None:
    fresh = measured("c", 1.0, samples=SAMPLES_MIN - 1)
    fast, slow, unknown = found(measured("a", 50e-6), measured("b", 100e-6), fresh)
    assert fast < unknown < slow


def taken(fleet: Sequence[Backend]) -> Counter[str]:
    policy, rng = TokenCost(), Random(1)
    ask = Ask("/", prompt_tokens=1_000, stream=True)
    for _ in range(COMPARE):
        policy.choose(fleet, ask, 0.0, rng)
    return Counter(policy.choose(fleet, ask, 0.0, rng).name for _ in range(200))


def test_idle_engines_of_nearly_the_same_speed_share_the_work() -> None:
    counts = taken([measured("a", 50e-6), measured("b", 53e-6), measured("c", 200e-6)])
    assert set(counts) == {"a", "b"}
    assert min(counts.values()) > 70


@pytest.mark.parametrize("samples", [0, SAMPLES_MIN - 1])
def test_a_fast_one_does_not_keep_work_from_one_that_was_hardly_tried(samples: int) -> None:
    fresh = measured("b", 1.0, samples=samples)
    counts = taken([measured("a", 10e-6, 0.002), fresh])
    assert min(counts["a"], counts["b"]) > 70


def test_one_that_was_away_is_not_judged_alone_by_what_little_it_showed() -> None:
    policy, rng = TokenCost(), Random(1)
    fast, back = measured("a", 1e-6, 0.002), measured("b", 100e-6, samples=SAMPLES_MIN - 1)
    ask = Ask("/", prompt_tokens=1_000, stream=True)
    for _ in range(COMPARE + 1):
        policy.choose([fast], ask, 0.0, rng)
    one, other = policy.costs([fast, back], ask, 0.0)
    assert one.seconds == other.seconds


def test_what_was_measured_long_ago_is_tried_again() -> None:
    """A backend that was slow, and so got nothing: one sample tells that it still is."""
    fast, slow = measured("a", 50e-6), measured("b", 500e-6)
    later_s = STALE_S + 1.0
    assert len(set(speeds([fast, slow], 0.1, 1.0))) == 2
    fast = measured("a", 50e-6)
    fast.refresh(STALE_S)
    assert len(set(speeds([fast, slow], 0.1, later_s))) == 1
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
