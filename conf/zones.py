"""Time zones: which there are, and what a clock on the wall says there."""

from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

DAY_MINUTES: Final = 1_440
WEEK_MINUTES: Final = 7 * DAY_MINUTES


Zone = tzinfo


def zone_named(name: str) -> Zone | None:
    """The zone of this name in the system's database. None if there is none."""
    if name == "UTC":
        return UTC  # small systems have no database
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):  # unknown, a folder of zones, or no name at all
        return None


def minute_of_week(zone: Zone, now_s: float) -> int:
    """The minutes since Monday 00:00, as a clock there shows them. `now_s`: Unix time."""
    there = datetime.fromtimestamp(now_s, UTC).astimezone(zone)
    return there.weekday() * DAY_MINUTES + there.hour * 60 + there.minute


def clock_text(zone: Zone, now_s: float) -> str:
    """What a clock there shows, as `Wed 08:59`."""
    return f"{datetime.fromtimestamp(now_s, UTC).astimezone(zone):%a %H:%M}"
