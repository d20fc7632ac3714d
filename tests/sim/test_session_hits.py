"""What the bound of `session` costs in cache hits, against stickiness without one."""

import pytest

from balancing.lease import Reason
from balancing.policies import POLICIES
from tests.sim.conversations import TURNS, Sticky, converse


@pytest.mark.parametrize("live", [32, 128, 512])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_hit_rate_is_near_that_of_perfect_stickiness(live: int, seed: int) -> None:
    """From an almost idle fleet to one whose caches cannot hold all conversations."""
    sticky = converse(Sticky, live=live, conversations=4 * live, seed=seed)
    session = converse(POLICIES["session"], live=live, conversations=4 * live, seed=seed)
    print(f"{live} live: hits {session.hit_rate / sticky.hit_rate:.3f} x perfect stickiness's")
    assert sum(session.reasons.values()) == 4 * live * TURNS
    assert session.hit_rate >= 0.95 * sticky.hit_rate
    assert 0 < session.reasons[Reason.SPILL] < 0.1 * sum(session.reasons.values())


def test_the_load_of_the_fullest_is_lower_for_it() -> None:
    """In a busy fleet, where the slack is small beside the mean: that is what the bound is for."""
    sticky = converse(Sticky, live=512, conversations=2_048, seed=1)
    session = converse(POLICIES["session"], live=512, conversations=2_048, seed=1)
    percentile_99 = [
        sorted(each.ratios)[len(each.ratios) * 99 // 100] for each in (session, sticky)
    ]
    assert percentile_99[0] < 1.75 < 2.0 < percentile_99[1]


def test_least_tokens_scatters_them() -> None:
    """The comparison that makes affinity worth having: under half of the hits."""
    scattered = converse(POLICIES["least_tokens"], live=128, conversations=512, seed=1)
    session = converse(POLICIES["session"], live=128, conversations=512, seed=1)
    assert scattered.hit_rate < 0.5 * session.hit_rate
