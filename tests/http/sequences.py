"""Halves of requests, several on one connection, and odd ones that are correct."""

from tests.http.case import CLOSE, RESET, Case
from tests.http.message import CHUNKED, HIDDEN, HOST, LINE, accepted, body_of, chunks, raw, refused


def _halves() -> list[Case]:
    """Requests that are begun and not ended."""
    good = raw(b'{"prompt":"half"}')
    whole = raw(chunks(b'{"prompt":"half"}'), CHUNKED, framed=True)
    return [
        Case("half: nothing", (0.01, CLOSE), (), closes=True),
        Case("half: a line, then FIN", (good[:20], 0.01, CLOSE), (), closes=True),
        Case("half: a head, then FIN", (good[:60], 0.01, CLOSE), (), closes=True),
        Case("half: a body, then FIN", (good[:-3], 0.01, CLOSE), (), closes=True),
        Case("half: a body, then reset", (good[:-3], 0.01, RESET), (), closes=True),
        Case("half: a chunk, then FIN", (whole[:-8], 0.01, CLOSE), (), closes=True),
        Case("half: no last chunk, then FIN", (whole[:-5], 0.01, CLOSE), (), closes=True),
        Case("half: half a last chunk, then FIN", (whole[:-2], 0.01, CLOSE), (), closes=True),
        refused("half: a head for ever", good[:40], status=408),
        refused("half: a body for ever", good[:-1], status=408),
        refused("half: no last chunk for ever", whole[:-2], status=408),
        refused(
            "half: a chunk of 2^64-1 bytes",
            raw(b"ffffffffffffffff\r\nhello\r\n" + HIDDEN, CHUNKED, framed=True),
            status=408,
        ),
    ]


def _pipelines() -> list[Case]:
    """Several requests on one connection, in whatever pieces they come."""
    one, two, three = (body_of(f"pipeline {i}") for i in range(3))
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    both = raw(one) + raw(two)
    split = tuple(bytes([byte]) for byte in raw(one) + raw(two))
    return [
        Case("pipeline of two", (both,), (200, 200), (one, two), correct=True),
        Case("pipeline byte by byte", split, (200, 200), (one, two), correct=True),
        Case(
            "pipeline of three", (both + raw(three),), (200,) * 3, (one, two, three), correct=True
        ),
        Case("pipeline, then junk", (raw(one) + b"\x00\r\n\r\n",), (200, 400), (one,), closes=True),
        Case(
            "pipeline, then a bad length",
            (raw(one) + raw(two, b"Content-Length: 5, 5", framed=True),),
            (200, 400),
            (one,),
            closes=True,
        ),
        Case(
            "pipeline with an unknown path",
            (raw(one) + raw(b"", line=b"GET /nothing HTTP/1.1", framed=True) + raw(two),),
            (200, 404, 200),
            (one, two),
            correct=True,
        ),
        Case(
            "pipeline with a local answer",
            (raw(one) + health + raw(two),),
            (200, 200, 200),
            (one, two),
            correct=True,
        ),
        Case(
            "pipeline after close",
            (raw(one, b"Connection: close") + raw(two),),
            (200,),
            (one,),
            closes=True,
        ),
        Case(
            "pipeline after 1.0",
            (raw(one, line=b"POST /v1/completions HTTP/1.0") + raw(two),),
            (200,),
            (one,),
            closes=True,
        ),
        Case(
            "pipeline after chunks",
            (raw(chunks(one), CHUNKED, framed=True), 0.05, raw(two)),
            (200, 200),
            (one, two),
            correct=True,
        ),
        # Where a second one begins in the same read is not known: it is not answered.
        Case(
            "pipeline in the read of the last chunk",
            (raw(chunks(one), CHUNKED, framed=True) + raw(two),),
            (200,),
            (one,),
            closes=True,
        ),
        Case("pipeline: more than the length", (raw(one) + b"x",), (200, 408), (one,), closes=True),
        Case(
            "pipeline: body of a GET is not the next request",
            (raw(HIDDEN, line=b"GET /health HTTP/1.1") + raw(two),),
            (200, 200),
            (two,),
            correct=True,
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
    cases.append(Case(**{**vars(case), "never": (b"host: other",)}))
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
    name = "odd: a length with zeros"
    body = body_of(name)
    zeros = raw(body, b"Content-Length: %015d" % len(body), framed=True)
    cases.append(accepted(name, zeros))
    name = "odd: spaces around a length"
    body = body_of(name)
    spaces = raw(body, b"Content-Length:  \t%d \t" % len(body), framed=True)
    cases.append(accepted(name, spaces))
    add_chunks("one chunk", chunks(plain))
    add_chunks("chunks of a byte", chunks(plain, 1))
    add_chunks("sizes in capitals", b"%X\r\n%b\r\n0\r\n\r\n" % (len(plain), plain))
    add_chunks("sizes with zeros", b"0000%x\r\n%b\r\n000\r\n\r\n" % (len(plain), plain))
    add_chunks("an extension", b"%x;a=b;c\r\n%b\r\n0;d\r\n\r\n" % (len(plain), plain))
    add_chunks("a quoted extension", b'%x;a="b;c"\r\n%b\r\n0\r\n\r\n' % (len(plain), plain))
    add_chunks("trailers", b"%x\r\n%b\r\n0\r\nX-A: b\r\nX-B:\r\n\r\n" % (len(plain), plain))
    add_chunks("announced trailers", chunks(plain), b"Trailer: X-A")
    name = "odd: chunked in capitals"
    capital = raw(chunks(plain), b"TRANSFER-ENCODING: Chunked", framed=True)
    cases.append(accepted(name, capital, body=plain))
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
    return Case(**{**vars(case), "target": target})


def _old_and_bare() -> list[Case]:
    """HTTP/1.0, expectations, requests without a body."""
    name = "old: HTTP/1.0"
    line = b"POST /v1/completions HTTP/1.0"
    cases = [
        accepted("old: HTTP/1.0", raw(body_of("old: HTTP/1.0"), line=line), closes=True),
        accepted("old: no Host", raw(body_of("old: no Host"), line=line, host=b""), closes=True),
        accepted(
            "old: kept alive",
            raw(body_of("old: kept alive"), b"Connection: keep-alive", line=line),
            closes=True,
        ),
        accepted(
            "old: an expectation is ignored",
            raw(body_of("old: an expectation is ignored"), b"Expect: 100-continue", line=line),
            closes=True,
        ),
        Case(
            "old: two Hosts",
            (raw(b"{}", line=line, host=b"Host: a\r\nHost: b"),),
            (400,),
            closes=True,
        ),
    ]
    name = "expect: waits for it"
    body = body_of(name)
    head = raw(body, b"Expect: 100-continue")[: -len(body)]
    case = accepted(name, head, 0.02, body)
    cases.append(Case(**{**vars(case), "never": (b"expect:",)}))
    name = "expect: in capitals"
    body = body_of(name)
    head = raw(body, b"Expect: 100-CONTINUE")[: -len(body)]
    cases.append(accepted(name, head, 0.02, body))
    cases += [
        refused("expect: something else", raw(b"{}", b"Expect: 200-ok"), status=417),
        refused("expect: two", raw(b"{}", *[b"Expect: 100-continue"] * 2)),
        refused(
            "expect: an unknown path",
            raw(b"{}", b"Expect: 100-continue", line=b"POST /sleep HTTP/1.1")[:-2],
            status=404,
        ),
        refused(
            "expect: too much",
            raw(b"", b"Expect: 100-continue", b"Content-Length: 99999999", framed=True),
            status=413,
        ),
        refused(
            "too much by its length",
            raw(b"", b"Content-Length: 999999999999999", framed=True),
            status=413,
        ),
        refused(
            "too much in chunks", raw(chunks(b"x" * 300_000), CHUNKED, framed=True), status=413
        ),
        Case(
            "bare: GET",
            (raw(b"", line=b"GET /raw HTTP/1.1", framed=True),),
            (200,),
            (b"",),
            target=b"/raw",
            methods=(b"GET",),
            correct=True,
        ),
        Case(
            "bare: HEAD here",
            (raw(b"", line=b"HEAD /health HTTP/1.1", framed=True),),
            (200,),
            methods=(b"HEAD",),
            correct=True,
        ),
        Case(
            "bare: HEAD of an unknown path",
            (raw(b"", line=b"HEAD /nothing HTTP/1.1", framed=True),),
            (404,),
            methods=(b"HEAD",),
        ),
        Case(
            "bare: POST without a length",
            (raw(b"", line=b"POST /raw HTTP/1.1", framed=True),),
            (200,),
            (b"",),
            target=b"/raw",
            correct=True,
        ),
        Case(
            "bare: a length of zero",
            (raw(b"", line=b"POST /raw HTTP/1.1"),),
            (200,),
            (b"",),
            target=b"/raw",
            correct=True,
        ),
        Case(
            "bare: no chunks",
            (raw(b"0\r\n\r\n", CHUNKED, line=b"POST /raw HTTP/1.1", framed=True),),
            (200,),
            (b"",),
            target=b"/raw",
            correct=True,
        ),
        Case(
            "bare: GET with a length of zero",
            (raw(b"", line=b"GET /raw HTTP/1.1"),),
            (200,),
            (b"",),
            target=b"/raw",
            methods=(b"GET",),
            correct=True,
        ),
        Case(
            "bare: GET with a body",
            (raw(HIDDEN, line=b"GET /raw HTTP/1.1"),),
            (200,),
            (HIDDEN,),
            target=b"/raw",
            methods=(b"GET",),
        ),
        Case(
            "WebSocket is not supported",
            (
                raw(
                    b"",
                    b"Connection: Upgrade",
                    b"Upgrade: websocket",
                    line=b"GET /v1/realtime?model=x HTTP/1.1",
                    framed=True,
                ),
            ),
            (426,),
            methods=(b"GET",),
            closes=True,
        ),
    ]
    return cases


SEQUENCES = [*_halves(), *_pipelines(), *_unusual(), *_old_and_bare()]
