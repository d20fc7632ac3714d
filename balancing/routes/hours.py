"""A window of time, by a clock on the wall of some place.

Clocks that are put forward skip what is in between: a window from 02:00 to 03:00 does not come on
that day. Clocks that are put back show an hour twice, and the window comes twice.
"""

from penstock.conf.zones import Zone, minute_of_week


class Hours:
    """The minutes of a week, as bits, and the zone of the clock."""

    __slots__ = ("_inside", "_looked_at", "minutes", "zone")

    def __init__(self, minutes: int, zone: Zone) -> None:
        self.minutes = minutes
        self.zone = zone
        # The answer for one minute: to ask the zone costs more than all other conditions.
        self._looked_at = -1
        self._inside = False

    def hold(self, now_s: float) -> bool:
        """Whether it is now. `now_s`: Unix time."""
        minute = int(now_s // 60)
        if minute != self._looked_at:
            self._inside = bool(self.minutes >> minute_of_week(self.zone, now_s) & 1)
            self._looked_at = minute
        return self._inside
