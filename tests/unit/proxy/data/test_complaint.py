"""What ends that are nobody's fault teach, and what the proxy slept through does not."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.policies import POLICIES
from penstock.balancing.speed.compare import compare
from penstock.proxy.data.complaint import complain
from penstock.proxy.errors.backend import (
    BackendError,
    ClientOutOfTime,
    OutOfTime,
    StreamOutOfClientTime,
)


def stream(backend: Backend, began_s: float, client: str) -> Lease:
    ask = Ask("/v1/chat/completions", prompt_tokens=100, stream=True, client=client)
    return Lease(backend, ask, began_s)


def whole(lease: Lease, slept_s: float = 0.0) -> None:
    """200 tokens of 20 ms each; the proxy may stop meanwhile."""
    if slept_s:
        lease.held_up = True
    lease.first_token(lease.began_s + 0.03 + slept_s)
    lease.tokens(199)
    lease.complete(lease.began_s + 0.03 + slept_s + 199 * 0.02 + slept_s, 199)


def unheard(backend: Backend, error: BackendError, cause: Cause) -> None:
    """Nobody watches."""


def two() -> list[Backend]:
    """Equal ones, and known."""
    backends = [Backend(name, "http://x") for name in ("a", "b")]
    for backend in backends:
        backend.state = State.READY
        for turn in range(8):
            whole(stream(backend, 60.0 + 5 * turn, f"c{turn}"))
    return backends


@pytest.mark.parametrize("slept_s", [1.5, 20.0])
def test_a_pause_of_the_process_does_not_make_a_backend_slow(slept_s: float) -> None:
    backends = two()
    latency_s = backends[0].latency.read(110.0)
    for turn in range(6):
        whole(stream(backends[0], 105.0, f"d{turn}"), slept_s)
    assert compare(backends, 0.05, 110.0 + slept_s).apart == {}
    assert backends[0].latency.read(110.0) == pytest.approx(latency_s)


@pytest.mark.parametrize("error", [ClientOutOfTime(), OutOfTime(), StreamOutOfClientTime()])
def test_clients_whose_time_is_over_show_that_a_backend_is_slow(error: BackendError) -> None:
    """Those that are still there as well as those that have left; and it is no failure."""
    slow, peer = two()
    pool = Pool("default", (slow, peer), POLICIES["token_cost"]((slow, peer)))
    gate = Gate(lambda: Fleet((pool,)), Random(2))
    for turn in range(8):
        lease = stream(slow, 100.0, f"d{turn}")
        if isinstance(error, StreamOutOfClientTime):
            lease.first_token(100.03)
            lease.tokens(20)
        complain(gate, lease, error, 105.0, unheard)
    assert set(compare([slow, peer], 0.05, 105.0).apart) == {slow}
    assert slow.failures_total == 0
