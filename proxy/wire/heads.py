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
from penstock.proxy.wire.header_fields import KEY_HEADERS, Headers, Remembered, parse_fields

_REQUEST_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]{1,8192}) HTTP/1\.([01])"
)
_OTHER_VERSION: Final = re.compile(rb"[A-Z]+ [\x21-\x7e]+ HTTP/(?!1\.[01]$)[0-9](\.[0-9])?")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([^\x00-\x1f\x7f]*))?")
# Numbers of so many digits are exact in every parser.
LENGTH_DIGITS_MAX: Final = 15
# Lines and hosts that were valid before.
_request_lines: Final[Remembered[tuple[bytes, bytes, bytes, bool]]] = Remembered(256)
_status_lines: Final[Remembered[tuple[bool, int, bytes]]] = Remembered(256)
_hosts: Final[Remembered[bytes]] = Remembered(256)
# An address in brackets or a name, then perhaps a port. No user, because it can hide the real host.
_ADDRESS: Final = rb"(?:\[[0-9A-Za-z.:~%_\-]+\]|[A-Za-z0-9._~%!$&'()*+,;=\-]+)"
_PORT: Final = rb"(?::[0-9]{0,5})?"
_HOST: Final = re.compile(rb"(?:" + _ADDRESS + _PORT + rb")?")
_ABSOLUTE: Final = re.compile(rb"https?://" + _ADDRESS + _PORT + rb"(/[^\s]*)?", re.I)

# As a number, because searching for a byte takes ten times longer.
HASH: Final = 35
# `Connection` may name headers to be dropped, but not these. Without them a request would lose its
# key or change its meaning on the way.
_NEVER_NOMINATED: Final = KEY_HEADERS | frozenset({b"content-encoding", b"content-type", b"cookie"})
_OTHER_NAMES: Final = {b"x-gzip": b"gzip"}  # of content codings (RFC 9110 8.4.1)
_PROTOCOL: Final = b"HTTP/1."
_JSON: Final = b"application/json"
_NONE: Final[frozenset[bytes]] = frozenset()


class RequestHead:
    """A validated request head. `length` is None when the body is chunked.

    `credentials`: all keys that the client sent. They tell one client's requests from another's.
    `coding`: the content coding of the body, in lower case. Empty: none.
    """

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
        coding: bytes = b"",
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
        self.coding = coding
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
    method, target, path, http11 = _request_lines.get(line) or _request_line(line)
    headers, decisive = parse_fields(fields)
    host = decisive.get(b"host")
    if (host is None and http11) or (host is not None and not _is_host(host)):
        raise MalformedHttp("Exactly one valid Host header is needed.")
    expect = decisive.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise ExpectationFailed
    nominated = _nominated(decisive)
    return RequestHead(
        method,
        target,
        path,
        http11,
        headers,
        nominated,
        _request_length(decisive, http11),
        http11 and b"close" not in nominated,
        http11 and expect is not None,
        _credentials(decisive),
        _coding(decisive),
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
    http11, status, reason = _status_lines.get(line) or _status_line(line)
    headers, decisive = parse_fields(fields)
    length = _length(decisive)
    coding = decisive.get(b"transfer-encoding")
    if coding is not None and (length is not None or coding.lower() != b"chunked" or not http11):
        raise MalformedHttp
    nominated = _nominated(decisive)
    return ResponseHead(
        status,
        reason,
        headers,
        nominated,
        length,
        coding is not None,
        http11 and b"close" not in nominated,
        _media_type(decisive.get(b"content-type", b"")),
        decisive.get(b"content-encoding", b"identity").lower() != b"identity",
    )


def _request_line(line: bytes) -> tuple[bytes, bytes, bytes, bool]:
    """(method, target, path, whether it is HTTP/1.1). Raises a ClientError."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        if _OTHER_VERSION.fullmatch(line):
            raise UnsupportedVersion
        raise MalformedHttp("The request line is malformed.")
    method, target, minor = match.groups()
    target = _origin_form(target)
    read = (method, target, target.partition(b"?")[0], minor == b"1")
    _request_lines.put(line, read)
    return read


def _status_line(line: bytes) -> tuple[bool, int, bytes]:
    """(whether it is HTTP/1.1, status, reason). Raises MalformedHttp."""
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise MalformedHttp
    minor, status, reason = match.groups()
    read = (minor == b"1", int(status), reason or b"")
    _status_lines.put(line, read)
    return read


def _is_host(host: bytes) -> bool:
    if _hosts.get(host) is not None:
        return True
    if not _HOST.fullmatch(host):
        return False
    _hosts.put(host, host)
    return True


def _media_type(value: bytes) -> bytes:
    if value == _JSON:  # the usual one
        return value
    return value.partition(b";")[0].strip().lower()


def _nominated(decisive: dict[bytes, bytes]) -> frozenset[bytes]:
    value = decisive.get(b"connection")
    if value is None:
        return _NONE
    tokens = frozenset(token.strip() for token in value.lower().split(b","))
    return tokens - _NEVER_NOMINATED


def _credentials(decisive: dict[bytes, bytes]) -> bytes:
    authorization = decisive.get(b"authorization", b"")
    key, azure_key = decisive.get(b"x-api-key"), decisive.get(b"api-key")
    if azure_key is not None:
        return b"%b\n%b\n%b" % (authorization, key or b"", azure_key)
    return authorization if key is None else authorization + b"\n" + key


def _coding(decisive: dict[bytes, bytes]) -> bytes:
    coding = decisive.get(b"content-encoding")
    if coding is None:
        return b""
    coding = coding.lower()
    return b"" if coding == b"identity" else _OTHER_NAMES.get(coding, coding)


def _length(decisive: dict[bytes, bytes]) -> int | None:
    value = decisive.get(b"content-length")
    if value is None:
        return None
    if len(value) > LENGTH_DIGITS_MAX or not value.isdigit():  # no sign, no list
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
