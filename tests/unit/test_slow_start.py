"""Slow start: the share grows, is earned and is never exceeded."""

from random import Random

from balancing.ask import Ask
from balancing.backend import AdminState, Backend, State
from balancing.fleet import Fleet, Pool
from balancing.gate import Gate
from balancing.lease import Lease
from balancing.policies import POLICIES
from balancing.slow_start import SlowStart


def fleet(count: int = 4) -> tuple[Gate, list[Backend]]:
    backends = [Backend(f"b{i}", f"http://b{i}") for i in range(count)]
    for backend in backends:
        backend.state = State.READY
    pool = Pool("default", tuple(backends), POLICIES["least_tokens"](backends))
    return Gate(lambda: Fleet((pool,)), Random(1)), backends


def warm(backend: Backend, backends: list[Backend], now_s: float, warm_s: float = 30.0) -> None:
    backend.state = State.WARMING
    backend.slow_start = SlowStart(
        now_s,
        warm_s,
        own_tokens=backend.taken_tokens,
        pool_tokens=sum(each.taken_tokens for each in backends),
    )


def serve(gate: Gate, now_s: float, tokens: int = 100) -> Backend:
    """One request that ends before the next begins, so that only the ramp decides."""
    lease: Lease = gate.choose(Ask("/v1/completions", prompt_tokens=tokens), now_s)
    lease.end(now_s)
    return lease.backend


def test_the_share_grows_from_a_tenth_to_all() -> None:
    slow = SlowStart(10.0, 30.0, own_tokens=0, pool_tokens=0)
    assert slow.share(10.0) == 0.1
    assert abs(slow.share(25.0) - 0.55) < 1e-9
    assert slow.share(40.0) == slow.share(99.0) == 1.0
    assert not slow.over(39.9)
    assert slow.over(40.0)
    assert SlowStart(0.0, 0.0, own_tokens=0, pool_tokens=0).over(0.0)


def test_it_takes_its_share_of_the_tokens_and_no_more() -> None:
    gate, backends = fleet()
    warm(backends[0], backends, 0.0)
    for tenth in range(10):
        now_s = tenth * 3.0
        before = backends[0].taken_tokens, sum(each.taken_tokens for each in backends)
        for _ in range(2_000):
            serve(gate, now_s)
        own = backends[0].taken_tokens - before[0]
        all_of_them = sum(each.taken_tokens for each in backends) - before[1]
        fair = (0.1 + 0.9 * tenth / 10) / 4
        assert fair - 0.02 < own / all_of_them <= fair + 0.001


def test_an_idle_time_is_not_saved_up() -> None:
    gate, backends = fleet()
    warm(backends[0], backends, 0.0)
    for _ in range(100):
        serve(gate, 0.0)
    # Nothing came for 25 s; now the share is high, but what was missed is not made up.
    first = [serve(gate, 25.0) for _ in range(8)]
    assert first.count(backends[0]) <= 2


def test_one_large_request_does_not_jump_the_ramp() -> None:
    gate, backends = fleet()
    warm(backends[0], backends, 0.0)
    assert all(serve(gate, 0.0, 50_000) is not backends[0] for _ in range(30))


def test_alone_it_serves_all_the_same() -> None:
    gate, backends = fleet(2)
    warm(backends[0], backends, 0.0)
    backends[1].state = State.EJECTED
    assert serve(gate, 0.0) is backends[0]
    backends[1].state = State.READY
    warm(backends[1], backends, 0.0)  # both: nobody is left out
    assert {serve(gate, 0.0) for _ in range(50)} == set(backends)


def test_weight_is_part_of_the_share() -> None:
    gate, backends = fleet(2)
    backends[0].weight = 3.0
    warm(backends[0], backends, 0.0, warm_s=1e9)
    for _ in range(4_000):
        serve(gate, 0.0)
    share = backends[0].taken_tokens / sum(each.taken_tokens for each in backends)
    assert 0.065 < share <= 0.0751


def test_suspicion_serves_where_nobody_else_can() -> None:
    gate, backends = fleet(2)
    for backend in backends:
        backend.state = State.EJECTED
    backends[1].doubted = True
    assert serve(gate, 0.0) is backends[1]
    backends[0].state = State.READY
    assert serve(gate, 0.0) is backends[0]
    backends[0].admin_state = AdminState.DRAIN
    assert serve(gate, 0.0) is backends[1]
