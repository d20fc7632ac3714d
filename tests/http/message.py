"""Requests of the corpus: how they are made, and what is expected of them.

`HIDDEN` is what an attacker would have the backend take for a request.
"""

import orjson

from tests.http.case import Case, Step

HIDDEN = b"GET /v1/responses/hidden HTTP/1.1\r\nHost: x\r\nX-Request-Id: hidden\r\n\r\n"
LINE = b"POST /v1/completions HTTP/1.1"
HOST = b"Host: penstock"


def body_of(name: str) -> bytes:
    """A body of its own for each case."""
    return orjson.dumps({"prompt": name})


def raw(
    body: bytes, *fields: bytes, line: bytes = LINE, host: bytes = HOST, framed: bool = False
) -> bytes:
    """A request; `framed`: the fields say where its body ends."""
    length = [] if framed else [b"Content-Length: %d" % len(body)]
    return b"\r\n".join([line, *([host] if host else []), *fields, *length, b"", body])


def chunks(body: bytes, size: int = 1 << 20) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"


CHUNKED = b"Transfer-Encoding: chunked"


def refused(name: str, *send: Step, status: int = 400) -> Case:
    return Case(name, send, (status,), closes=True)


def accepted(name: str, *send: Step, body: bytes | None = None, closes: bool = False) -> Case:
    arrive = (body_of(name) if body is None else body,)
    return Case(name, send, (200,), arrive, closes=closes, correct=True)
