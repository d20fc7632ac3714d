"""Writes the head for a backend, and selects the headers of an answer for the client.

Only a head that penstock wrote is sent on. Headers of one connection are dropped, and so are those
that a client must not set. What becomes of a header is decided by its name, once for each name.
"""

from collections.abc import Callable
from typing import Final

from penstock.proxy.wire.header_fields import KEY_HEADERS, Headers, Remembered, lines_of
from penstock.proxy.wire.heads import RequestHead

# Never forwarded in either direction: they belong to one connection (RFC 9110 7.6.1), or to framing
# and coding, which penstock does itself on each leg.
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
# Headers that a client must not set: where it comes from, our routing, and what vLLM obeys. `_` and
# `.` are compared as `-`, because some servers read them alike.
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
_VIA_11: Final = b"1.1 penstock"
_VIA_10: Final = b"1.0 penstock"
# As numbers, because searching for a byte takes ten times longer.
UNDERSCORE: Final = 95
DOT: Final = 46
_DASHES: Final = bytes.maketrans(b"_.", b"--")
# Only penstock sets these headers of an answer. Those of a backend are dropped.
_OF_ANSWERS: Final = (
    b"access-control-",
    b"x-penstock-",
    b"x-request-id",
    b"request-id",
    b"location",
)


# What becomes of a header. As numbers: to look up a member of an enumeration costs a search.
DROPPED: Final = 0
PASSED: Final = 1
KEY: Final = 2  # passed if keys are forwarded
VIA: Final = 3  # ours is added to it


class Fates:
    """Remembers what a rule says of names."""

    def __init__(self, rule: Callable[[bytes], int]) -> None:
        self._rule = rule
        self._known: Remembered[int] = Remembered(1_024)

    def of(self, name: bytes) -> int:
        """The fate of a header with this name, in lower case."""
        fate = self._known.get(name)
        if fate is None:
            fate = self._rule(name)
            self._known.put(name, fate)
        return fate


def _to_backend(name: bytes) -> int:
    if name == b"via":
        return VIA
    if name in HOP_BY_HOP or name in _OWN or name.startswith(_OWN_PREFIXES):
        return DROPPED
    if (UNDERSCORE in name or DOT in name) and _looks_owned(name.translate(_DASHES)):
        return DROPPED
    return KEY if name in KEY_HEADERS else PASSED


def _to_client(name: bytes) -> int:
    dropped = name in HOP_BY_HOP or name.startswith(_OF_ANSWERS)
    return DROPPED if dropped else PASSED


_backend_fates: Final = Fates(_to_backend)
_client_fates: Final = Fates(_to_client)


def forwarded_answer_headers(headers: Headers, nominated: frozenset[bytes]) -> Headers:
    """The headers of an answer that may pass: not ours, and not named by `Connection`."""
    fates = _client_fates
    return [
        field
        for field in headers
        if fates.of(field[0]) == PASSED and not (nominated and field[0] in nominated)
    ]


def forwarded_request_head(
    head: RequestHead,
    *,
    authority: bytes,
    prefix: bytes,
    peer: bytes,
    added: Headers,
    length: int,
    authorization: bytes | None,
    forwards_key: bool = True,
) -> bytes:
    """The head for a backend: canonical, with our framing.

    `added` are headers of the proxy's own, which a client cannot set: they are in `_OWN`.
    `authorization` is the pool's own key. It is used if the client's is missing or not forwarded.
    """
    passed: Headers = []
    authorized = False
    via = b""
    fates, nominated = _backend_fates, head.nominated
    for field in head.headers:
        name = field[0]
        fate = fates.of(name)
        if fate == DROPPED or (nominated and name in nominated):
            continue
        if fate == VIA:
            via += field[1] + b", "
            continue
        if fate == KEY:
            if not forwards_key:
                continue
            authorized = True
        passed.append(field)
    if authorization is not None and not authorized:
        passed.append((b"authorization", authorization))
    passed.append((b"accept-encoding", b"identity"))
    passed.append((b"via", via + (_VIA_11 if head.http11 else _VIA_10)))
    passed.append((b"x-forwarded-for", peer))
    passed += added
    if length or head.method == b"POST":
        passed.append((b"content-length", b"%d" % length))
    line = b"%b %b%b HTTP/1.1" % (head.method, prefix, head.target)
    return b"%b\r\nhost: %b\r\n%b\r\n" % (line, authority, lines_of(passed))


def _looks_owned(name: bytes) -> bool:
    """Whether a lenient backend may read this name as a header that clients must not set."""
    return (
        name in _OWN or name.startswith(_OWN_PREFIXES) or name in HOP_BY_HOP or name in KEY_HEADERS
    )
