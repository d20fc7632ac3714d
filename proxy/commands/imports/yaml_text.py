"""Writes a part as YAML that people read: short mappings on one line, remarks as comments."""

import json
import re
import textwrap
from collections.abc import Iterable
from typing import Final

from penstock.proxy.commands.imports.part import Part, Value, Variable, is_parts, is_void, parts_of

WIDTH: Final = 100
REMARK_CHARS_MAX: Final = 400
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+[KMG]iB")
# Words that readers of YAML take for something else than text.
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def text_of(part: Part) -> str:
    """The whole configuration. An empty line stands before each top-level key."""
    written: list[str] = []
    group = Part()
    for key, value in part:
        if key is None:
            group.remark(str(value))
            continue
        group.put(key, value)
        written.append("\n".join(_block(group, 0)))
        group = Part()
    written.append("\n".join(_block(group, 0)))
    return "\n\n".join([each for each in written if each]) + "\n"


def _block(part: Part, indent: int) -> list[str]:
    """The lines of a mapping."""
    lines: list[str] = []
    for key, value in part:
        if key is None:
            lines += comment(str(value), indent)
        elif is_void(value):
            lines += _remarks(value, indent)
        else:
            lines += _entry(key, value, indent)
    return lines


def _entry(key: str, value: Value, indent: int) -> list[str]:
    begin = f"{' ' * indent}{_key(key)}:"
    if is_parts(value):
        items: list[str] = []
        for each in parts_of(value):
            items += _item(each, indent + 2)
        return [begin, *items]
    if not isinstance(value, Part):
        return [f"{begin} {flow(value)}"]
    if not value.holds_remarks and not _is_deep(value):
        line = f"{begin} {flow(value)}"
        if len(line) <= WIDTH:
            return [line]
    return [begin, *_block(value, indent + 2)]


def _item(part: Part, indent: int) -> list[str]:
    """One entry of a list. What is remarked before its first key stands before the dash."""
    if not part.holds_keys:
        return _remarks(part, indent)
    before: list[str] = []
    rest = Part()
    for key, value in part:
        if key is None and not rest.holds_keys:
            before += comment(str(value), indent)
        elif key is None:
            rest.remark(str(value))
        else:
            rest.put(key, value)
    dash = " " * indent + "- "
    if not rest.holds_remarks and not _is_deep(rest):
        line = dash + flow(rest)
        if len(line) <= WIDTH:
            return [*before, line]
    first, *others = _block(rest, indent + 2)
    return [*before, dash + first.lstrip(), *others]


def _remarks(value: Value, indent: int) -> list[str]:
    """What is remarked in a value without any key."""
    lines: list[str] = []
    for part in [value] if isinstance(value, Part) else parts_of(value):
        for key, held in part:
            if key is None:
                lines += comment(str(held), indent)
            elif isinstance(held, Part) or is_parts(held):
                lines += _remarks(held, indent)
    return lines


def comment(text: str, indent: int) -> list[str]:
    """The lines of a comment. No text of the input can end it."""
    clean = "".join([char if char.isprintable() else " " for char in text])
    if len(clean) > REMARK_CHARS_MAX:
        clean = clean[: REMARK_CHARS_MAX - 3] + "..."
    begin = " " * indent + "# "
    return textwrap.wrap(
        clean,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=begin,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _is_deep(part: Part) -> bool:
    """Whether it holds lists of parts, which are better read on lines of their own."""
    return any(
        is_parts(value) or (isinstance(value, Part) and (value.holds_remarks or _is_deep(value)))
        for _, value in part
    )


def flow(value: Value) -> str:
    """A value on one line."""
    if isinstance(value, Part):
        return _flow_mapping([(str(key), each) for key, each in value if key is not None])
    if isinstance(value, dict):
        return _flow_mapping(value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join([flow(each) for each in value])}]"
    return _scalar(value)


def _flow_mapping(items: Iterable[tuple[str, Value]]) -> str:
    return f"{{{', '.join([f'{_key(key)}: {flow(each)}' for key, each in items])}}}"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else _quoted(name)


def _scalar(value: Value) -> str:
    if isinstance(value, Variable):
        return f'"${{{value}}}"'
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return _quoted(value.replace("$", "$$"))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    """Text in double quotes. YAML's escapes are JSON's, but for characters beyond 16 bits."""
    return f'"{"".join([_escaped(char) for char in text])}"'


def _escaped(char: str) -> str:
    if char.isprintable() and char not in '"\\':
        return char
    return json.dumps(char)[1:-1] if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
