"""The corpus, backend side: answers that are broken, too long, unasked for, or odd and correct.

`SECRET` is what one client's answer holds and no other client's may.
"""

from itertools import product

from tests.http.case import CLOSE, CUT, RESET, Case, Steps
from tests.http.message import body_of, raw

SECRET = b"tenant-a-5f0c"
JSON = b"content-type: application/json\r\n"
TEXT = b"content-type: text/plain\r\n"
SSE = b"content-type: text/event-stream\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
BODY = b'{"a":"b"}'
# An answer that an attacker, or a confused server, would have the next client take.
UNASKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(SECRET) + 2,
    b'"' + SECRET + b'"',
)
TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def told(
    *fields: bytes, body: bytes = BODY, line: bytes = b"HTTP/1.1 200 OK", framed: bool = False
) -> bytes:
    """An answer; `framed`: the fields say where its body ends."""
    length = b"" if framed else b"content-length: %d\r\n" % len(body)
    return line + b"\r\n" + b"".join(fields) + length + b"\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST = b"0\r\n\r\n"
WHOLE = told(JSON)
CHUNKS = told(JSON, CHUNKED, body=chunk(BODY) + LAST, framed=True)


def bad(name: str, *script: bytes | float | str) -> Case:
    """An answer that is no HTTP: 502, in time, and nothing of it goes on."""
    return _case(name, script, (502,))


def again(name: str, *script: bytes | float | str) -> Case:
    """On a used connection it says nothing of the backend: it may be sent once more."""
    case = bad(name, *script)
    return Case(**{**vars(case), "script": case.script * 2, "twice": True})


def good(name: str, *script: bytes | float | str, body: bytes | None = BODY) -> Case:
    return _case(name, script, (200,), body=body, correct=True)


def _case(name: str, script: Steps, answers: tuple[int, ...], **options: object) -> Case:
    name = f"answer: {name}"
    sent = body_of(name)
    options.setdefault("never", (SECRET,))
    return Case(name, (raw(sent),), answers, (sent,), script=(script,), **options)  # type: ignore[arg-type]


def _framing() -> list[Case]:
    length = b"content-length: %d\r\n" % len(BODY)
    odd = {
        "length of letters": b"content-length: nine\r\n",
        "length with a sign": b"content-length: +9\r\n",
        "length negative": b"content-length: -1\r\n",
        "length in hex": b"content-length: 0x9\r\n",
        "length over 64 bits": b"content-length: 18446744073709551625\r\n",
        "length empty": b"content-length:\r\n",
        "a list of lengths": b"content-length: 9, 9\r\n",
        "two lengths": length + b"content-length: 8\r\n",
        "two equal lengths": length * 2,
        "length and coding": length + CHUNKED,
        "coding and length": CHUNKED + length,
        "unknown coding": b"transfer-encoding: xchunked\r\n",
        "gzip and chunked": b"transfer-encoding: gzip, chunked\r\n",
        "two codings": CHUNKED * 2,
        "coding with a vertical tab": b"transfer-encoding:\x0bchunked\r\n",
        "coding folded": b"transfer-encoding:\r\n chunked\r\n",
        "space before a colon": b"transfer-encoding : chunked\r\n",
        "no colon": b"what\r\n",
        "no name": b": x\r\n",
        "obs-fold": b"x-a: b\r\n c\r\n",
        "bare CR": b"x-a: b\rset-cookie: c\r\n",
        "bare LF": b"x-a: b\nset-cookie: c\r\n",
        "NUL": b"x-a: b\x00\r\n",
        "NUL in a name": b"x-\x00a: b\r\n",
        "escape": b"x-a: \x1b[2J\r\n",
        "too many headers": b"x-a: b\r\n" * 200,
    }
    cases = [
        bad(name, told(JSON, field, body=chunk(BODY) + LAST, framed=True))
        for name, field in odd.items()
    ]
    lines = {
        "HTTP/2": b"HTTP/2 200 OK",
        "HTTP/1.2": b"HTTP/1.2 200 OK",
        "HTTP/0.9": b"hello",
        "ICY": b"ICY 200 OK",
        "status of two digits": b"HTTP/1.1 20 OK",
        "status of four digits": b"HTTP/1.1 2000 OK",
        "status 600": b"HTTP/1.1 600 Odd",
        "status 000": b"HTTP/1.1 000 Odd",
        "status with a sign": b"HTTP/1.1 +20 OK",
        "no status": b"HTTP/1.1 OK",
        "two spaces": b"HTTP/1.1  200 OK",
        "tab": b"HTTP/1.1\t200 OK",
        "reason with a CR": b"HTTP/1.1 200 O\rK",
        "reason with a NUL": b"HTTP/1.1 200 O\x00K",
        "small letters": b"http/1.1 200 OK",
        "space ahead": b" HTTP/1.1 200 OK",
        "an empty line ahead": b"\r\nHTTP/1.1 200 OK",
    }
    cases += [bad(f"line: {name}", told(JSON, line=line)) for name, line in lines.items()]
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\ncontent-length: 5\r\n\r\nhello"
    te10 = told(JSON, CHUNKED, line=b"HTTP/1.0 200 OK", body=chunk(BODY) + LAST, framed=True)
    cases += [
        bad("coding over 1.0", te10),
        bad("line ends of LF", WHOLE.replace(b"\r\n", b"\n")),
        bad("garbage", b"\x00\xff\x00\xff"),
        bad("garbage of lines", b"garbage\r\n\r\n"),
        bad("a huge head", told(b"x-a: " + b"y" * 100_000 + b"\r\n")),
        bad("an endless head", b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000),
        bad("an upgrade nobody asked for", upgrade + UNASKED),
        bad("a flood of interim answers", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5_000, WHOLE),
        bad("an interim answer with a body", interim, WHOLE),
        again("nothing, then FIN", CLOSE),
        again("nothing, then reset", RESET),
        bad("half a line, then FIN", b"HTTP/1.1 20", CLOSE),
        bad("half a head, then FIN", WHOLE[:40], CLOSE),
        bad("half a head, then reset", WHOLE[:40], 0.01, RESET),
        bad("half a body, then FIN", WHOLE[:-3], CLOSE),
        bad("half a body, then reset", WHOLE[:-3], 0.01, RESET),
        bad("half the chunks, then FIN", CHUNKS[:-9], CLOSE),
        bad("no last chunk, then FIN", CHUNKS[:-5], CLOSE),
        bad("half a last chunk, then FIN", CHUNKS[:-2], CLOSE),
        bad("half a JSON until the close", told(JSON, body=BODY[:-2], framed=True), CLOSE),
    ]
    return cases


def _chunks() -> list[Case]:
    odd = {
        "size with a sign": b"+9\r\n" + BODY + b"\r\n",
        "size with a prefix": b"0x9\r\n" + BODY + b"\r\n",
        "size with garbage": b"9g\r\n" + BODY + b"\r\n",
        "no size": b"\r\n" + BODY + b"\r\n",
        "size over 64 bits": b"10000000000000009\r\n" + BODY + b"\r\n",
        "size ends by LF": b"9\n" + BODY + b"\r\n",
        "data ends by LF": b"9\r\n" + BODY + b"\n",
        "data is longer": b"8\r\n" + BODY + b"\r\n",
        "data is shorter": b"a\r\n" + BODY + b"\r\n",
        "huge extension": b"9;" + b"x" * 100_000 + b"\r\n" + BODY + b"\r\n",
        "LF in an extension": b"9;a\nb\r\n" + BODY + b"\r\n",
        "space after a size": b"9 \r\n" + BODY + b"\r\n",
    }
    cases = [
        bad(f"chunks: {name}", told(JSON, CHUNKED, body=body + LAST, framed=True))
        for name, body in odd.items()
    ]
    trailers = {"huge": b"x: " + b"y" * 100_000, "bad": b"bad trailer"}
    for name, trailer in trailers.items():
        body = chunk(BODY) + b"0\r\n" + trailer + b"\r\n\r\n"
        cases.append(bad(f"chunks: {name} trailer", told(JSON, CHUNKED, body=body, framed=True)))
    for kind, head in {"text": TEXT, "stream": SSE}.items():
        first = told(head, CHUNKED, body=chunk(TOKEN), framed=True)
        ends: dict[str, Steps] = {
            "a bad size": (b"zz\r\n",),
            "a FIN": (CLOSE,),
            "a reset": (RESET,),
            "half a chunk": (b"20\r\nhalf", CLOSE),
        }
        for name, rest in ends.items():
            # What was sent cannot be taken back: it must not look whole.
            cases.append(_case(f"{kind}, then {name}", (first, 0.02, *rest), (CUT,), closes=True))
    body = told(TEXT, b"content-length: 100\r\n", body=b"half", framed=True)
    cases.append(_case("text of a length, then FIN", (body, CLOSE), (CUT,), closes=True))
    return cases


def _surplus() -> list[Case]:
    """What a backend sends beyond an answer reaches nobody."""
    cases = []
    text = told(TEXT)
    stream = told(SSE, CHUNKED, body=chunk(TOKEN + DONE) + LAST, framed=True)
    bare = told(JSON, body=b"", line=b"HTTP/1.1 204 No Content", framed=True)
    unchanged = told(JSON, body=b"", line=b"HTTP/1.1 304 Not Modified", framed=True)
    for name, answer, status in (
        ("a length", WHOLE, 200),
        ("chunks", CHUNKS, 200),
        ("text", text, 200),
        ("a stream", stream, 200),
        ("204", bare, 204),
        ("304", unchanged, 304),
        ("an error", told(JSON, line=b"HTTP/1.1 400 Bad Request"), 400),
    ):
        for kind, surplus in {
            "an answer": UNASKED,
            "junk": SECRET,
            "an empty line": b"\r\n",
            "a chunk": chunk(SECRET) + LAST,
            "a timeout": b"HTTP/1.1 408 Request Timeout\r\nx: " + SECRET + b"\r\n\r\n",
        }.items():
            cases.append(_case(f"{name}, at once {kind}", (answer + surplus,), (status,)))
            later = (answer, 0.01, surplus)
            cases.append(_case(f"{name}, a moment later {kind}", later, (status,)))
    return cases


def _early() -> list[Case]:
    """A final answer while the request is still on its way: passed on, the connection dropped."""
    body = b'{"prompt":"' + b"early " * 30_000 + b'"}'
    large = told(JSON, line=b"HTTP/1.1 413 Too Large")
    return [
        Case(
            f"answer: early, {name}",
            (raw(body),),
            (status,),
            (body,),
            early=True,
            script=((answer,),),
            never=(SECRET,),
        )
        for name, status, answer in (
            ("to a large body", 413, large),
            ("then more", 200, WHOLE + UNASKED),
        )
    ]


def secret(names: tuple[bytes, ...]) -> list[bytes]:
    """Header lines that no client may see."""
    return [b"%b: %b\r\n" % (name, SECRET) for name in names]


def _unusual() -> list[Case]:
    """Correct answers that few servers send."""
    hops = (b"x-mine", b"keep-alive", b"proxy-authenticate", b"upgrade")
    own = (b"x-penstock-backend", b"x-request-id", b"access-control-allow-origin")
    zeros, extended = b"0009\r\n%b\r\n000\r\n\r\n" % BODY, b"9;a=b\r\n%b\r\n0;c\r\n\r\n" % BODY
    trailed, coded = chunk(BODY) + b"0\r\nx-a: b\r\n\r\n", b"content-encoding: gzip\r\n"
    kind, zip_, events = b"CONTENT-TYPE: application/json\r\n", b"\x1f\x8b\x08\x00", TOKEN + DONE
    close, length = b"connection: close\r\n", b"content-length: %d\r\n" % len(BODY)
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n"
    head, tail = CHUNKS.split(b"\r\n\r\n", 1)
    one = b"".join(chunk(bytes([byte])) for byte in BODY) + LAST
    whole, stream = chunk(BODY) + LAST, chunk(TOKEN) + chunk(DONE) + LAST
    keep = b"connection: keep-alive\r\n"
    pieces: list[bytes | float | str] = []
    for byte in CHUNKS:
        pieces += [bytes([byte]), 0.001]
    cases = [
        good("a length", WHOLE),
        good("chunks", CHUNKS),
        good("in two pieces", WHOLE[:30], 0.01, WHOLE[30:]),
        good("head and body apart", head + b"\r\n\r\n", 0.01, tail),
        good("byte by byte", *pieces),
        good("chunks of a byte", told(JSON, CHUNKED, body=one, framed=True)),
        good("until the close", told(JSON, framed=True), CLOSE),
        good("until the close, said", told(JSON, close, framed=True), CLOSE),
        good("text until the close", told(TEXT, framed=True), CLOSE),
        good("HTTP/1.0", told(JSON, line=b"HTTP/1.0 200 OK"), CLOSE),
        good("HTTP/1.0 until the close", told(JSON, line=b"HTTP/1.0 200 OK", framed=True), CLOSE),
        good("HTTP/1.0 kept alive", told(JSON, keep, line=b"HTTP/1.0 200 OK")),
        good("no reason", told(JSON, line=b"HTTP/1.1 200 ")),
        good("no reason and no space", told(JSON, line=b"HTTP/1.1 200")),
        good("a reason in UTF-8", told(JSON, line="HTTP/1.1 200 größe".encode())),
        good("a long reason", told(JSON, line=b"HTTP/1.1 200 " + b"o" * 500)),
        good("no type", told()),
        good("names in any case", told(kind, length.title(), framed=True)),
        good("chunked in capitals", told(JSON, CHUNKED.title(), body=whole, framed=True)),
        good("sizes with zeros", told(JSON, CHUNKED, body=zeros, framed=True)),
        good("an extension", told(JSON, CHUNKED, body=extended, framed=True)),
        good("trailers", told(JSON, CHUNKED, b"trailer: x-a\r\n", body=trailed, framed=True)),
        good("values in Latin-1", told(JSON, b"x-a: gr\xf6\xdfe\r\n")),
        good("no space after a colon", told(b"content-type:application/json\r\n")),
        good("close", told(JSON, close), CLOSE),
        good("close, and kept open", told(JSON, close)),
        good("keep-alive", told(JSON, keep, b"keep-alive: timeout=5\r\n")),
        good("a 100 that nobody asked for", b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE),
        good("hints ahead", hints, 0.01, hints + WHOLE),
        good("a length of zero", told(JSON, body=b""), body=b""),
        good("an encoded body", told(JSON, coded, body=zip_), body=zip_),
        # It never shows a `data:`. Held for one, it would be lost.
        good("an encoded stream", told(SSE, coded, body=zip_), body=zip_),
        good("a stream", told(SSE, CHUNKED, body=stream, framed=True), body=events),
        good("a stream of a length", told(SSE, body=events), body=events),
        good("a stream until the close", told(SSE, body=events, framed=True), CLOSE, body=events),
        good("hop-by-hop headers", told(JSON, b"connection: x-mine\r\n", *secret(hops))),
        good("penstock's own headers", told(JSON, *secret(own))),
    ]
    for status in (301, 302, 308, 502, 505, 520, 599):
        line = b"HTTP/1.1 %d Some" % status
        cases.append(bad(f"status {status}", told(JSON, b"location: https://x/\r\n", line=line)))
    for status in (201, 400, 404, 410, 418, 422, 501):
        answer = told(JSON, line=b"HTTP/1.1 %d Some" % status)
        cases.append(_case(f"status {status}", (answer,), (status,), body=BODY, correct=True))
    fields = {"bare": b"", "JSON": JSON, "a length": length}
    for status, (name, field) in product((204, 304), fields.items()):
        answer = told(field, line=b"HTTP/1.1 %d Some" % status, body=b"", framed=True)
        name = f"status {status}, {name}"
        cases.append(_case(name, (answer,), (status,), body=b"", correct=True))
    return cases


ANSWERS = [*_framing(), *_chunks(), *_surplus(), *_early(), *_unusual()]
