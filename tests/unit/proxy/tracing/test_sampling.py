"""Which requests are traced: the share, the client's decision, and what no client can take."""

from random import Random

import pytest

from penstock.conf.tracing import TracingSettings
from penstock.proxy.tracing.trace import CLIENTS_MAX, CREDIT_MAX, WINDOW_S, Sampler

DRAWS = 20_000


def sampler(**settings: float) -> Sampler:
    return Sampler(TracingSettings.model_validate(settings))


def forced(to: Sampler, client: str, at_s: float) -> bool:
    """One request whose client has set the flag."""
    to.seen(client)
    return to.forced(client, at_s)


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.25, 1.0])
def test_the_share_of_traces_that_begin_here(ratio: float) -> None:
    rng, one = Random(1), sampler(ratio=ratio)
    count = sum(one.begins(rng.getrandbits(128)) for _ in range(DRAWS))
    assert count == pytest.approx(ratio * DRAWS, abs=4 * (DRAWS * ratio * (1 - ratio)) ** 0.5)


def test_replicas_decide_alike_and_by_the_lowest_bits() -> None:
    one, other = sampler(ratio=0.1), sampler(ratio=0.1)
    more = sampler(ratio=0.5)
    rng = Random(2)
    for _ in range(1_000):
        trace_id = rng.getrandbits(128)
        assert one.begins(trace_id) == other.begins(trace_id)
        assert one.begins(trace_id) == one.begins(trace_id % (1 << 56))
        assert more.begins(trace_id) or not one.begins(trace_id)
    # OpenTelemetry: sampled from the threshold on, which is (1 - ratio) x 2^56.
    assert more.begins(1 << 55)
    assert not more.begins((1 << 55) - 1)


def test_a_client_that_asks_always_gets_its_share_of_its_requests() -> None:
    one = sampler(forced_ratio=0.1, forced_per_minute=600_000)
    got = sum(forced(one, "app", 0.01 * number) for number in range(1_000))
    assert 95 <= got <= 105


def test_a_client_that_asks_rarely_gets_what_it_asks_for() -> None:
    one = sampler(forced_ratio=0.1)
    assert forced(one, "developer", 0.0)
    for number in range(50):
        one.seen("developer")
        if number % 25 == 24:
            assert one.forced("developer", float(number))


def test_what_is_saved_up_is_bounded() -> None:
    one = sampler(forced_ratio=0.5, forced_per_minute=600_000)
    for _ in range(1_000):
        one.seen("app")
    got = sum(one.forced("app", 1.0) for _ in range(1_000))
    assert got <= CREDIT_MAX + 1


def test_with_a_share_of_zero_nobody_can_ask() -> None:
    one = sampler(forced_ratio=0, forced_per_minute=600_000)
    assert not any(forced(one, "app", 0.0) for _ in range(100))


def test_with_a_share_of_one_only_the_rate_counts() -> None:
    one = sampler(forced_ratio=1, forced_per_minute=400)
    assert sum(forced(one, "app", 0.0) for _ in range(1_000)) == 20
    assert not forced(one, "app", WINDOW_S - 0.1)
    assert sum(forced(one, "app", WINDOW_S) for _ in range(1_000)) == 20


def test_a_victim_is_traced_beside_an_attacker() -> None:
    """The attacker comes first in each window, and has all of its requests flagged."""
    one = sampler(forced_ratio=1, forced_per_minute=100)
    attacks, asked, got = 0, 0, 0
    for window in range(20):
        attacks += sum(forced(one, "attacker", WINDOW_S * window) for _ in range(500))
        for _ in range(2):
            asked += 1
            got += forced(one, "victim", WINDOW_S * window + 0.5)
    assert (asked, got) == (40, 40)
    assert attacks == 100


def test_many_attackers_leave_something_and_the_sum_holds() -> None:
    one = sampler(forced_ratio=1, forced_per_minute=640)
    attackers = [f"attacker-{number}" for number in range(8)]
    for window in range(10):
        at_s = WINDOW_S * window
        taken = sum(forced(one, each, at_s) for _ in range(100) for each in attackers)
        assert taken <= 60
        assert forced(one, "victim", at_s + 0.9)


def test_addresses_that_come_and_go_cannot_go_beyond_the_rate() -> None:
    one = sampler(forced_ratio=0.01, forced_per_minute=100)
    for window in range(5):
        at_s = WINDOW_S * window
        got = sum(forced(one, f"{window}-{n}", at_s) for n in range(2 * CLIENTS_MAX))
        assert got <= 10
    assert len(one._credits) <= CLIENTS_MAX
