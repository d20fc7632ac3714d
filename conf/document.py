"""Reads YAML text: plain data (dict, list, str, int, float, bool, None) and the line of each key.

YAML 1.2's core schema: `no` and `on` are text, `1e3` is a number, `010` is ten, a date is text.
Duplicate keys, keys that are not text, and tags are refused: only nodes are built, never objects,
so no tag can run anything. Anchors and merges work, but what they expand to is limited, so no text
takes unlimited time and memory.

Faults are collected as long as the rest can be read. A value that could not be read becomes
`UNREAD` in the data. No text raises an exception, and no message quotes it: it may hold secrets.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import yaml

from penstock.conf.issues import SHOWN_CHARS_MAX
from penstock.conf.keypath import KeyPath

# The last alternative matches every other dollar sign.
_REFERENCE: Final = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|)"
)


class InterpolationError(ValueError):
    """A reference that cannot be resolved. The text names the variable, never a value."""


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}`, `${VAR:-default}` and `$$` in `text`. As in a shell, a default also
    replaces an empty value. Any other dollar sign is an error: a `$VAR` would stay as it is, and
    show up much later, for example as a file that does not exist.
    """

    def value_of(reference: re.Match[str]) -> str:
        if reference["dollar"]:
            return "$"
        name, default = reference["name"], reference["default"]
        if name is None:
            raise InterpolationError("write ${NAME}, ${NAME:-default}, or $$ for a dollar sign")
        value = environ.get(name, "")
        if not value and default is not None:
            return default.removeprefix(":-")
        if name not in environ:
            raise InterpolationError(
                f"environment variable {name} is not set and has no default"
                f" (${{{name}:-default}} gives one)"
            )
        return value

    return _REFERENCE.sub(value_of, text)


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


UNREAD: Final = object()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that cannot be read, and its line (counted from 1)."""

    path: KeyPath
    line: int
    problem: str


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a text. `tree` is UNREAD when the text cannot be read at all."""

    tree: object
    lines: Mapping[KeyPath, int]
    faults: tuple[Fault, ...]


def read(text: str, environ: Mapping[str, str] | None = None) -> Document:
    """Read one YAML document. With `environ`, references in its values are replaced."""
    reader = _Reader(environ)
    try:
        root = compose(text)
        tree = None if root is None else reader.value(root, ())
    except Unreadable as error:
        return Document(UNREAD, {}, (Fault((), error.line, error.problem),))
    # An alias repeats the faults of its anchor under other paths. Keep each fault once.
    faults = {(fault.line, fault.problem): fault for fault in reversed(reader.faults)}
    return Document(tree, reader.lines, tuple(reversed(faults.values())))


def is_unicode(text: str) -> bool:
    """Whether text has no lone surrogates. Escapes and the environment may hold them."""
    return text.isascii() or not re.search(r"[\ud800-\udfff]", text)


class _Reader:
    """Turns nodes into plain data."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[Fault] = []
        self._environ = environ
        self._depth = self._count = 0
        # One string for each node, however often aliases repeat it.
        self._scalars: dict[int, object] = {}

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        line = line_of(node)
        self.lines.setdefault(path, line)
        with self._charged(line):
            if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
                items = enumerate(node.value)
                return [self.value(item, (*path, index)) for index, item in items]
            if isinstance(node, yaml.ScalarNode):
                if id(node) not in self._scalars:
                    self._scalars[id(node)] = self._scalar(node, path)
                return self._scalars[id(node)]
        return self._unread(path, line, "has a tag that is not supported")

    @contextmanager
    def _charged(self, line: int, count: int = 1) -> Iterator[None]:
        self._count += count
        self._depth += 1
        if self._count > VALUES_MAX:
            raise Unreadable(line, f"aliases expand to more than {VALUES_MAX:,} values")
        if self._depth > DEPTH_MAX:
            raise Unreadable(line, f"aliases nest deeper than {DEPTH_MAX} levels")
        yield
        self._depth -= 1

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        tree = {}
        for key, (line, value_node) in self._pairs(node, path).items():
            self.lines[(*path, key)] = line
            tree[key] = self.value(value_node, (*path, key))
        return tree

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, tuple[int, yaml.Node]]:
        """The pairs of a mapping. Its own keys win over merged ones, the first merge over later."""
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: dict[str, tuple[int, yaml.Node]] = {}
        for key_node, value_node in node.value:
            line = line_of(key_node)
            if key_node.tag == TAG + "merge":
                for source in self._merge_sources(value_node, path):
                    with self._charged(line, 1 + len(source.value)):
                        merged = self._pairs(source, path) | merged
            elif not isinstance(key_node, yaml.ScalarNode) or key_node.tag != TAG + "str":
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a collection"
                self._unread(path, line, f"keys must be text, got {key[:SHOWN_CHARS_MAX]}")
            elif not is_unicode(key_node.value):
                self._unread(path, line, "a key is not valid Unicode")
            elif key_node.value in own:
                first = own[key_node.value][0]
                problem = f"duplicate key, given on line {first} and again on line {line}"
                self._unread((*path, key_node.value), line, problem)
            else:
                own[key_node.value] = line, value_node
        return merged | own

    def _merge_sources(self, node: yaml.Node, path: KeyPath) -> list[yaml.MappingNode]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        sources = [source for source in nodes if isinstance(source, yaml.MappingNode)]
        if len(sources) < len(nodes):
            self._unread(path, line_of(node), "<< takes a mapping or a list of mappings")
        return sources

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        text, tag, line = node.value, node.tag, line_of(node)
        try:
            if self._environ is not None and "$" in text:
                text = interpolate(text, self._environ)
                if node.style is None and tag == TAG + "str":
                    tag = plain_tag(text)
            if not is_unicode(text):
                return self._unread(path, line, "is not valid Unicode")
            return scalar(tag, text)
        except ValueError as error:
            return self._unread(path, line, str(error))

    def _unread(self, path: KeyPath, line: int, problem: str) -> object:
        self.faults.append(Fault(path, line, problem))
        return UNREAD
