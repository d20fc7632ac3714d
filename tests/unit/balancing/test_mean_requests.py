"""The mean number of requests at the backends of a pool."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.pool_costs import MEAN_TAU_S, MeanRequests


def test_a_moment_without_requests_does_not_count_as_none() -> None:
    backends = [Backend("a", "http://a", "p"), Backend("b", "http://b", "p")]
    mean = MeanRequests()
    leases = [Lease(backends[0], Ask("/v1/completions"), 0.0) for _ in range(4)]
    assert mean.look(backends, 1_000.0) == pytest.approx(2.0)
    for lease in leases:
        lease.end(1_000.0)
    assert mean.look(backends, 1_003.0) == pytest.approx(1.81, abs=0.01)
    assert mean.look(backends, 1_003.0 + 10 * MEAN_TAU_S) < 0.01


def test_what_is_there_now_counts_at_once() -> None:
    backends = [Backend("a", "http://a", "p")]
    mean = MeanRequests()
    mean.look(backends, 1_000.0)
    leases = [Lease(backends[0], Ask("/v1/completions"), 0.0) for _ in range(4)]
    assert mean.look(backends, 1_000.1) == 4.0
    for lease in leases:
        lease.end(1_001.0)
