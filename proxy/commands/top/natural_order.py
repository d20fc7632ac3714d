"""The order of names in which gpu-9 comes before gpu-10."""

import re
from typing import Final

_DIGITS: Final = re.compile(r"(\d+)")
# A longer number is compared as text: who has written it is not known.
_DIGITS_MAX: Final = 18

Key = tuple[tuple[int, int, str], ...]


def natural(name: str) -> Key:
    """A key to sort by."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and len(part) <= _DIGITS_MAX else (1, 0, part)
        for part in _DIGITS.split(name.casefold())
        if part
    )
