"""Reads YAML text: plain data (dict, list, str, int, float, bool, None) and the line of each key.

Duplicate keys, keys that are not text, and tags are refused. Anchors and merges work, but what they
expand to is limited, so no text takes unlimited time and memory.

Faults are collected as long as the rest can be read. A value that could not be read becomes
`UNREAD` in the data. No text raises an exception.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import yaml

from penstock.conf.interpolation import interpolate
from penstock.conf.issues import SHOWN_CHARS_MAX
from penstock.conf.keypath import KeyPath
from penstock.conf.yaml_nodes import (
    DEPTH_MAX,
    TAG,
    VALUES_MAX,
    Unreadable,
    compose,
    line_of,
    plain_tag,
    scalar,
)

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
