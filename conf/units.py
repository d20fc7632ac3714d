"""Durations and sizes with units, such as `500ms`, `2s` and `32MiB`, at keys that name a unit.

The key says the unit of its number (`interval_s`, `body_bytes`). A value with another unit is
converted. Text without a unit is left unchanged.
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
# A duration for each of something is a duration, too: first_byte_s_per_1k_tokens.
_KEY: Final = re.compile(r"_(s|ms|bytes)(_per_\w+)?$")
# So is a percentile of one: ttft_s: {p95: 500ms}.
_PERCENTILE: Final = re.compile(r"p[0-9]{2}")
_NUMBER: Final = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_TEXT: Final = re.compile(rf"({_NUMBER}) ?([^\d\s.]\S*)", re.ASCII)

# The texts that are allowed, for the JSON Schema, by the unit of the key.
PATTERNS: Final = {
    "s": rf"^{_NUMBER} ?({'|'.join(_SECONDS)})$",
    "ms": rf"^{_NUMBER} ?({'|'.join(_SECONDS)})$",
    "bytes": rf"^{_NUMBER} ?({'|'.join(_BYTES)})$",
}


def unit_of(key: str) -> str | None:
    """The unit of the number at a key: `s`, `ms` or `bytes`. None if the key names none."""
    if _PERCENTILE.fullmatch(key):
        return "s"
    found = _KEY.search(key)
    return found[1] if found else None


def allowed(unit: str) -> str:
    """The values that a key of this unit allows, in words."""
    if unit == "bytes":
        return f"a number of bytes, or a size such as 32MiB ({', '.join(_BYTES)})"
    named = "seconds" if unit == "s" else "milliseconds"
    return f"a number of {named}, or a duration such as 500ms ({', '.join(_SECONDS)})"


def plain(text: str, unit: str) -> float | int | None:
    """The number that `text` with a unit means. None when it is not a number with a unit.

    Raises ValueError, saying what is allowed, for an unknown unit or a fraction of a byte.
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
