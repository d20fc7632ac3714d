"""Turns YAML text into PyYAML's nodes, by YAML 1.2's core schema and within limits.

Scalars mean what editors show: `no` and `on` are text, `1e3` is a number, `010` is ten, a date is
text. Only nodes are built, never objects, so no tag can run anything. A syntax error becomes one
line that never quotes the text, because the text may hold secrets.
"""

import re
from typing import Final

import yaml

TAG: Final = "tag:yaml.org,2002:"
# The settings are five levels deep. A thousand backends have some seven thousand values.
DEPTH_MAX: Final = 32
VALUES_MAX: Final = 100_000
NUMBER_CHARS_MAX: Final = 64

_CORE_SCHEMA: Final = (
    ("null", r"^(?:~|null|Null|NULL|)$", [*"~nN", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", [*"-+0123456789"]),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        [*"-+.0123456789"],
    ),
    ("merge", r"^<<$", ["<"]),
)


class Unreadable(Exception):
    """The text cannot be read any further."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line: Final = line
        self.problem: Final = problem


def compose(text: str) -> yaml.Node | None:
    """Build the nodes of the only document in `text`. None when it is empty."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, f"character U+{error.character:04X} is not allowed") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(line, f"not valid YAML: {problem}{_hint(text, line, problem)}") from None
    except (ValueError, OverflowError):
        # PyYAML lets errors of chr() and int() through, for an escape or a directive.
        line = loader.line + 1 if loader else 1
        problem = "not valid YAML: a number in an escape or a directive is out of range"
        raise Unreadable(line, problem) from None


def plain_tag(text: str) -> str:
    """The tag (type) of unquoted `text`."""
    nodes = _Loader("")
    tag: str = nodes.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag


def scalar(tag: str, text: str) -> object:
    """The value of a scalar. A ValueError says what is wrong without quoting the text."""
    kind = tag.removeprefix(TAG)
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind not in ("int", "float"):
        raise ValueError("has a tag that is not supported")
    if len(text) > NUMBER_CHARS_MAX:
        raise ValueError(f"is a number of more than {NUMBER_CHARS_MAX} digits")
    try:
        if kind == "int":
            return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
        return float(text.replace(".", "", 1) if text[-1:].isalpha() else text)
    except ValueError:
        raise ValueError("is not the number that its tag says") from None


def line_of(node: yaml.Node) -> int:
    """The line on which a node begins, counted from 1."""
    return int(node.start_mark.line) + 1


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the core schema and bounds."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own name and way

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # Check before the parser recurses: brackets alone could exhaust the stack.
        self._depth += 1
        self._count += 1
        if self._depth > DEPTH_MAX:
            raise Unreadable(self.line + 1, f"nested deeper than {DEPTH_MAX} levels")
        if self._count > VALUES_MAX:
            raise Unreadable(self.line + 1, f"more than {VALUES_MAX:,} values")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _kind, _pattern, _first_chars in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(TAG + _kind, re.compile(_pattern), _first_chars)


def _hint(text: str, line: int, problem: str) -> str:
    culprit = "".join(text.splitlines()[line - 1 : line])
    if "'\\t'" in problem:
        return "; indent with spaces, not tabs"
    if "${" in culprit and ("{" in culprit.replace("${", "") or "[" in culprit):
        return '; inside { } or [ ] quote it, "${NAME}", or give it a line of its own'
    return ""
