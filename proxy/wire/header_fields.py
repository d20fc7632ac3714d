"""Reads and writes the header lines of messages. Names are kept in lower case.

Usual lines are read in C where it is there (`c/`). Everything else is read here, and refused if it
is not canonical.
"""

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.proxy.errors.client import (
    HeadersTooLarge,
    MalformedHttp,
    UnsupportedCoding,
)
from penstock.proxy.wire import native

Headers = list[tuple[bytes, bytes]]

V = TypeVar("V")

HEADERS_MAX: Final = 128
KEY_BYTES_MAX: Final = 128


class Remembered(Generic[V]):
    """What was found of short bytes before: most messages have the same few lines.

    At most `entries_max` values, by keys of at most KEY_BYTES_MAX bytes. A full table is cleared.
    The usual entries soon return, and invented ones do not. So whoever fills it costs others one
    more look, and no memory.
    """

    __slots__ = ("_entries_max", "_known", "get")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._known: dict[bytes, V] = {}
        self.get: Callable[[bytes], V | None] = self._known.get  # a request looks a dozen times

    def __len__(self) -> int:
        return len(self._known)

    def put(self, key: bytes, value: V) -> None:
        """Remember a value, unless its key is long."""
        if len(key) > KEY_BYTES_MAX:
            return
        if len(self._known) >= self._entries_max:
            self._known.clear()
        self._known[key] = value


_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Maps bytes that a field may hold to 1, others to 0. There must be as many 0 bytes as CR and LF in
# the line ends between fields. Anything else is a control character or a bare line end, where
# parsers differ and smuggling begins. (A pattern costs 8 times as much.)
_TEXT: Final = bytes(byte == 9 or (byte >= 32 and byte != 127) for byte in range(256))
# Spellings of names seen before: most requests send the same dozen.
_names: Final[Remembered[bytes]] = Remembered(1_024)
# As a number, because searching for a byte takes ten times longer.
SPACE: Final = 32
# The headers in which clients send keys: OpenAI's, Anthropic's and Azure's.
KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
# These may come only once (except `Connection`): of two, each parser might obey another one.
_DECISIVE: Final = KEY_HEADERS | frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
    }
)
# The names of usual headers: bytes that are made once, and hashed once.
_USUAL: Final = (
    *_DECISIVE,
    *(b"accept", b"accept-encoding", b"accept-language", b"cache-control", b"cookie", b"date"),
    *(b"keep-alive", b"openai-organization", b"openai-project", b"origin", b"pragma", b"referer"),
    *(b"server", b"traceparent", b"tracestate", b"user-agent", b"vary", b"x-forwarded-for"),
    *(b"x-forwarded-proto", b"x-real-ip", b"x-request-id", b"x-request-timeout", b"x-session-id"),
    *(b"x-stainless-arch", b"x-stainless-async", b"x-stainless-lang", b"x-stainless-os"),
    *(b"x-stainless-package-version", b"x-stainless-raw-response", b"x-stainless-read-timeout"),
    *(b"x-stainless-retry-count", b"x-stainless-runtime", b"x-stainless-runtime-version"),
)
_usual: Final = native.FieldParser(_USUAL, _DECISIVE) if native.AVAILABLE else None
_lines_of: Final = native.lines_of if native.AVAILABLE else None


def parse_fields(fields: bytes) -> tuple[Headers, dict[bytes, bytes]]:
    """`any_fields`, in C if they are plainly right."""
    if _usual is not None and (found := _usual.parse(fields)) is not None:
        return found
    return any_fields(fields)


def lines_of(headers: Headers) -> bytes:
    """The lines of these fields, as they are: nothing is checked."""
    if _lines_of is not None:
        return _lines_of(headers)
    return b"".join([b"%b: %b\r\n" % field for field in headers])


def any_fields(fields: bytes) -> tuple[Headers, dict[bytes, bytes]]:
    """Header lines as (lower-case name, value) pairs, and the decisive ones by name.

    A decisive header may come only once. Several `Connection` headers are joined to one list.
    Raises a ClientError.
    """
    headers: Headers = []
    decisive: dict[bytes, bytes] = {}
    if not fields:
        return headers, decisive
    lines = fields.split(b"\r\n")
    if fields.translate(_TEXT).count(b"\x00") != 2 * (len(lines) - 1):
        raise MalformedHttp("A header holds a control character or a bare line end.")
    if len(lines) > HEADERS_MAX:
        raise HeadersTooLarge
    for line in lines:
        name, value = _field(line)
        headers.append((name, value))
        if name in _DECISIVE:
            if name not in decisive:
                decisive[name] = value
            elif name == b"connection":
                decisive[name] += b"," + value
            elif name == b"transfer-encoding":
                raise UnsupportedCoding
            else:
                raise MalformedHttp(f"The header {name.decode()} may be given only once.")
    return headers, decisive


def _field(line: bytes) -> tuple[bytes, bytes]:
    spelled, colon, value = line.partition(b": ")  # the usual spelling
    name = _names.get(spelled)
    if name is None:
        spelled, colon, value = line.partition(b":")
        name = _names.get(spelled) or _name(spelled)
    if not colon:
        raise MalformedHttp("A header line is malformed.")
    if value and (value[0] <= SPACE or value[-1] <= SPACE):
        value = value.strip(b" \t")
    return name, value


def _name(name: bytes) -> bytes:
    """The name in lower case, remembered. Raises on line folding and blanks."""
    if not _NAME.fullmatch(name):
        raise MalformedHttp("A header line is malformed.")
    lower = name.lower()
    _names.put(name, lower)
    return lower
