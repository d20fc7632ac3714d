"""Reads nginx's configuration into directives, each with its line.

Only the syntax is known here: words, quotes, `;` and blocks. What a directive means is not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.conf.issues import ConfigError, Issue

DEPTH_MAX: Final = 32
# White space, comments, quoted words, plain words (with ${variables}, and what is escaped), marks.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)|(?P<comment>\#[^\n]*)
    |"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<mark>[;{}])
    |(?P<word>(?:\$\{[^}\s]*\}|\\.|[^\s;{}"'\\])(?:\$\{[^}\s]*\}|\\.|[^\s;{}\\])*)""",
    re.VERBOSE | re.DOTALL,
)


# The text of a word or mark, whether it is a mark, and its line.
Token = tuple[str, bool, int]


@dataclass(frozen=True)
class Directive:
    """`name word word;`, or with a block instead of the semicolon."""

    name: str
    words: tuple[str, ...]
    line: int
    block: tuple["Directive", ...] | None = None

    def all(self, name: str) -> list["Directive"]:
        """The directives of this name in its block."""
        return [each for each in self.block or () if each.name == name]

    def one(self, name: str) -> "Directive | None":
        """The last directive of this name in its block, if it has a word."""
        found = [each for each in self.all(name) if each.words]
        return found[-1] if found else None


class _Unreadable(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line: Final = line
        self.problem: Final = problem


def read_nginx(text: str, file: str) -> Directive:
    """The whole file, as a directive without a name. Raises ConfigError."""
    try:
        tokens = _tokens(text)
        block, line = _block(tokens, 0)
    except _Unreadable as error:
        issue = Issue(f"{file}:{error.line}", (), error.problem)
        raise ConfigError([issue]) from None
    if line:
        raise ConfigError([Issue(f"{file}:{line}", (), "this } closes nothing")])
    return Directive("", (), 1, block)


def _tokens(text: str) -> Iterator[Token]:
    """Each word and mark."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            problem = "a quote is not closed" if text[at] in "\"'" else "is not nginx's syntax"
            raise _Unreadable(line, problem)
        kind, raw = found.lastgroup, found[0]
        if kind == "mark":
            yield raw, True, line
        elif kind == "word":
            yield raw, False, line
        elif kind in ("double", "single"):
            yield re.sub(r"\\([\"'\\])", r"\1", found[kind]), False, line
        line += raw.count("\n")
        at = found.end()


def _block(tokens: Iterator[Token], depth: int) -> tuple[tuple[Directive, ...], int]:
    """The directives up to the end of the block, and the line of the brace that ends it. 0: the end
    of the text.
    """
    found: list[Directive] = []
    words: list[str] = []
    began = last = 1
    for text, is_mark, last in tokens:
        if not is_mark:
            began = began if words else last
            words.append(text)
        elif text == "}" and not words:
            return tuple(found), last
        elif not words:
            raise _Unreadable(last, f"a directive must stand before {text}")
        elif text == "}":
            break
        else:
            inner = _inner(words[0], tokens, began, depth + 1) if text == "{" else None
            found.append(Directive(words[0], tuple(words[1:]), began, inner))
            words = []
    if words:
        raise _Unreadable(last, f"{_told(words[0])} must end with ; or a block")
    return tuple(found), 0


def _inner(name: str, tokens: Iterator[Token], began: int, depth: int) -> tuple[Directive, ...]:
    """The block of a directive, whose brace has come."""
    if name.endswith("_by_lua_block"):
        raise _Unreadable(began, f"{_told(name)} holds Lua, which cannot be read: remove it")
    if depth > DEPTH_MAX:
        raise _Unreadable(began, f"blocks nest deeper than {DEPTH_MAX}")
    block, end = _block(tokens, depth)
    if not end:
        raise _Unreadable(began, f"the block of {_told(name)} is not closed")
    return block


def _told(name: str) -> str:
    """The name of a directive for a message. Anything else may be a key that lacks its place."""
    return name if re.fullmatch("[a-z0-9_]{1,64}", name) else "a directive"
