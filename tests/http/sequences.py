"""Halves of requests, several on one connection, and odd ones that are correct."""

from dataclasses import replace
from typing import Any

from tests.http.case import CLOSE, RESET, Case, Steps
from tests.http.message import CHUNKED, HIDDEN, HOST, LINE, accepted, body_of, chunks, raw, refused


def _halves() -> list[Case]:
    """Requests that are begun and not ended."""
    good = raw(b'{"prompt":"half"}')
    whole = raw(chunks(b'{"prompt":"half"}'), CHUNKED, framed=True)
    huge = raw(b"ffffffffffffffff\r\nhello\r\n" + HIDDEN, CHUNKED, framed=True)
    ended: dict[str, Steps] = {
        "nothing": (0.01, CLOSE),
        "a line, then FIN": (good[:20], 0.01, CLOSE),
        "a head, then FIN": (good[:60], 0.01, CLOSE),
        "a body, then FIN": (good[:-3], 0.01, CLOSE),
        "a body, then reset": (good[:-3], 0.01, RESET),
        "a chunk, then FIN": (whole[:-8], 0.01, CLOSE),
        "no last chunk, then FIN": (whole[:-5], 0.01, CLOSE),
        "half a last chunk, then FIN": (whole[:-2], 0.01, CLOSE),
    }
    endless = {
        "a head for ever": good[:40],
        "a body for ever": good[:-1],
        "no last chunk for ever": whole[:-2],
        "a chunk of 2^64-1 bytes": huge,
    }
    return [
        *(Case(f"half: {name}", steps, (), closes=True) for name, steps in ended.items()),
        *(refused(f"half: {name}", sent, status=408) for name, sent in endless.items()),
    ]


def _pipelines() -> list[Case]:
    """Several requests on one connection, in whatever pieces they come."""
    one, two, three = (body_of(f"pipeline {i}") for i in range(3))
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    nothing = raw(b"", line=b"GET /nothing HTTP/1.1", framed=True)
    first, second = raw(one), raw(two)
    old = raw(one, line=b"POST /v1/completions HTTP/1.0")
    coded = raw(chunks(one), CHUNKED, framed=True)
    split = tuple(bytes([byte]) for byte in first + second)
    bare = raw(HIDDEN, line=b"GET /health HTTP/1.1")
    served: dict[str, tuple[Steps, tuple[int, ...], tuple[bytes, ...]]] = {
        " of two": ((first + second,), (200, 200), (one, two)),
        " byte by byte": (split, (200, 200), (one, two)),
        " of three": ((first + second + raw(three),), (200,) * 3, (one, two, three)),
        " with an unknown path": ((first + nothing + second,), (200, 404, 200), (one, two)),
        " with a local answer": ((first + health + second,), (200, 200, 200), (one, two)),
        " after chunks": ((coded, 0.05, second), (200, 200), (one, two)),
        ": body of a GET is not the next request": ((bare + second,), (200, 200), (two,)),
    }
    long = raw(two, b"Content-Length: 5, 5", framed=True)
    closed: dict[str, tuple[bytes, tuple[int, ...]]] = {
        ", then junk": (first + b"\x00\r\n\r\n", (200, 400)),
        ", then a bad length": (first + long, (200, 400)),
        " after close": (raw(one, b"Connection: close") + second, (200,)),
        " after 1.0": (old + second, (200,)),
        # Where a second one begins in the same read is not known: it is not answered.
        " in the read of the last chunk": (coded + second, (200,)),
        ": more than the length": (first + b"x", (200, 408)),
    }
    return [
        *(Case(f"pipeline{name}", *case, correct=True) for name, case in served.items()),
        *(
            Case(f"pipeline{name}", (sent,), answers, (one,), closes=True)
            for name, (sent, answers) in closed.items()
        ),
    ]


def _unusual() -> list[Case]:
    """Correct HTTP that few clients send: it must be served."""
    cases = []
    plain = b'{"prompt":"' + b"chunks " * 30 + b'"}'

    def add(name: str, *fields: bytes, line: bytes = LINE, host: bytes = HOST) -> None:
        send = raw(body_of(f"odd: {name}"), *fields, line=line, host=host)
        cases.append(accepted(f"odd: {name}", send))

    def add_chunks(name: str, coded: bytes, *fields: bytes) -> None:
        send = raw(coded, CHUNKED, *fields, framed=True)
        cases.append(accepted(f"odd: {name}", send, body=plain))

    add("plain")
    add("an empty line ahead", line=b"\r\nPOST /v1/completions HTTP/1.1")
    add("names in any case", b"cOnTeNt-TyPe: application/json", host=b"hOsT: x")
    add("no space after a colon", b"X-A:b")
    add("tabs around a value", b"X-A:\t b \t")
    add("a value of nothing", b"X-A:")
    add("a value of spaces", b"X-A:    ")
    add("colons in a value", b"X-A: b:c:d")
    add("a value in UTF-8", "X-A: größe".encode())
    add("a value in Latin-1", b"X-A: gr\xf6\xdfe")
    add("every character of a token", b"!#$%&'*+-.^_`|~09azAZ: b")
    add("a long value", b"X-A: " + b"x" * 12_000)
    add("a hundred headers", *[b"X-%d: b" % i for i in range(100)])
    add("a repeated header", b"X-A: b", b"X-A: c")
    add("a query", line=b"POST /v1/completions?a=b&c=%20 HTTP/1.1")
    add("an empty query", line=b"POST /v1/completions? HTTP/1.1")
    add("odd characters in a query", line=b'POST /v1/completions?{a}|"<>^`\\[] HTTP/1.1')
    add("a URL in a query", line=b"POST /v1/completions?u=http://a/b@c//d HTTP/1.1")
    add("absolute form", line=b"POST http://penstock/v1/completions HTTP/1.1")
    other = raw(body_of("odd: other host"), line=b"POST http://other:81/v1/completions HTTP/1.1")
    case = accepted("odd: other host", other)
    cases.append(replace(case, never=(b"host: other",)))
    add("absolute form in capitals", line=b"POST HTTP://X/v1/completions HTTP/1.1")
    add("an empty Host", host=b"Host:")
    add("a Host with a port", host=b"Host: penstock:8080")
    add("a Host of IPv6", host=b"Host: [::1]:8080")
    add("a Host with a zone", host=b"Host: [fe80::1%25eth0]")
    add("a Host with an underscore", host=b"Host: my_service.local")
    add("a Host with an empty port", host=b"Host: penstock:")
    add("keep-alive", b"Connection: keep-alive", b"Keep-Alive: timeout=5, max=100")
    add("an empty element in Connection", b"Connection: , keep-alive,,")
    add("Connection twice", b"Connection: keep-alive", b"Connection: x-a", b"X-A: b")
    add("TE", b"TE: trailers, deflate;q=0.5", b"Connection: TE")
    add(
        "an offered upgrade to h2c",
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    )
    add(
        "an offered upgrade to WebSocket",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
    )
    add("an offered upgrade to TLS", b"Connection: Upgrade", b"Upgrade: TLS/1.3")
    add("an expectation with its body", b"Expect: 100-continue")
    add("cookies", b"Cookie: a=b; c=d", b"Cookie: e=f")
    lengths = {"a length with zeros": b"%015d", "spaces around a length": b" \t%d \t"}
    for kind, value in lengths.items():
        body = body_of(name := f"odd: {kind}")
        length = b"Content-Length: " + value % len(body)
        cases.append(accepted(name, raw(body, length, framed=True)))
    add_chunks("one chunk", chunks(plain))
    add_chunks("chunks of a byte", chunks(plain, 1))
    add_chunks("sizes in capitals", b"%X\r\n%b\r\n0\r\n\r\n" % (len(plain), plain))
    add_chunks("sizes with zeros", b"0000%x\r\n%b\r\n000\r\n\r\n" % (len(plain), plain))
    add_chunks("an extension", b"%x;a=b;c\r\n%b\r\n0;d\r\n\r\n" % (len(plain), plain))
    add_chunks("a quoted extension", b'%x;a="b;c"\r\n%b\r\n0\r\n\r\n' % (len(plain), plain))
    add_chunks("trailers", b"%x\r\n%b\r\n0\r\nX-A: b\r\nX-B:\r\n\r\n" % (len(plain), plain))
    add_chunks("announced trailers", chunks(plain), b"Trailer: X-A")
    capital = raw(chunks(plain), b"TRANSFER-ENCODING: Chunked", framed=True)
    cases.append(accepted("odd: chunked in capitals", capital, body=plain))
    coded = raw(chunks(plain, 9), CHUNKED, framed=True)
    pieces = tuple(bytes([byte]) for byte in coded)
    cases.append(accepted("odd: chunks byte by byte", *pieces, body=plain))
    return [_with_target(case) for case in cases]


def _with_target(case: Case) -> Case:
    """The target that must arrive: the path and query as they were sent."""
    first = b"".join(step for step in case.send if isinstance(step, bytes)).lstrip(b"\r\n")
    target = first.split(b" ")[1]
    if b"://" in target.partition(b"?")[0]:
        target = b"/" + target.split(b"/", 3)[3]
    return replace(case, target=target)


def _old() -> list[Case]:
    """HTTP/1.0, and expectations."""
    line = b"POST /v1/completions HTTP/1.0"

    def old(name: str, *fields: bytes, **options: Any) -> Case:
        return accepted(name, raw(body_of(name), *fields, line=line, **options), closes=True)

    def expects(name: str, value: bytes) -> Case:
        body = body_of(name)
        head = raw(body, b"Expect: " + value)[: -len(body)]
        return replace(accepted(name, head, 0.02, body), never=(b"expect:",))

    sleep = raw(b"{}", b"Expect: 100-continue", line=b"POST /sleep HTTP/1.1")[:-2]
    large = raw(b"", b"Expect: 100-continue", b"Content-Length: 99999999", framed=True)
    return [
        old("old: HTTP/1.0"),
        old("old: no Host", host=b""),
        old("old: kept alive", b"Connection: keep-alive"),
        old("old: an expectation is ignored", b"Expect: 100-continue"),
        refused("old: two Hosts", raw(b"{}", line=line, host=b"Host: a\r\nHost: b")),
        expects("expect: waits for it", b"100-continue"),
        expects("expect: in capitals", b"100-CONTINUE"),
        refused("expect: something else", raw(b"{}", b"Expect: 200-ok"), status=417),
        refused("expect: two", raw(b"{}", *[b"Expect: 100-continue"] * 2)),
        refused("expect: an unknown path", sleep, status=404),
        refused("expect: too much", large, status=413),
        refused(
            "too much by its length",
            raw(b"", b"Content-Length: 999999999999999", framed=True),
            status=413,
        ),
        refused(
            "too much in chunks", raw(chunks(b"x" * 300_000), CHUNKED, framed=True), status=413
        ),
    ]


def _bare() -> list[Case]:
    """Requests without a body, or with one where none is usual."""
    get, post = b"GET /raw HTTP/1.1", b"POST /raw HTTP/1.1"
    websocket = (b"Connection: Upgrade", b"Upgrade: websocket")

    def bare(name: str, send: bytes, body: bytes = b"", **options: Any) -> Case:
        methods = (send.split(b" ")[0],) if send[:4] != b"POST" else ()
        told = {"target": b"/raw", "methods": methods, "correct": True, **options}
        return Case(f"bare: {name}", (send,), (200,), (body,), **told)

    def head(name: str, path: bytes, status: int, **options: Any) -> Case:
        send = raw(b"", line=b"HEAD " + path + b" HTTP/1.1", framed=True)
        return Case(f"bare: {name}", (send,), (status,), methods=(b"HEAD",), **options)

    upgrade = raw(b"", *websocket, line=b"GET /v1/realtime?model=x HTTP/1.1", framed=True)
    return [
        bare("GET", raw(b"", line=get, framed=True)),
        head("HEAD here", b"/health", 200, correct=True),
        head("HEAD of an unknown path", b"/nothing", 404),
        bare("POST without a length", raw(b"", line=post, framed=True)),
        bare("a length of zero", raw(b"", line=post)),
        bare("no chunks", raw(b"0\r\n\r\n", CHUNKED, line=post, framed=True)),
        bare("GET with a length of zero", raw(b"", line=get)),
        bare("GET with a body", raw(HIDDEN, line=get), HIDDEN, correct=False),
        Case("WebSocket is not supported", (upgrade,), (426,), methods=(b"GET",), closes=True),
    ]


SEQUENCES = [*_halves(), *_pipelines(), *_unusual(), *_old(), *_bare()]
