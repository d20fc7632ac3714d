"""Writes the head for a backend, and selects the headers of an answer for the client.

Only a head that penstock wrote is sent on. Headers of one connection are dropped, and so are those
that a client must not set.
"""

from typing import Final

from penstock.proxy.wire.heads import Headers, RequestHead

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
_VIA_11: Final = b"1.1 penstock\r\n"
_VIA_10: Final = b"1.0 penstock\r\n"
# As numbers, because searching for a byte takes ten times longer.
UNDERSCORE: Final = 95
DOT: Final = 46
_DASHES: Final = bytes.maketrans(b"_.", b"--")
_KEYS: Final = frozenset({b"authorization", b"x-api-key"})


def end_to_end(headers: Headers, nominated: frozenset[bytes]) -> Headers:
    """The headers that may pass: not hop-by-hop, and not named by `Connection`."""
    if nominated:
        dropped = HOP_BY_HOP | nominated
        return [field for field in headers if field[0] not in dropped]
    return [field for field in headers if field[0] not in HOP_BY_HOP]


def forwarded_request_head(
    head: RequestHead,
    *,
    authority: bytes,
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
    parts += (b"x-forwarded-for: ", peer)
    for name, value in added:
        parts += (b"\r\n", name, b": ", value)
    if length or head.method == b"POST":
        parts.append(b"\r\ncontent-length: %d\r\n\r\n" % length)
    else:
        parts.append(b"\r\n\r\n")
    return b"".join(parts)


def _looks_owned(name: bytes) -> bool:
    """Whether a lenient backend may read this name as a header that clients must not set."""
    return name in _OWN or name.startswith(_OWN_PREFIXES) or name in HOP_BY_HOP or name in _KEYS
