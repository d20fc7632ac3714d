"""What pools cost: time alone makes it grow, and reloads change only what comes."""

import pytest

from penstock.proxy.telemetry.metrics import SAMPLE_S, WINDOW_S, Costs


class Fleet:
    """One pool with its tokens, in time that the test sets."""

    def __init__(self, per_hour: float | None = 36.0) -> None:
        self.costs = Costs()
        self.tokens = 0
        self.now_s = 100.0
        self.follow(per_hour)

    def follow(self, per_hour: float | None) -> None:
        rates = {} if per_hour is None else {"chat": per_hour}
        self.costs.follow(rates, self.so_far, self.now_s)

    def so_far(self, pool: str) -> int:
        return self.tokens

    def run(self, seconds: float, tokens_per_s: int = 0) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.tokens += tokens_per_s
            self.costs.observe(self.so_far, self.now_s)

    @property
    def total(self) -> float:
        return self.costs.total("chat", self.now_s)

    @property
    def price(self) -> float | None:
        return self.costs.per_1k_tokens("chat", self.tokens, self.now_s)


def test_idle_backends_cost_too_and_have_no_price() -> None:
    fleet = Fleet()
    fleet.run(100)
    assert fleet.total == pytest.approx(1.0)
    assert fleet.price is None


def test_the_price_is_that_of_the_last_ten_minutes() -> None:
    fleet = Fleet()
    fleet.run(60, tokens_per_s=100)
    assert fleet.price == pytest.approx(0.1)  # 0.01 a second for 100 tokens
    fleet.run(WINDOW_S, tokens_per_s=1_000)
    assert fleet.price == pytest.approx(0.01, rel=0.2)
    fleet.run(SAMPLE_S, tokens_per_s=1_000)
    assert fleet.price == pytest.approx(0.01, rel=1e-6)
    fleet.run(WINDOW_S + SAMPLE_S)
    assert fleet.price is None
    assert fleet.total == pytest.approx(0.01 * (60 + 2 * WINDOW_S + 2 * SAMPLE_S))


def test_a_reload_counts_from_then_on() -> None:
    fleet = Fleet()
    fleet.run(100)
    fleet.follow(72.0)
    assert fleet.total == pytest.approx(1.0)
    fleet.run(100)
    assert fleet.total == pytest.approx(3.0)
    fleet.follow(None)
    fleet.run(100, tokens_per_s=10)
    assert fleet.total == pytest.approx(3.0)
    assert fleet.price is None
    fleet.follow(36.0)
    fleet.run(100, tokens_per_s=10)
    assert fleet.price == pytest.approx(1.0)  # nothing from before it was known again


def test_tokens_from_before_a_price_was_known_do_not_count() -> None:
    fleet = Fleet(None)
    fleet.run(100, tokens_per_s=1_000)
    assert fleet.costs.pools == []
    fleet.follow(36.0)
    fleet.run(100, tokens_per_s=10)
    assert fleet.price == pytest.approx(1.0)


def test_a_pool_that_is_gone_is_forgotten() -> None:
    fleet = Fleet()
    fleet.costs.forget("chat")
    assert fleet.costs.pools == []


def test_what_is_remembered_is_bounded() -> None:
    fleet = Fleet()
    fleet.run(4 * WINDOW_S, tokens_per_s=1)
    (pool,) = fleet.costs._pools.values()
    assert len(pool.samples) <= WINDOW_S / SAMPLE_S + 2
