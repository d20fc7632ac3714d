"""What the bound of `session` costs in cache hits, against stickiness without one."""

from functools import cache

import pytest

from penstock.balancing.lease import Reason
from penstock.balancing.policies import POLICIES
from tests.sim.conversations import TURNS, Outcome, Sticky, converse


@cache
def busy(policy: str) -> Outcome:
    """The conversations of a busy fleet, which two tests look at."""
    make = POLICIES["session"] if policy == "session" else Sticky
    return converse(make, live=512, conversations=2_048, seed=1)


@pytest.mark.parametrize("live", [32, 128])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_hit_rate_is_near_that_of_perfect_stickiness(live: int, seed: int) -> None:
    """From an almost idle fleet on."""
    sticky = converse(Sticky, live=live, conversations=4 * live, seed=seed)
    session = converse(POLICIES["session"], live=live, conversations=4 * live, seed=seed)
    assert_near(session, sticky, 4 * live)


def test_the_hit_rate_is_near_it_where_caches_cannot_hold_all_conversations() -> None:
    assert_near(busy("session"), busy("sticky"), 2_048)


def assert_near(session: Outcome, sticky: Outcome, conversations: int) -> None:
    print(f"hits {session.hit_rate / sticky.hit_rate:.3f} x perfect stickiness's")
    assert sum(session.reasons.values()) == conversations * TURNS
    assert session.hit_rate >= 0.95 * sticky.hit_rate
    assert 0 < session.reasons[Reason.SPILL] < 0.1 * sum(session.reasons.values())


def test_the_load_of_the_fullest_is_lower_for_it() -> None:
    """In a busy fleet, where the slack is small beside the mean: that is what the bound is for."""
    percentile_99 = [
        sorted(each.ratios)[len(each.ratios) * 99 // 100]
        for each in (busy("session"), busy("sticky"))
    ]
    assert percentile_99[0] < 1.75 < 2.0 < percentile_99[1]


def test_least_tokens_scatters_them() -> None:
    """The comparison that makes affinity worth having: under half of the hits."""
    scattered = converse(POLICIES["least_tokens"], live=128, conversations=512, seed=1)
    session = converse(POLICIES["session"], live=128, conversations=512, seed=1)
    assert scattered.hit_rate < 0.5 * session.hit_rate
