"""Compliance, budgets, burn rates and states, against figures computed by hand."""

from typing import Any

import pytest

from penstock.balancing.slo.objective import (
    PAIRS,
    SPANS_S,
    State,
    burn_rate,
    next_state,
    pairs_within,
    rate_of,
)
from penstock.balancing.slo.sample import Outcome
from penstock.balancing.slo.slo import Slo, because
from tests.unit.balancing.slo.levels import ended, of, served, slo

DAY_S = 86_400.0
ALL: dict[str, Any] = {
    "ttft_s": {"p50": 0.2, "p90": 0.3, "p95": 0.5, "p99": 1},
    "itl_s": {"p50": 0.02, "p90": 0.03, "p95": 0.05, "p99": 0.1},
    "e2e_s": {"p50": 2, "p90": 3, "p95": 5, "p99": 10},
    "availability": 0.999,
    "error_rate": 0.001,
    "goodput": 0.95,
}


def feed(told: Slo, at_s: float, good: int, bad: int) -> None:
    """Requests that were served, and others that failed at once."""
    for _ in range(good):
        told.add(served(), at_s)
    for _ in range(bad):
        told.add(ended(Outcome.FAILED), at_s)


def told_of(slo: Slo, name: str, now_s: float) -> str:
    slo.evaluate(now_s)
    return because(of(slo, name), slo.latencies.get(name.partition("_")[0]), now_s)


def test_what_a_missed_level_follows_from_is_told() -> None:
    late = slo(ttft_s={"p95": 0.5})
    for _ in range(20):
        late.add(served(ttft_s=3.0), 100.0)
    assert told_of(late, "ttft_p95", 200.0) == (
        "95% of first tokens took up to 3.08 s in the last hour, 0.5 s is asked for"
    )
    burns = slo(availability=0.99)
    feed(burns, 4_000.0, 50, 50)
    assert told_of(burns, "availability", 4_100.0) == (
        "50 of 100 requests of the last 1h were bad, and use up its error budget 50 times too fast"
    )
    spent = slo(availability=0.99, window_s=DAY_S)
    feed(spent, 100.0, 50, 50)
    feed(spent, 80_000.0, 900, 0)
    assert told_of(spent, "availability", 80_100.0) == (
        "50 of 1,000 requests of the last 24 h were bad, which uses up 464% of its error budget"
    )
    kept = slo(availability=0.99)
    feed(kept, 100.0, 50, 0)
    assert told_of(kept, "availability", 200.0) == ""


def test_a_table_computed_by_hand() -> None:
    """availability 0.99: 1 of 100 may be bad. The window is a day; requests at six times."""
    told = slo(availability=0.99, window_s=DAY_S)
    #    at s, good, bad
    for row in (
        (0.0, 900, 0),  # 9 h before: in no window but the day's
        (10_000.0, 80, 20),  # 6 h and 13 min before
        (20_000.0, 90, 10),  # 3 h and 27 min before
        (31_000.0, 95, 5),  # 23 min before
        (32_300.0, 60, 40),  # 100 s before
    ):
        feed(told, *row)
    told.evaluate(32_400.0)
    objective = of(told, "availability")
    #           good, bad: 60/40; 155/45; 155/45; 245/55
    assert objective.compliances == {"5m": 0.6, "30m": 0.775, "1h": 0.775, "6h": 245 / 300}
    assert {name: round(rate, 6) for name, rate in objective.burn_rates.items()} == {
        "5m": 40.0,  # 40/100 over 1/100
        "30m": 22.5,  # 45/200
        "1h": 22.5,
        "6h": 18.333333,  # 55/300
    }
    assert objective.budget_counts == (1_225, 75)
    assert objective.compliance == 1_225 / 1_300
    # 9 of 24 hours: the day would have 1,300 x 24/9 = 3,466.7 requests, and 34.67 of them may be
    # bad. 75 are: 2.163 budgets.
    assert objective.budget_spent(32_400.0) == pytest.approx(75 / (1_300 * 24 / 9 * 0.01))
    assert objective.state is State.CRITICAL
    assert (objective.windows.good, objective.windows.bad) == (1_225, 75)


def test_error_budgets_of_a_whole_window() -> None:
    """A day over, its budget goes by the requests that it had."""
    told = slo(availability=0.99, window_s=DAY_S)
    for hour in range(24):
        feed(told, hour * 3_600.0, 99, 1 if hour % 2 else 0)
    told.evaluate(DAY_S - 1)
    objective = of(told, "availability")
    assert objective.budget_spent(DAY_S) == pytest.approx(12 / (2_388 * 0.01))  # half of it
    assert objective.state is State.OK


@pytest.mark.parametrize(
    ("good", "bad", "state"),
    [
        (0, 0, State.OK),
        (0, 1, State.OK),
        (1, 0, State.OK),
        (0, 9, State.OK),
        (5, 5, State.OK),
        (1, 9, State.OK),
        (0, 10, State.CRITICAL),
        (990, 10, State.OK),  # a burn rate of 10, but for ten minutes of six hours
    ],
)
def test_few_requests_do_not_alarm(good: int, bad: int, state: State) -> None:
    told = slo(availability=0.999)
    feed(told, 590.0, good, bad)
    told.evaluate(600.0)
    assert of(told, "availability").state is state
    slow = slo(ttft_s={"p95": 0.5})
    for number in range(good + bad):
        slow.add(served(ttft_s=0.1 if number < good else 0.9), 590.0)
    slow.evaluate(600.0)
    assert of(slow, "ttft_p95").state is state


@pytest.mark.parametrize("target_s", [0.05, 0.1, 0.3, 0.7, 1.1, 2.3, 60.0])
def test_a_warning_begins_at_80_percent_of_a_target(target_s: float) -> None:
    for part, state in (
        (0.8, State.OK),
        (0.81, State.WARNING),
        (1.0, State.WARNING),
        (1.01, State.CRITICAL),
    ):
        told = slo(ttft_s={"p95": target_s})
        for number in range(400):  # a few are slow anyway
            told.add(served(ttft_s=(part if number % 33 else 1.1) * target_s), 10.0)
        told.evaluate(20.0)
        assert of(told, "ttft_p95").state is state, part


def test_few_bad_requests_of_few_spend_no_budget() -> None:
    """Nine of twenty in the whole time, where two may be."""
    told = slo(availability=0.9, window_s=3_600.0)
    feed(told, 10.0, 11, 9)
    told.evaluate(3_500.0)
    objective = of(told, "availability")
    assert objective.budget_spent(3_600.0) == pytest.approx(4.5)
    assert objective.state.word == "ok"
    feed(told, 3_500.0, 0, 1)
    told.evaluate(3_510.0)
    assert objective.state.word == "critical"


def test_who_left_without_a_token_waited_at_least_so_long() -> None:
    told = slo(ttft_s={"p50": 0.5, "p95": 2.0})
    for _ in range(10):
        told.add(served(ttft_s=0.1), 10.0)
    for _ in range(10):
        told.add(ended(Outcome.LEFT, 9.0), 10.0)
        told.add(ended(Outcome.LEFT, 1.0), 10.0)  # too late for the one, unknown for the other
    told.evaluate(20.0)
    assert (of(told, "ttft_p50").windows.bad, of(told, "ttft_p95").windows.bad) == (20, 10)
    assert of(told, "ttft_p95").state is State.CRITICAL
    measured_s = told.latencies["ttft"].percentile_s(0.95)
    assert measured_s is not None
    assert 9.0 <= measured_s <= 9.0 * 1.25


def test_without_requests_there_are_no_figures() -> None:
    told = slo(**ALL)
    told.evaluate(3 * DAY_S)
    for objective in told.objectives:
        assert objective.compliance is None
        assert set(objective.compliances.values()) == {None}
        assert set(objective.burn_rates.values()) == {0.0}
        assert objective.budget_spent(3 * DAY_S) == 0.0
        assert objective.state is State.OK


@pytest.mark.parametrize(
    ("share", "rates"),
    [
        (0.999, [14.4, 6.0, 1.0]),
        (0.95, [14.4, 6.0, 1.0]),
        (0.9, [9.0, 6.0, 1.0]),  # a burn rate is at most 10 there
        (0.5, [1.8, 1.8, 1.0]),
    ],
)
def test_every_alert_can_fire(share: float, rates: list[float]) -> None:
    told = [rate_of(pair, share, 30 * DAY_S) for pair in PAIRS]
    assert told == pytest.approx(rates)
    assert max(rates) <= 1.0 / (1.0 - share)


@pytest.mark.parametrize(
    ("window_s", "rates", "spent"),
    [
        (3_600.0, [1.0], [1.0]),
        (6 * 3_600.0, [4.0, 1.0], [2 / 3, 1.0]),
        (DAY_S, [4.0, 4.0], [1 / 6, 1.0]),
        (7 * DAY_S, [4.0, 4.0, 1.0], [1 / 42, 1 / 7, 3 / 7]),
        (15 * DAY_S, [7.2, 4.0, 1.0], [0.02, 1 / 15, 0.2]),
        (30 * DAY_S, [14.4, 6.0, 1.0], [0.02, 0.05, 0.1]),
        (90 * DAY_S, [14.4, 6.0, 1.0], [0.02 / 3, 0.05 / 3, 0.1 / 3]),
    ],
)
def test_an_alert_comes_before_the_budget_is_gone(
    window_s: float, rates: list[float], spent: list[float]
) -> None:
    """`spent`: how much of it the long window burns at that rate."""
    pairs = pairs_within(window_s)
    told = [rate_of(pair, 0.999, window_s) for pair in pairs]
    assert told == pytest.approx(rates)
    burnt = [rate * SPANS_S[pair.long] / window_s for rate, pair in zip(told, pairs, strict=True)]
    assert burnt == pytest.approx(spent)


def test_a_burn_rate_counts_budgets() -> None:
    told = slo(error_rate=0.001)
    feed(told, 10.0, 986, 14)
    told.evaluate(20.0)
    (ring, *_) = of(told, "error_rate").windows.rings
    assert burn_rate(ring, 0.999) == pytest.approx(14.0)


@pytest.mark.parametrize("window_s", [3_600.0, 6 * 3_600.0, 3 * DAY_S, 90 * DAY_S])
def test_windows_longer_than_the_budget_are_left_out(window_s: float) -> None:
    told = of(slo(availability=0.99, window_s=window_s), "availability")
    lengths = {"5m": 300, "30m": 1_800, "1h": 3_600, "6h": 21_600, "3d": 259_200}
    assert list(told.burn_rates) == [name for name, s in lengths.items() if s <= window_s]


def test_states_do_not_flap() -> None:
    states = []
    state = State.OK
    for used in (0.5, 0.8, 0.81, 0.75, 0.71, 0.7, 0.75, 0.81, 1.0, 1.01, 0.95, 0.91, 0.9, 0.5):
        state = next_state(state, used)
        states.append(state.word)
    assert " ".join(states) == (
        "ok ok warning warning warning ok ok warning warning critical critical critical warning ok"
    )


def test_what_stays_keeps_its_counts() -> None:
    before = slo(ttft_s={"p95": 0.5, "p99": 1.0}, availability=0.99, error_rate=0.01)
    feed(before, 10.0, 5, 1)
    after = slo(100.0, before, ttft_s={"p95": 0.6, "p99": 1.0}, availability=0.999, goodput=0.9)
    counts = {each.goal.name: (each.windows.good, each.windows.bad) for each in after.objectives}
    assert counts == {
        "ttft_p95": (0, 0),  # another time: what was good may be bad now
        "ttft_p99": (5, 0),
        "availability": (5, 1),  # another share: the same requests are good
        "goodput": (0, 0),
    }
    assert of(after, "availability").goal.share == 0.999
    assert of(after, "availability").since_s == 0.0
    assert of(after, "goodput").since_s == 100.0
    again = slo(100.0, before, ttft_s={"p95": 0.5, "p99": 1.0})
    assert again.latencies["ttft"].percentile_s(0.5) == before.latencies["ttft"].percentile_s(0.5)
    assert after.latencies["ttft"].percentile_s(0.5) is None  # other buckets
    other = slo(100.0, after, availability=0.999, window_s=DAY_S)
    assert of(other, "availability").windows.good == 0
