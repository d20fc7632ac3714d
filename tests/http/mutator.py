"""Seeded mutations of valid requests: bytes that parsers care about, put in, taken out, doubled."""

import re
from itertools import pairwise
from random import Random
from typing import Final

from tests.http.message import CHUNKED, chunks, raw

_BODY: Final = b'{"prompt":"some words"}'
_RAW: Final = b"POST /raw HTTP/1.1"
_KEY: Final = b"Authorization: Bearer sk-1"
_TRAILED: Final = chunks(_BODY, 9)[:-2] + b"X-Trailer: a\r\n\r\n"
_EXTENDED: Final = chunks(_BODY, 9).replace(b"9\r\n", b'9;a=b;c="d"\r\n')
SEEDS: Final = (
    raw(_BODY, b"Content-Type: application/json", _KEY),
    raw(_BODY, b"User-Agent: a", b"Accept: */*", b"Connection: keep-alive", line=_RAW),
    raw(_BODY, b"Connection: close, x-a", b"X-A: b", line=_RAW),
    raw(_BODY, line=b"POST http://penstock:80/v1/completions?a=b&c HTTP/1.1"),
    raw(_BODY, line=b"POST /v1/completions HTTP/1.0"),
    raw(_BODY, b"Expect: 100-continue", b"TE: trailers", line=_RAW),
    raw(_BODY, b"Connection: Upgrade", b"Upgrade: h2c", line=_RAW),
    raw(chunks(_BODY), CHUNKED, _KEY, framed=True),
    raw(chunks(_BODY, 4), CHUNKED, line=_RAW, framed=True),
    raw(_TRAILED, CHUNKED, b"Trailer: X-Trailer", line=_RAW, framed=True),
    raw(_EXTENDED, b"X-A: b", CHUNKED, line=_RAW, framed=True),
    raw(b"", line=b"GET /raw?x HTTP/1.1", framed=True),
    raw(b"", line=b"POST /raw HTTP/1.1"),
    raw(_BODY, line=_RAW) + raw(b"second", line=_RAW),
    raw(_BODY, line=_RAW) + raw(b"", line=b"GET /raw HTTP/1.1", framed=True),
    raw(b"", line=b"GET /health HTTP/1.1", framed=True) + raw(_BODY, line=_RAW),
    raw(chunks(_BODY), CHUNKED, line=_RAW, framed=True) + raw(b"second", line=_RAW),
)
_SPECIAL: Final = (
    *(b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r\n", b"\r\n\r\n", b"\r\n ", b"\r\n\t", b"\n\r"),
    *(b"\0", b" ", b"\t", b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xa0", b"\xff", b"\x1b"),
    *(bytes([byte]) for byte in b",;:=\"'#?/\\@-+_.[](){}%&*!~^`|<>0159afxX"),
    *(b"chunked", b"identity", b"close", b"0\r\n\r\n", b"5\r\n", b"HTTP/1.1", b"http://a"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n"),
    *(b"Connection: content-length\r\n", b"Content_Length: 5\r\n", b"Expect: 100-continue\r\n"),
)
_BOUNDARY: Final = re.compile(rb"(?<=[^0-9A-Za-z])|(?=[^0-9A-Za-z])")


class Mutator:
    """A stream of mutated requests; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._boundaries = {
            seed: [match.start() for match in _BOUNDARY.finditer(seed)] for seed in SEEDS
        }

    def next(self) -> bytes:
        """One to three mutations of one of the seeds."""
        rng = self._rng
        data = rng.choice(SEEDS)
        boundaries = self._boundaries[data]
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            near = rng.random() < 0.5
            at = rng.choice(boundaries) if near else rng.randrange(len(data) + 1)
            data = rng.choice(_MUTATIONS)(rng, data, min(at, len(data)))
        return data

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes in one to three reads."""
        cuts = sorted(self._rng.randrange(len(data) + 1) for _ in range(self._rng.randrange(3)))
        edges = [0, *cuts, len(data)]
        return [data[a:b] for a, b in pairwise(edges) if a < b]


def _insert(rng: Random, data: bytes, at: int) -> bytes:
    return data[:at] + rng.choice(_SPECIAL) + data[at:]


def _replace(rng: Random, data: bytes, at: int) -> bytes:
    return data[:at] + rng.choice(_SPECIAL) + data[at + 1 :]


def _delete(rng: Random, data: bytes, at: int) -> bytes:
    return data[:at] + data[at + rng.choice((1, 1, 1, 2, 3, 8)) :]


def _double(rng: Random, data: bytes, at: int) -> bytes:
    length = rng.choice((1, 1, 2, 4, 16))
    return data[: at + length] + data[at:]


def _double_line(rng: Random, data: bytes, at: int) -> bytes:
    lines = data.split(b"\r\n")
    index = rng.randrange(len(lines))
    return b"\r\n".join([*lines[: index + 1], *lines[index:]])


def _move_line(rng: Random, data: bytes, at: int) -> bytes:
    lines = data.split(b"\r\n")
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\r\n".join(lines)


def _turn_case(rng: Random, data: bytes, at: int) -> bytes:
    return data[:at] + data[at : at + 8].swapcase() + data[at + 8 :]


def _digit(rng: Random, data: bytes, at: int) -> bytes:
    digits = [match.start() for match in re.finditer(rb"[0-9]", data)]
    if not digits:
        return data
    place = rng.choice(digits)
    return (
        data[:place] + rng.choice((b"0", b"1", b"9", b"a", b"00", b"", b"-1")) + data[place + 1 :]
    )


def _cut(rng: Random, data: bytes, at: int) -> bytes:
    return data[:at]


_MUTATIONS: Final = (
    *(_insert, _insert, _insert, _replace, _replace, _delete, _delete, _double),
    *(_double_line, _move_line, _turn_case, _digit, _digit, _cut),
)
