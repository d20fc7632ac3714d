"""Finds, limits and validates the heads of HTTP messages, on both legs.

llhttp is strict about framing but accepts much else (`Transfer-Encoding` on HTTP/1.0, two
Host lines, odd versions, huge heads). So heads are parsed here, and all that is not
canonical is refused. Names are kept in lower case.
"""

import re
from typing import Final

from penstock.proxy.errors.client import (
    ClientError,
    ExpectationFailed,
    HeadersTooLarge,
    MalformedHttp,
    UnsupportedCoding,
    UnsupportedVersion,
)
from penstock.proxy.wire import native

Headers = list[tuple[bytes, bytes]]

HEADERS_MAX: Final = 128

_REQUEST_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]{1,8192}) HTTP/1\.([01])"
)
_OTHER_VERSION: Final = re.compile(rb"[A-Z]+ [\x21-\x7e]+ HTTP/(?!1\.[01]$)[0-9](\.[0-9])?")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([^\x00-\x1f\x7f]*))?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Maps bytes that a field may hold to 1, others to 0. There must be as many 0 bytes as CR and LF in
# the line ends between fields. Anything else is a control character or a bare line end, where
# parsers differ and smuggling begins. (A pattern costs 8 times as much.)
_TEXT: Final = bytes(byte == 9 or (byte >= 32 and byte != 127) for byte in range(256))
# Spellings of names seen before: most requests send the same dozen.
_names: Final[dict[bytes, bytes]] = {}
NAMES_MAX: Final = 1_024
NAME_BYTES_MAX: Final = 64
# 15 digits stay exact everywhere. No sign, no underscore, no list.
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
# An address in brackets or a name, then perhaps a port. No user, because it can hide the real host.
_ADDRESS: Final = rb"(?:\[[0-9A-Za-z.:~%_\-]+\]|[A-Za-z0-9._~%!$&'()*+,;=\-]+)"
_PORT: Final = rb"(?::[0-9]{0,5})?"
_HOST: Final = re.compile(rb"(?:" + _ADDRESS + _PORT + rb")?")
_ABSOLUTE: Final = re.compile(rb"https?://" + _ADDRESS + _PORT + rb"(/[^\s]*)?", re.I)

# As numbers, because searching for a byte takes ten times longer.
HASH: Final = 35
SPACE: Final = 32
# `Connection` may name headers to be dropped, but not these. Without them a request would lose its
# key or change its meaning on the way.
_NEVER_NOMINATED: Final = frozenset(
    {b"authorization", b"content-encoding", b"content-type", b"cookie", b"x-api-key"}
)
# These may come only once (except `Connection`): of two, each parser might obey another one.
_DECISIVE: Final = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"x-api-key",
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
_usual = native.FieldParser(_USUAL, _DECISIVE) if native.AVAILABLE else None
_PROTOCOL: Final = b"HTTP/1."
_NONE: Final[frozenset[bytes]] = frozenset()


class RequestHead:
    """A validated request head. `length` is None when the body is chunked.

    `credentials`: all keys that the client sent. They tell one client's requests from another's.
    """

    __slots__ = (
        "credentials",
        "expects_continue",
        "headers",
        "http11",
        "keep_alive",
        "length",
        "method",
        "nominated",
        "path",
        "size_bytes",
        "target",
        "tenant",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        path: bytes,
        http11: bool,
        headers: Headers,
        nominated: frozenset[bytes],
        length: int | None,
        keep_alive: bool,
        expects_continue: bool,
        credentials: bytes,
    ) -> None:
        self.method = method
        self.target = target
        self.path = path
        self.http11 = http11
        self.headers = headers
        self.nominated = nominated
        self.length = length
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.credentials = credentials
        self.size_bytes = 0  # counted while the request runs; 0 for an ordinary head
        self.tenant = ""  # the tenant whose key it has, set when it is accepted

    def get(self, name: bytes) -> bytes | None:
        """The first value of `name` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class ResponseHead:
    """A validated answer head. `length` is None if chunked or if it ends with the connection."""

    __slots__ = (
        "chunked",
        "content_type",
        "encoded",
        "headers",
        "keep_alive",
        "length",
        "nominated",
        "reason",
        "status",
    )

    def __init__(
        self,
        status: int,
        reason: bytes,
        headers: Headers,
        nominated: frozenset[bytes],
        length: int | None,
        chunked: bool,
        keep_alive: bool,
        content_type: bytes,
        encoded: bool,
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.nominated = nominated
        self.length = length
        self.chunked = chunked
        self.keep_alive = keep_alive
        self.content_type = content_type
        self.encoded = encoded


def parse_request_head(block: bytes) -> RequestHead:
    """Validate a head (without its final empty line). Raises a ClientError."""
    line, _, fields = block.partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        if _OTHER_VERSION.fullmatch(line):
            raise UnsupportedVersion
        raise MalformedHttp("The request line is malformed.")
    method, target, minor = match.groups()
    http11 = minor == b"1"
    headers, decisive = _parse_fields(fields)
    host = decisive.get(b"host")
    if (host is None and http11) or (host is not None and not _HOST.fullmatch(host)):
        raise MalformedHttp("Exactly one valid Host header is needed.")
    expect = decisive.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise ExpectationFailed
    nominated = _nominated(decisive)
    target = _origin_form(target)
    return RequestHead(
        method,
        target,
        target.partition(b"?")[0],
        http11,
        headers,
        nominated,
        _request_length(decisive, http11),
        http11 and b"close" not in nominated,
        http11 and expect is not None,
        _credentials(decisive),
    )


def bare_line_end(part: bytes) -> bool:
    """Whether the beginning of a head holds a CR or an LF that is not part of a CR LF.

    Such a head might never end, so it is refused before its end.
    """
    pairs = part.count(b"\r\n")
    # A CR at the end may be half of a pair.
    return part.count(b"\n") != pairs or part.count(b"\r") - part.endswith(b"\r") != pairs


def unfit_beginning(part: bytes, limit_bytes: int, fit_bytes: int = 0) -> ClientError | None:
    """Why an unfinished request head is refused already. None if it is not.

    `fit_bytes`: so many of its first bytes were found fit before.
    """
    if len(part) >= limit_bytes:
        return HeadersTooLarge()
    if part and part != b"\r" and not part[:1].isalpha():  # TLS, for example
        return MalformedHttp("Use HTTP/1.1 without TLS on this port.")
    begin = fit_bytes
    if fit_bytes and part[fit_bytes - 1 : fit_bytes] == b"\r":  # half of a pair
        begin -= 1
    if bare_line_end(part[begin:]):  # its end might never come
        return MalformedHttp("Lines must end in CR LF.")
    return None


def begins_answer(part: bytes) -> bool:
    """Whether bytes without the end of a head can be the beginning of an answer."""
    return part.startswith(_PROTOCOL[: len(part)]) and not bare_line_end(part)


def parse_response_head(block: bytes) -> ResponseHead:
    """Validate a backend's head. Raises MalformedHttp."""
    line, _, fields = block.partition(b"\r\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise MalformedHttp
    minor, status, reason = match.groups()
    http11 = minor == b"1"
    headers, decisive = _parse_fields(fields)
    length = _length(decisive)
    coding = decisive.get(b"transfer-encoding")
    if coding is not None and (length is not None or coding.lower() != b"chunked" or not http11):
        raise MalformedHttp
    nominated = _nominated(decisive)
    return ResponseHead(
        int(status),
        reason or b"",
        headers,
        nominated,
        length,
        coding is not None,
        http11 and b"close" not in nominated,
        decisive.get(b"content-type", b"").partition(b";")[0].strip().lower(),
        decisive.get(b"content-encoding", b"identity").lower() != b"identity",
    )


def _parse_fields(fields: bytes) -> tuple[Headers, dict[bytes, bytes]]:
    if _usual is not None and (found := _usual.parse(fields)) is not None:
        return found
    return any_fields(fields)


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
            else:
                raise _repeated(name)
    return headers, decisive


def _field(line: bytes) -> tuple[bytes, bytes]:
    """A header line as (lower-case name, value)."""
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
    """The name in lower case, remembered. Raises on line folding and blanks.

    A full table is cleared. The usual names soon return, invented ones do not.
    """
    if not _NAME.fullmatch(name):
        raise MalformedHttp("A header line is malformed.")
    lower = name.lower()
    if len(name) <= NAME_BYTES_MAX:
        if len(_names) >= NAMES_MAX:
            _names.clear()
        _names[name] = lower
    return lower


def _repeated(name: bytes) -> ClientError:
    if name == b"transfer-encoding":
        return UnsupportedCoding()
    return MalformedHttp(f"The header {name.decode()} may be given only once.")


def _nominated(decisive: dict[bytes, bytes]) -> frozenset[bytes]:
    """The header names in `Connection`, in lower case."""
    value = decisive.get(b"connection")
    if value is None:
        return _NONE
    tokens = frozenset(token.strip() for token in value.lower().split(b","))
    return tokens - _NEVER_NOMINATED


def _credentials(decisive: dict[bytes, bytes]) -> bytes:
    """All keys that the client sent, empty if none."""
    authorization = decisive.get(b"authorization", b"")
    key = decisive.get(b"x-api-key")
    return authorization if key is None else authorization + b"\n" + key


def _length(decisive: dict[bytes, bytes]) -> int | None:
    value = decisive.get(b"content-length")
    if value is None:
        return None
    if not _LENGTH.fullmatch(value):
        raise MalformedHttp("Content-Length must be one plain number.")
    return int(value)


def _request_length(decisive: dict[bytes, bytes], http11: bool) -> int | None:
    """The number of body bytes. 0 without a body, None when it is chunked."""
    length = _length(decisive)
    coding = decisive.get(b"transfer-encoding")
    if coding is None:
        return length or 0
    if length is not None:
        raise MalformedHttp("Send Content-Length or Transfer-Encoding, not both.")
    if not http11:
        raise MalformedHttp("Transfer-Encoding needs HTTP/1.1.")
    if coding.lower() != b"chunked":
        raise UnsupportedCoding
    return None


def _origin_form(target: bytes) -> bytes:
    """The path and query of a target. A host in it is ignored."""
    if HASH in target:
        raise MalformedHttp("The request target must not have a fragment.")
    if target.startswith(b"/"):
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise MalformedHttp("The request target must be a path.")
    return match.group(1) or b"/"
