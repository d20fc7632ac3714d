"""What a request may ask for beyond text, as bits of one number."""

from collections.abc import Iterable
from typing import Final, get_args

from penstock.conf.route_match import Need

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
