"""Durations and sizes with units, as `500ms`, `2s` and `32MiB`: for keys that name their unit.

A key says what its number is in (`interval_s`, `body_bytes`); a unit beside the number is taken
into that. Whatever has no unit is left as it is.
"""

import re
from decimal import Decimal
from typing import Final

_SECONDS: Final = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3_600),
    "d": Decimal(86_400),
}
_BYTES: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
# A duration per something is one too: first_byte_s_per_1k_tokens.
_KEY: Final = re.compile(r"_(s|ms|bytes)(_per_\w+)?$")
_NUMBER: Final = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_TEXT: Final = re.compile(rf"({_NUMBER}) ?([^\d\s.]\S*)", re.ASCII)

# The same for JSON Schema, by the unit of the key.
PATTERNS: Final = {
    "s": rf"^{_NUMBER} ?({'|'.join(_SECONDS)})$",
    "ms": rf"^{_NUMBER} ?({'|'.join(_SECONDS)})$",
    "bytes": rf"^{_NUMBER} ?({'|'.join(_BYTES)})$",
}


def unit_of(key: str) -> str | None:
    """What the number at a key is in: `s`, `ms` or `bytes`; None where it names none."""
    found = _KEY.search(key)
    return found[1] if found else None


def allowed(unit: str) -> str:
    """What may stand at a key of this unit, in words."""
    if unit == "bytes":
        return f"a number of bytes, or a size such as 32MiB ({', '.join(_BYTES)})"
    named = "seconds" if unit == "s" else "milliseconds"
    return f"a number of {named}, or a duration such as 500ms ({', '.join(_SECONDS)})"


def plain(text: str, unit: str) -> float | int | None:
    """The number that `text` with a unit means; None when it is no number with a unit.

    Raises ValueError, with what is allowed, when the unit is none or leaves a part of a byte.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    number, given = Decimal(found[1]), found[2]
    if unit == "bytes":
        if given not in _BYTES:
            raise ValueError(f"must be {allowed(unit)}{_meant(given, list(_BYTES))}")
        size = number * _BYTES[given]
        if size != int(size):
            raise ValueError("must be a whole number of bytes")
        return int(size)
    if given not in _SECONDS:
        raise ValueError(f"must be {allowed(unit)}{_meant(given, list(_SECONDS))}")
    seconds = number * _SECONDS[given]
    return float(seconds if unit == "s" else 1_000 * seconds)


def _meant(given: str, units: list[str]) -> str:
    same = [unit for unit in units if unit.lower() == given.lower()]
    return f"; did you mean {same[0]}?" if same else ""
