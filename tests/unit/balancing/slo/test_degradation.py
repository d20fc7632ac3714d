"""What an operator sees while service gets worse: warnings first, and no flapping."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.balancing.slo.sample import Outcome, Sample
from penstock.balancing.slo.slo import Slo
from tests.unit.balancing.slo.levels import ended, of, served, slo

DAY_MIN = 1_440


def transcript(told: Slo, name: str, minutes: int, sample: Callable[[int, int], Sample]) -> str:
    """Ten requests a minute. The minutes at which the state changed, and to what."""
    changes = []
    state = of(told, name).state
    for minute in range(minutes):
        for number in range(10):
            told.add(sample(minute, number), 60.0 * minute + 6.0 * number)
        told.evaluate(60.0 * minute + 59.0)
        if of(told, name).state is not state:
            state = of(told, name).state
            changes.append(f"{minute} {state.word}")
    return ", ".join(changes)


TTFT: dict[str, Any] = {"ttft_s": {"p95": 0.5}}


@pytest.mark.parametrize(
    ("objectives", "minutes", "ttft_s", "changes"),
    [
        # From 0.3 s, 2 ms more each minute: past 80 % of 0.5 s at minute 50, past it at 100.
        (TTFT, 200, lambda minute, _: 0.3 + 0.002 * minute, "53 warning, 103 critical"),
        # From minute 60 to 90 one of five is slow. It is over when the last minutes are fast again,
        # though the p95 of the hour stays high longer.
        (
            TTFT | {"window_s": 7 * 86_400.0},
            240,
            lambda minute, number: 0.9 if 60 <= minute < 90 and number % 5 == 0 else 0.2,
            "75 critical, 95 ok",
        ),
        # One slow minute is no alarm.
        (TTFT, 300, lambda minute, number: 5.0 if minute == 100 and number < 9 else 0.2, ""),
    ],
    ids=["later by the minute", "slow for a while", "one slow minute"],
)
def test_first_tokens_that_come_late(
    objectives: dict[str, Any], minutes: int, ttft_s: Callable[[int, int], float], changes: str
) -> None:
    def sample(minute: int, number: int) -> Sample:
        return served(ttft_s=ttft_s(minute, number))

    assert transcript(slo(**objectives), "ttft_p95", minutes, sample) == changes


def test_a_total_outage_is_critical_at_once_and_a_warning_for_six_hours_more() -> None:
    """It is over when half an hour was good. A tenth of the budget in three days warns longer."""

    def outage(minute: int, number: int) -> Sample:
        return ended(Outcome.FAILED) if 2_000 <= minute < 2_010 else served()

    told = slo(availability=0.999)
    assert transcript(told, "availability", 2_400, outage) == (
        "2000 critical, 2039 warning, 2364 ok"
    )


def test_the_budget_of_a_day_is_spent_slowly() -> None:
    """From the second day on one of 60 fails where one of 100 may: all is spent after 864 minutes.

    Windows have slots of 24 minutes, so it is told up to so much earlier. 80 %: 691 minutes.
    """

    def failing(minute: int, number: int) -> Sample:
        count = 10 * minute + number
        return ended(Outcome.FAILED) if minute >= DAY_MIN and count % 60 == 0 else served()

    told = slo(availability=0.99, window_s=86_400.0)
    changes = transcript(told, "availability", 3 * DAY_MIN, failing)
    assert changes == "2118 warning, 2292 critical"
    assert 691 - 24 <= 2_118 - DAY_MIN <= 691
    assert 864 - 24 <= 2_292 - DAY_MIN <= 864
