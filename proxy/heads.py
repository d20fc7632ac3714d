"""Heads of HTTP messages: found, bounded and validated here, on both legs.

llhttp is strict about framing but lets much else pass (`Transfer-Encoding` on
HTTP/1.0, two Host lines, odd versions, huge heads), so the head is ours: what
is not canonical is refused, what must not be there is dropped, and only a head
that we wrote goes on. Names are kept in lower case.
"""

import re
from dataclasses import dataclass
from typing import Final

from proxy.errors import (
    ExpectationFailed,
    HeadersTooLarge,
    MalformedHttp,
    UnsupportedCoding,
    UnsupportedVersion,
)

Headers = list[tuple[bytes, bytes]]

HEADERS_MAX: Final = 128

_REQUEST_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]{1,8192}) HTTP/1\.([01])"
)
_OTHER_VERSION: Final = re.compile(rb"[A-Z]+ [\x21-\x7e]+ HTTP/(?!1\.[01]$)[0-9](\.[0-9])?")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([^\x00-\x1f\x7f]*))?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# What a field may hold besides its line ends. Taking these out must leave nothing
# but the CR LF pairs between fields: anything else is a control or a bare line
# end, where parsers differ and smuggling begins. (A pattern costs 8 times as much.)
_TEXT: Final = bytes(byte for byte in range(256) if byte == 9 or (byte >= 32 and byte != 127))
# Names seen, by their spelling: most requests send the same dozen.
_names: dict[bytes, bytes] = {}
NAMES_MAX: Final = 1_024
# 15 digits stay exact everywhere; no sign, no underscore, no list.
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]\-]*")
_ABSOLUTE: Final = re.compile(rb"https?://[A-Za-z0-9._~%!$&'()*+,;=:\[\]\-]+(/[^\s]*)?", re.I)

# Never forwarded, either way: they speak of one connection (RFC 9110 7.6.1), or
# of framing and coding, which are ours on each leg.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# What the client must not say for itself: routing of ours, and what vLLM obeys.
# Compared with `_` read as `-`, since some servers read them alike.
_OWN: Final = frozenset(
    {
        b"accept-encoding",
        b"forwarded",
        b"host",
        b"x-data-parallel-rank",
        b"x-forwarded-for",
        b"x-request-id",
        b"x-vllm-priority",
    }
)
_OWN_PREFIX: Final = b"x-penstock-"
# `Connection` may nominate what is to be dropped, but not these: that would
# unauthenticate or reinterpret a request on its way.
_NEVER_NOMINATED: Final = frozenset({b"authorization", b"content-type", b"cookie", b"x-api-key"})
_DECISIVE: Final = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"upgrade",
    }
)


@dataclass(slots=True)
class RequestHead:
    """A validated request head. `length` is None when the body is chunked."""

    method: bytes
    target: bytes
    path: bytes
    http11: bool
    headers: Headers
    nominated: set[bytes]
    length: int | None
    keep_alive: bool
    expects_continue: bool
    upgrade: bytes

    def get(self, name: bytes) -> bytes | None:
        """The first value of `name` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(slots=True)
class ResponseHead:
    """A validated answer head. `length` is None when chunked or until the end."""

    status: int
    reason: bytes
    http11: bool
    headers: Headers
    nominated: set[bytes]
    length: int | None
    chunked: bool
    keep_alive: bool
    content_type: bytes
    encoded: bool


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
    headers = _parse_fields(fields)
    framing = _Framing(headers)
    if framing.hosts > 1 or (http11 and framing.hosts == 0) or not _HOST.fullmatch(framing.host):
        raise MalformedHttp("Exactly one valid Host header is needed.")
    length = _request_length(framing, http11)
    if framing.expect and framing.expect.lower() != b"100-continue":
        raise ExpectationFailed
    target = _origin_form(target)
    return RequestHead(
        method=method,
        target=target,
        path=target.partition(b"?")[0],
        http11=http11,
        headers=headers,
        nominated=framing.nominated,
        length=length,
        keep_alive=http11 and not framing.close,
        expects_continue=http11 and bool(framing.expect),
        upgrade=framing.upgrade,
    )


def parse_response_head(block: bytes) -> ResponseHead:
    """Validate a backend's head. Raises MalformedHttp or UnsupportedCoding."""
    line, _, fields = block.partition(b"\r\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise MalformedHttp
    minor, status, reason = match.groups()
    http11 = minor == b"1"
    headers = _parse_fields(fields)
    framing = _Framing(headers)
    chunked = bool(framing.codings)
    if chunked and (framing.lengths or framing.codings != [b"chunked"] or not http11):
        raise MalformedHttp
    return ResponseHead(
        status=int(status),
        reason=reason or b"",
        http11=http11,
        headers=headers,
        nominated=framing.nominated,
        length=framing.length(),
        chunked=chunked,
        keep_alive=http11 and not framing.close,
        content_type=framing.content_type.partition(b";")[0].strip().lower(),
        encoded=framing.encoding not in (b"", b"identity"),
    )


def _parse_fields(fields: bytes) -> Headers:
    """Header lines to (lower-case name, value) pairs."""
    if not fields:
        return []
    lines = fields.split(b"\r\n")
    if fields.translate(None, _TEXT) != b"\r\n" * (len(lines) - 1):
        raise MalformedHttp("A header holds a control character or a bare line end.")
    if len(lines) > HEADERS_MAX:
        raise HeadersTooLarge
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise MalformedHttp("A header line is malformed.")
        headers.append((_names.get(name) or _name(name), value.strip(b" \t")))
    return headers


def _name(name: bytes) -> bytes:
    """The name in lower case, remembered. Raises on obs-fold and blanks."""
    if not _NAME.fullmatch(name):
        raise MalformedHttp("A header line is malformed.")
    lower = name.lower()
    if len(_names) < NAMES_MAX:
        _names[name] = lower
    return lower


class _Framing:
    """The headers that decide framing and connection, collected in one pass."""

    __slots__ = (
        "close",
        "codings",
        "content_type",
        "encoding",
        "expect",
        "host",
        "hosts",
        "lengths",
        "nominated",
        "upgrade",
    )

    def __init__(self, headers: Headers) -> None:
        self.host = self.expect = self.upgrade = self.content_type = self.encoding = b""
        self.hosts = 0
        self.close = False
        self.lengths: list[bytes] = []
        self.codings: list[bytes] = []
        self.nominated: set[bytes] = set()
        for name, value in headers:
            if name not in _DECISIVE:
                continue
            if name == b"content-type":
                self.content_type = value
            elif name == b"content-length":
                self.lengths.append(value)
            elif name == b"host":
                self.host = value
                self.hosts += 1
            elif name == b"connection":
                self.nominated.update(token.strip() for token in value.lower().split(b","))
            elif name == b"transfer-encoding":
                self.codings.append(value.lower())
            elif name == b"content-encoding":
                self.encoding = value.lower()
            elif name == b"expect":
                self.expect = value
            else:
                self.upgrade = value.lower()
        self.close = b"close" in self.nominated
        self.nominated -= _NEVER_NOMINATED

    def length(self) -> int | None:
        if not self.lengths:
            return None
        if len(self.lengths) > 1 or not _LENGTH.fullmatch(self.lengths[0]):
            raise MalformedHttp("Content-Length must be one plain number.")
        return int(self.lengths[0])


def _request_length(framing: _Framing, http11: bool) -> int | None:
    """Bytes of body, 0 without one, None when chunked."""
    length = framing.length()
    if not framing.codings:
        return length or 0
    if length is not None:
        raise MalformedHttp("Content-Length and Transfer-Encoding exclude each other.")
    if not http11:
        raise MalformedHttp("Transfer-Encoding needs HTTP/1.1.")
    if framing.codings != [b"chunked"]:
        raise UnsupportedCoding
    return None


def _origin_form(target: bytes) -> bytes:
    """The path and query of a target; its authority, if any, routes nothing."""
    if target.startswith(b"/"):
        if b"#" in target:
            raise MalformedHttp("The target holds a fragment.")
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None or b"#" in target:
        raise MalformedHttp("The target must be a path.")
    return match.group(1) or b"/"


def end_to_end(headers: Headers, nominated: set[bytes]) -> Headers:
    """The headers that may pass: without hop-by-hop ones and those `Connection` names."""
    if nominated:
        dropped = HOP_BY_HOP | nominated
        return [field for field in headers if field[0] not in dropped]
    return [field for field in headers if field[0] not in HOP_BY_HOP]


def forwarded_request_head(
    head: RequestHead,
    *,
    authority: bytes,
    peer: bytes,
    request_id: bytes,
    length: int,
    authorization: bytes | None,
) -> bytes:
    """The head that goes to a backend: canonical, with our framing.

    `authorization` is the pool's own, used when the client sent none.
    """
    parts = [head.method, b" ", head.target, b" HTTP/1.1\r\nhost: ", authority, b"\r\n"]
    authorized = False
    for name, value in end_to_end(head.headers, head.nominated):
        if name in _OWN or name.startswith(_OWN_PREFIX):
            continue
        if b"_" in name and _looks_owned(name.replace(b"_", b"-")):
            continue
        if name == b"authorization" or name == b"x-api-key":
            authorized = True
        parts += (name, b": ", value, b"\r\n")
    if authorization is not None and not authorized:
        parts += (b"authorization: ", authorization, b"\r\n")
    parts += (b"accept-encoding: identity\r\nx-forwarded-for: ", peer)
    parts += (b"\r\nx-request-id: ", request_id)
    if length or head.method == b"POST":
        parts.append(b"\r\ncontent-length: %d\r\n\r\n" % length)
    else:
        parts.append(b"\r\n\r\n")
    return b"".join(parts)


def _looks_owned(name: bytes) -> bool:
    """Whether a lenient backend may read this look-alike as a header that is not the client's."""
    return (
        name in _OWN
        or name.startswith(_OWN_PREFIX)
        or name in HOP_BY_HOP
        or name == b"authorization"
    )
