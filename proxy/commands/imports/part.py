"""A part of a configuration that is being written: keys, and remarks in their places."""

from collections.abc import Iterator, Sequence
from typing import Final

# What a key may have: plain data, another part, or a list of parts.
Value = object


class Variable(str):
    """The name of an environment variable that holds the value. It is written as `${NAME}`."""

    __slots__ = ()


class Part:
    """A mapping in the order in which it is to be read, with remarks between its keys."""

    def __init__(self) -> None:
        self._lines: list[tuple[str | None, Value]] = []

    def __iter__(self) -> Iterator[tuple[str | None, Value]]:
        """Its keys with their values; a remark has no key."""
        return iter(self._lines)

    def __getitem__(self, wanted: str) -> Value:
        return next(value for key, value in self._lines if key == wanted)

    @property
    def holds_keys(self) -> bool:
        """Whether it has more than remarks."""
        return any(key is not None and not is_void(value) for key, value in self._lines)

    @property
    def holds_remarks(self) -> bool:
        return any(key is None for key, _ in self._lines)

    def put(self, key: str, value: Value) -> None:
        """Write a key, in this place."""
        self._lines.append((key, value))

    def put_given(self, **values: Value) -> None:
        """Write those keys whose value is not None."""
        for key, value in values.items():
            if value is not None:
                self.put(key, value)

    def remark(self, text: str) -> None:
        """Write a comment, in this place."""
        self._lines.append((None, text))

    def lost(self, line: int, what: str, why: str = "") -> None:
        """Tell what of the other configuration has no equal here, and what there is instead."""
        self.remark(f"{LOST} (line {line}): {what}{f'. {why}' if why else ''}.")


LOST: Final = "Not carried over"


def is_void(value: Value) -> bool:
    """Whether it is a part, or a list of parts, that holds nothing but remarks."""
    if isinstance(value, Part):
        return not value.holds_keys
    return is_parts(value) and not any(each.holds_keys for each in parts_of(value))


def is_parts(value: Value) -> bool:
    """Whether a value is a list of parts."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Part)


def parts_of(value: Value) -> Sequence[Part]:
    assert isinstance(value, list)
    return value
