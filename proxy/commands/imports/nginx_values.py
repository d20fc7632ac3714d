"""Values in nginx's words: times, sizes and addresses."""

import re
from typing import Final, NamedTuple

from penstock.conf.kinds import AMOUNT_MAX, HOST

_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "M": 2_592_000.0,
    "y": 31_536_000.0,
}
_BYTES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_PORTS: Final = {"http": 80, "https": 443}
_DIGITS_MAX: Final = len(str(AMOUNT_MAX))


def seconds_of(text: str) -> float | None:
    """A time such as `60`, `5m` or `1h 30m` in seconds. None if it is none."""
    parts = re.findall(r"(\d+)(ms|[smhdwMy]?)\s*", text)
    if not parts or "".join([a + b for a, b in parts]) != re.sub(r"\s", "", text):
        return None
    return sum([number_of(number) * _SECONDS[unit or "s"] for number, unit in parts])


def bytes_of(text: str) -> int | None:
    """A size such as `32m` in bytes. None if it is none."""
    found = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    return None if found is None else number_of(found[1]) * _BYTES[found[2]]


def number_of(text: str) -> int:
    """A number of digits. One that is no number is 0, and a huge one is AMOUNT_MAX."""
    if not (text.isascii() and text.isdigit()):
        return 0
    return min(int(text), AMOUNT_MAX) if len(text) <= _DIGITS_MAX else AMOUNT_MAX


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
    """What `proxy_pass` names."""

    scheme: str
    server: str
    """The name of an upstream, or host and port."""
    path: str | None
    """What the path of the location is replaced by. None: it passes as it is."""


def target_of(text: str) -> Target | None:
    """The target of a `proxy_pass`. None if it has variables, or is no HTTP server."""
    found = re.fullmatch(r"(https?)://([^/$?#\s]+)(/[^$?#\s]*)?", text)
    if found is None or found[2].startswith("unix:"):
        return None
    return Target(found[1], found[2], found[3])


def default_port(scheme: str) -> int:
    return _PORTS[scheme]
