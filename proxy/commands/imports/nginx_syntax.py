"""nginx's syntax: directives with their lines, and what their words may be.

Which directive means what is not known here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.conf.issues import ConfigError, Issue
from penstock.conf.kinds import AMOUNT_MAX, HOST

DEPTH_MAX: Final = 32
# White space, comments, quoted words, plain words (with ${variables}, and what is escaped), marks.
_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*
    |"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<mark>[;{}])
    |(?P<word>(?:\$\{[^}\s]*\}|\\.|[^\s;{}"'\\])(?:\$\{[^}\s]*\}|\\.|[^\s;{}\\])*)""",
    re.VERBOSE | re.DOTALL,
)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SECONDS_OF_LONG: Final = {"w": 604_800.0, "M": 2_592_000.0, "y": 31_536_000.0}
_BYTES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Directive:
    """`name word word;`, or with a block instead of the semicolon."""

    name: str
    words: tuple[str, ...]
    line: int
    block: "list[Directive]" = field(default_factory=list)

    @property
    def word(self) -> str:
        """Its first word, if it has one."""
        return self.words[0] if self.words else ""

    @property
    def title(self) -> str:
        """Its name with its words."""
        return " ".join((self.name, *self.words))

    def all(self, name: str) -> list["Directive"]:
        """The directives of this name in its block."""
        return [each for each in self.block if each.name == name]

    def one(self, name: str) -> "Directive | None":
        """The last directive of this name in its block, if it has a word."""
        return next((each for each in reversed(self.all(name)) if each.words), None)


def refusal(file: str, line: int, problem: str) -> ConfigError:
    """What to raise."""
    return ConfigError([Issue(f"{file}:{line}", (), problem)])


def read_nginx(text: str, file: str) -> Directive:
    """The whole file, as a directive without a name. Raises ConfigError."""
    opened = [Directive("", (), 1)]
    words: list[str] = []
    began = 1
    for word, is_mark, line in _tokens(text, file):
        if not is_mark:
            began = began if words else line
            words.append(word)
        elif words and word != "}":
            opened[-1].block.append(Directive(words[0], tuple(words[1:]), began))
            if word == "{":
                opened.append(opened[-1].block[-1])
                _check_block(opened[-1], len(opened), file)
            words = []
        elif words:
            raise refusal(file, line, f"{_told(words[0])} must end with ; or a block")
        elif word != "}":
            raise refusal(file, line, f"a directive must stand before {word}")
        elif len(opened) > 1:
            opened.pop()
        else:
            raise refusal(file, line, "this } closes nothing")
    if words:
        raise refusal(file, began, f"{_told(words[0])} must end with ; or a block")
    if len(opened) > 1:
        problem = f"the block of {_told(opened[-1].name)} is not closed"
        raise refusal(file, opened[-1].line, problem)
    return opened[0]


def _check_block(directive: Directive, depth: int, file: str) -> None:
    if directive.name.endswith("_by_lua_block"):
        problem = f"{_told(directive.name)} holds Lua, which cannot be read: remove it"
        raise refusal(file, directive.line, problem)
    if depth > DEPTH_MAX + 1:
        raise refusal(file, directive.line, f"blocks nest deeper than {DEPTH_MAX}")


def _tokens(text: str, file: str) -> Iterator[tuple[str, bool, int]]:
    """Each word and mark: its text, whether it is a mark, and its line."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            problem = "a quote is not closed" if text[at] in "\"'" else "is not nginx's syntax"
            raise refusal(file, line, problem)
        kind, raw = found.lastgroup, found[0]
        if kind in ("mark", "word"):
            yield raw, kind == "mark", line
        elif kind is not None:
            yield re.sub(r"\\([\"'\\])", r"\1", found[kind]), False, line
        line += raw.count("\n")
        at = found.end()


def _told(name: str) -> str:
    """The name of a directive for a message. Anything else may be a key that lacks its place."""
    return name if re.fullmatch("[a-z0-9_]{1,64}", name) else "a directive"


def seconds_of(text: str) -> float | None:
    """A time such as `60`, `5m` or `1h 30m` in seconds. None if it is none."""
    parts = re.findall(r"(\d+)(ms|[smhdwMy]?)\s*", text)
    if not parts or "".join([a + b for a, b in parts]) != re.sub(r"\s", "", text):
        return None
    units = _SECONDS | _SECONDS_OF_LONG
    return sum([number_of(number) * units[unit or "s"] for number, unit in parts])


def bytes_of(text: str) -> int | None:
    """A size such as `32m` in bytes. None if it is none."""
    found = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    return None if found is None else number_of(found[1]) * _BYTES[found[2]]


def number_of(text: str) -> int:
    """A number of digits. One that is no number is 0, and a huge one is AMOUNT_MAX."""
    if not (text.isascii() and text.isdigit()):
        return 0
    return min(int(text), AMOUNT_MAX) if len(text) <= len(str(AMOUNT_MAX)) else AMOUNT_MAX


class Address(NamedTuple):
    """Where a server is, or where one listens."""

    host: str
    port: int

    def url(self, scheme: str) -> str:
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def address_of(text: str, port: int) -> Address | None:
    """Host and port of `10.0.0.1:8000`, `[::1]:8000` or `gpu-0`. None if it is none."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)(?::(\d{1,5}))?", text)
    if found is None or not 0 < (number := int(found[2] or port)) < 65_536:
        return None
    host = found[1].strip("[]")
    return Address(host, number) if re.fullmatch(HOST, host) else None


class Target(NamedTuple):
    """What `proxy_pass` names: an upstream, or host and port. `path`: what the path of the location
    is replaced by. None: it passes as it is."""

    scheme: str
    server: str
    path: str | None


def target_of(text: str) -> Target | None:
    """The target of a `proxy_pass`. None if it has variables, or is no HTTP server."""
    found = re.fullmatch(r"(https?)://(?!unix:)([^/$?#\s]+)(/[^$?#\s]*)?", text)
    return None if found is None else Target(found[1], found[2], found[3])
