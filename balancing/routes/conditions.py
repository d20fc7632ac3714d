"""What a route's conditions name: needs beyond text, patterns of texts, hours of a week."""

from collections.abc import Iterable
from typing import Final, get_args

from penstock.conf.route_match import Need
from penstock.conf.zones import Zone, minute_of_week

NEEDS: Final[tuple[str, ...]] = get_args(Need)
_BITS: Final[dict[str, int]] = {name: 1 << place for place, name in enumerate(NEEDS)}


def needs_of(names: Iterable[str]) -> int:
    """The bits of these names."""
    bits = 0
    for name in names:
        bits |= _BITS[name]
    return bits


def named(bits: int) -> list[str]:
    """The names of these bits."""
    return [name for name in NEEDS if bits & _BITS[name]]


class Patterns:
    """Exact texts, and prefixes that end in a star. Text matches if one of them does, and no text
    matches none."""

    __slots__ = ("exact", "prefixes", "written")

    def __init__(self, written: Iterable[str]) -> None:
        self.written = tuple(written)
        self.exact = frozenset([each for each in self.written if not each.endswith("*")])
        self.prefixes = tuple([each[:-1] for each in self.written if each.endswith("*")])

    def match(self, text: str | None) -> bool:
        """Whether one of them matches."""
        if text is None:
            return False
        return text in self.exact or text.startswith(self.prefixes)


class Hours:
    """The minutes of a week, as bits, by a clock on the wall of some zone.

    Clocks that are put forward skip what is in between: a window from 02:00 to 03:00 does not come
    on that day. Clocks that are put back show an hour twice, and the window comes twice.
    """

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
