"""A configuration that is being written: keys with remarks between them, as YAML for people.

Short mappings stand on one line, and remarks are comments.
"""

import json
import re
import textwrap
from collections.abc import Iterable
from typing import Any, Final

from penstock.conf.show import printable

WIDTH: Final = 100
REMARK_CHARS_MAX: Final = 400
NAME_CHARS_MAX: Final = 48
LOST: Final = "Not carried over"
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+[KMG]iB")
# Words that readers of YAML take for something else than text.
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
# The line of the other file, what has no equal here, and what there is instead.
Lost = tuple[int, str, str]


class Variable(str):
    """The name of an environment variable that holds the value. It is written as `${NAME}`."""

    __slots__ = ()


class Part:
    """A mapping in the order in which it is to be read. A remark in `lines` has no key."""

    def __init__(self, **values: Any) -> None:
        self.lines: list[tuple[str | None, Any]] = []
        self.put(**values)

    def put(self, **values: Any) -> None:
        """Write these keys in this place: plain data, parts or lists of parts, but no None."""
        self.lines += [(key, value) for key, value in values.items() if value is not None]

    def remark(self, text: str) -> None:
        """Write a comment in this place."""
        self.lines.append((None, text))

    def lose(self, line: int, what: str, why: str = "") -> None:
        """Write what of the other file has no equal here."""
        self.remark(f"{LOST} (line {line}): {what}{f'. {why}' if why else ''}.")

    def lose_all(self, lost: Iterable[Lost]) -> None:
        """Write all of these so."""
        for each in lost:
            self.lose(*each)

    @property
    def holds_keys(self) -> bool:
        """Whether it has more than remarks."""
        return any(key is not None and not _is_void(value) for key, value in self.lines)


def reasons(text: str) -> dict[str, str]:
    """Lines of `name name: what there is instead`, by name."""
    lines = [line.partition(": ") for line in text.strip().splitlines()]
    return {name: why for names, _, why in lines for name in names.split()}


class Names:
    """Names of one kind, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str) -> str:
        """A name like this one that penstock takes and nothing else has."""
        plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", wanted).strip("._-")[:NAME_CHARS_MAX] or "unnamed"
        name, number = plain, 2
        while name in self._taken:
            name, number = f"{plain}-{number}", number + 1
        self._taken.add(name)
        return name

    def numbered(self, wanted: str) -> str:
        """A new name that is this one and a number, from 0 on."""
        number = 0
        while f"{wanted}-{number}" in self._taken:
            number += 1
        return self.new(f"{wanted}-{number}")


def text_of(part: Part) -> str:
    """The whole configuration. An empty line stands before each top-level key."""
    groups = [Part()]
    for line in part.lines:
        groups[-1].lines.append(line)
        if line[0] is not None:
            groups.append(Part())
    return "\n\n".join(filter(None, ["\n".join(_block(each, 0)) for each in groups])) + "\n"


def comment(text: str, indent: int) -> list[str]:
    """The lines of a comment. No text of the input can end it."""
    clean = "".join([char if char.isprintable() else " " for char in text])
    if len(clean) > REMARK_CHARS_MAX:
        clean = clean[: REMARK_CHARS_MAX - 3] + "..."
    fill = textwrap.TextWrapper(WIDTH, break_on_hyphens=False, break_long_words=False)
    fill.initial_indent = fill.subsequent_indent = " " * indent + "# "
    return fill.wrap(clean)


def _is_parts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Part)


def _is_void(value: Any) -> bool:
    """Whether it is a part, or a list of parts, that holds nothing but remarks."""
    parts = value if _is_parts(value) else [value]
    return all(isinstance(each, Part) and not each.holds_keys for each in parts)


def _block(part: Part, indent: int) -> list[str]:
    """The lines of a mapping."""
    lines: list[str] = []
    for key, value in part.lines:
        begin = f"{' ' * indent}{_key(key or '')}:"
        if key is None:
            lines += comment(value, indent)
        elif _is_void(value):
            for each in [value] if isinstance(value, Part) else value:
                lines += _block(each, indent)
        elif _is_parts(value):
            lines += [begin, *[line for each in value for line in _item(each, indent + 2)]]
        else:
            lines += _one_line(f"{begin} ", value) or [begin, *_block(value, indent + 2)]
    return lines


def _item(part: Part, indent: int) -> list[str]:
    """One entry of a list. What is remarked before its first key stands before the dash."""
    keys = [key is not None and not _is_void(value) for key, value in part.lines]
    first = keys.index(True) if True in keys else len(keys)
    before, rest = Part(), Part()
    before.lines, rest.lines = part.lines[:first], part.lines[first:]
    lines = _block(before, indent)
    if rest.lines:
        begin, *more = _one_line(" " * (indent + 2), rest) or _block(rest, indent + 2)
        lines += [f"{' ' * indent}- {begin.lstrip()}", *more]
    return lines


def _one_line(begin: str, value: Any) -> list[str]:
    """The value on one line if that is short enough and hides no remark."""
    line = begin + flow(value) if _is_flat(value) else ""
    return [line] if line and (len(line) <= WIDTH or not isinstance(value, Part)) else []


def _is_flat(value: Any) -> bool:
    if isinstance(value, Part):
        return all(key is not None and _is_flat(each) for key, each in value.lines)
    return not _is_parts(value)


def flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Part):
        return _flow_mapping((str(key), each) for key, each in value.lines)
    if isinstance(value, dict):
        return _flow_mapping(value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join([flow(each) for each in value])}]"
    if isinstance(value, Variable):
        return f'"${{{value}}}"'
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else _quoted(value.replace("$", "$$"))
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _flow_mapping(items: Iterable[tuple[str, Any]]) -> str:
    return f"{{{', '.join([f'{_key(key)}: {flow(each)}' for key, each in items])}}}"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """Text in double quotes. YAML's escapes are JSON's, but for characters beyond 16 bits."""
    return printable(json.dumps(text, ensure_ascii=False))
