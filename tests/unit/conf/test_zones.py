"""Time zones: their names, and what clocks show."""

from datetime import UTC, datetime

import pytest

from penstock.conf.zones import DAY_MINUTES, clock_text, minute_of_week, zone_named


def test_utc_takes_no_database() -> None:
    assert zone_named("UTC") is UTC


@pytest.mark.parametrize(
    "name", ["", "Europe", "europe/nowhere", "/etc/passwd", "../UTC", "\0", "."]
)
def test_what_is_no_zone(name: str) -> None:
    assert zone_named(name) is None


def test_minutes_of_the_week_by_the_clock_there() -> None:
    zone = zone_named("Asia/Kolkata")
    assert zone is not None
    sunday_s = datetime(2026, 1, 11, 18, 29, 59, tzinfo=UTC).timestamp()
    assert minute_of_week(zone, sunday_s) == 7 * DAY_MINUTES - 1
    assert minute_of_week(zone, sunday_s + 1) == 0
    assert clock_text(zone, sunday_s) == "Sun 23:59"
