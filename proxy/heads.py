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
    ClientError,
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
NAME_BYTES_MAX: Final = 64
# 15 digits stay exact everywhere; no sign, no underscore, no list.
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
# An address in brackets or a name, then perhaps a port. No user: that is where hosts get confused.
_ADDRESS: Final = rb"(?:\[[0-9A-Za-z.:~%_\-]+\]|[A-Za-z0-9._~%!$&'()*+,;=\-]+)"
_PORT: Final = rb"(?::[0-9]{0,5})?"
_HOST: Final = re.compile(rb"(?:" + _ADDRESS + _PORT + rb")?")
_ABSOLUTE: Final = re.compile(rb"https?://" + _ADDRESS + _PORT + rb"(/[^\s]*)?", re.I)

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
# What the client must not say for itself: where it comes from, routing of ours, and
# what vLLM obeys. Compared with `_` and `.` read as `-`: some servers read them alike.
_OWN: Final = frozenset(
    {
        b"accept-encoding",
        b"forwarded",
        b"host",
        b"via",
        b"x-data-parallel-rank",
        b"x-real-ip",
        b"x-request-id",
        b"x-vllm-priority",
    }
)
_OWN_PREFIXES: Final = (b"x-forwarded-", b"x-penstock-")
_VIA_11: Final = b"1.1 penstock\r\n"
_VIA_10: Final = b"1.0 penstock\r\n"
# As numbers: to look for a byte takes ten times longer.
UNDERSCORE: Final = 95
DOT: Final = 46
HASH: Final = 35
_DASHES: Final = bytes.maketrans(b"_.", b"--")
_KEYS: Final = frozenset({b"authorization", b"x-api-key"})
# `Connection` may nominate what is to be dropped, but not these: that would
# unauthenticate or reinterpret a request on its way.
_NEVER_NOMINATED: Final = frozenset(
    {b"authorization", b"content-encoding", b"content-type", b"cookie", b"x-api-key"}
)
# May come once (`Connection` apart): two parsers might each obey another one.
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
_PROTOCOL: Final = b"HTTP/1."
_NONE: Final[frozenset[bytes]] = frozenset()


@dataclass(slots=True)
class RequestHead:
    """A validated request head. `length` is None when the body is chunked.

    `credentials` tell one client's requests from another's: whatever keys it sent.
    """

    method: bytes
    target: bytes
    path: bytes
    http11: bool
    headers: Headers
    nominated: frozenset[bytes]
    length: int | None
    keep_alive: bool
    expects_continue: bool
    credentials: bytes
    tenant: str = ""  # whose key it brought, once it is admitted

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
    headers: Headers
    nominated: frozenset[bytes]
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
    """Whether the beginning of a head holds a CR or an LF that is no part of a CR LF.

    Such a head may never end, so it is refused before it does.
    """
    pairs = part.count(b"\r\n")
    # The last CR may be half of a pair.
    return part.count(b"\n") != pairs or part.count(b"\r") - part.endswith(b"\r") != pairs


def unfit_beginning(part: bytes, limit_bytes: int) -> ClientError | None:
    """Why the beginning of a request's head is refused before it has ended, if it is."""
    if len(part) >= limit_bytes:
        return HeadersTooLarge()
    if part and part != b"\r" and not part[:1].isalpha():  # TLS, or worse
        return MalformedHttp("Speak HTTP/1.1 here, without TLS.")
    if bare_line_end(part):  # it might wait for its end for ever
        return MalformedHttp("Lines end in CR LF.")
    return None


def begins_answer(part: bytes) -> bool:
    """Whether bytes without the end of a head can be the beginning of an answer's."""
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
    """Header lines to (lower-case name, value) pairs, and the decisive ones by name.

    A decisive header may come once; a repeated `Connection` is one list.
    """
    headers: Headers = []
    decisive: dict[bytes, bytes] = {}
    if not fields:
        return headers, decisive
    lines = fields.split(b"\r\n")
    if fields.translate(None, _TEXT) != b"\r\n" * (len(lines) - 1):
        raise MalformedHttp("A header holds a control character or a bare line end.")
    if len(lines) > HEADERS_MAX:
        raise HeadersTooLarge
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise MalformedHttp("A header line is malformed.")
        name = _names.get(name) or _name(name)
        value = value.strip(b" \t")
        headers.append((name, value))
        if name in _DECISIVE:
            if name not in decisive:
                decisive[name] = value
            elif name == b"connection":
                decisive[name] += b"," + value
            else:
                raise _repeated(name)
    return headers, decisive


def _name(name: bytes) -> bytes:
    """The name in lower case, remembered. Raises on obs-fold and blanks.

    A full table is forgotten: the usual names are soon there again, others' inventions are not.
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
    return MalformedHttp(f"The header {name.decode()} may be given once.")


def _nominated(decisive: dict[bytes, bytes]) -> frozenset[bytes]:
    """What `Connection` names, in lower case."""
    value = decisive.get(b"connection")
    if value is None:
        return _NONE
    tokens = frozenset(token.strip() for token in value.lower().split(b","))
    return tokens - _NEVER_NOMINATED


def _credentials(decisive: dict[bytes, bytes]) -> bytes:
    """All keys that a client gave, empty without one."""
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
    """Bytes of body, 0 without one, None when chunked."""
    length = _length(decisive)
    coding = decisive.get(b"transfer-encoding")
    if coding is None:
        return length or 0
    if length is not None:
        raise MalformedHttp("Content-Length and Transfer-Encoding exclude each other.")
    if not http11:
        raise MalformedHttp("Transfer-Encoding needs HTTP/1.1.")
    if coding.lower() != b"chunked":
        raise UnsupportedCoding
    return None


def _origin_form(target: bytes) -> bytes:
    """The path and query of a target; its authority, if any, routes nothing."""
    if HASH in target:
        raise MalformedHttp("The target holds a fragment.")
    if target.startswith(b"/"):
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise MalformedHttp("The target must be a path.")
    return match.group(1) or b"/"


def end_to_end(headers: Headers, nominated: frozenset[bytes]) -> Headers:
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
    forwards_key: bool = True,
) -> bytes:
    """The head that goes to a backend: canonical, with our framing.

    `authorization` is the pool's own, used when the client's is not there or not forwarded.
    """
    parts = [head.method, b" ", head.target, b" HTTP/1.1\r\nhost: ", authority, b"\r\n"]
    authorized = False
    via = b""
    for name, value in end_to_end(head.headers, head.nominated):
        if name in _OWN or name.startswith(_OWN_PREFIXES):
            if name == b"via":
                via += value + b", "
            continue
        if (UNDERSCORE in name or DOT in name) and _looks_owned(name.translate(_DASHES)):
            continue
        if name in _KEYS:
            if not forwards_key:
                continue
            authorized = True
        parts += (name, b": ", value, b"\r\n")
    if authorization is not None and not authorized:
        parts += (b"authorization: ", authorization, b"\r\n")
    parts += (b"accept-encoding: identity\r\nvia: ", via, _VIA_11 if head.http11 else _VIA_10)
    parts += (b"x-forwarded-for: ", peer, b"\r\nx-request-id: ", request_id)
    if length or head.method == b"POST":
        parts.append(b"\r\ncontent-length: %d\r\n\r\n" % length)
    else:
        parts.append(b"\r\n\r\n")
    return b"".join(parts)


def _looks_owned(name: bytes) -> bool:
    """Whether a lenient backend may read this look-alike as a header that is not the client's."""
    return name in _OWN or name.startswith(_OWN_PREFIXES) or name in HOP_BY_HOP or name in _KEYS
