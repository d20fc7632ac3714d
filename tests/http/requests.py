"""The corpus, client side: requests that parsers read differently, and odd ones that are correct.

`HIDDEN` is what an attacker would have the backend take for a request.
"""

import orjson

from tests.http.case import CLOSE, RESET, Case, Step

HIDDEN = b"GET /v1/responses/hidden HTTP/1.1\r\nHost: x\r\nX-Request-Id: hidden\r\n\r\n"
LINE = b"POST /v1/completions HTTP/1.1"
HOST = b"Host: penstock"


def body_of(name: str) -> bytes:
    """A body of its own for each case."""
    return orjson.dumps({"prompt": name})


def raw(
    body: bytes,
    *fields: bytes,
    line: bytes = LINE,
    host: bytes = HOST,
    framed: bool = False,
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


def _lengths() -> list[Case]:
    """CL.TE, TE.CL, CL.0, duplicate and odd lengths."""
    odd = {
        "list": b"5, 5",
        "list of different ones": b"5, 6",
        "plus": b"+5",
        "minus": b"-5",
        "hex": b"0x5",
        "underscore": b"1_0",
        "empty": b"",
        "two words": b"5 5",
        "2^63": b"9223372036854775808",
        "2^64": b"18446744073709551616",
        "2^64+5": b"18446744073709551621",
        "2^32 and far": b"4294967301000000",
        "full-width": "５".encode(),
        "arabic": "٥".encode(),
        "superscript": "²".encode(),
        "float": b"5.0",
        "exponent": b"5e0",
        "comma": b"5,",
        "leading comma": b",5",
        "quoted": b'"5"',
        "semicolon": b"5;a=b",
        "octal": b"0o5",
        "L": b"5L",
    }
    cases = [
        refused(f"length {name}", raw(b"abcde" + HIDDEN, b"Content-Length: " + value, framed=True))
        for name, value in odd.items()
    ]
    five, zero = b"Content-Length: 5", b"Content-Length: 0"
    many = b"Content-Length: %d" % (5 + len(HIDDEN))
    te0, data = b"0\r\n\r\n" + HIDDEN, b"abcde" + HIDDEN
    both = {
        "CL.TE": (five, CHUNKED),
        "TE.CL": (CHUNKED, five),
        "CL.TE whole": (many, CHUNKED),
        "TE.CL zero": (CHUNKED, zero),
        "CL.TE case": (b"content-LENGTH: 5", b"TRANSFER-encoding: CHUNKED"),
        "CL.TE far apart": (five, b"X-A: b", b"X-B: c", CHUNKED),
        "TE.CL nominated length": (CHUNKED, five, b"Connection: content-length"),
        "CL.TE nominated coding": (five, CHUNKED, b"Connection: transfer-encoding"),
    }
    cases += [refused(n, raw(te0, *f, framed=True)) for n, f in both.items()]
    twice = {
        "two equal lengths": (five, five),
        "two lengths": (five, zero),
        "zero and a length": (zero, five),
        "two lengths of other case": (five, b"content-length: 6"),
    }
    cases += [refused(n, raw(data, *f, framed=True)) for n, f in twice.items()]
    return cases


def _codings() -> list[Case]:
    """TE.TE: whatever is not exactly one `chunked`."""
    body = b"0\r\n\r\n" + HIDDEN
    unsupported = {
        "unknown": b"xchunked",
        "chunked and identity": b"chunked, identity",
        "identity and chunked": b"identity, chunked",
        "gzip and chunked": b"gzip, chunked",
        "twice": b"chunked, chunked",
        "quoted": b'"chunked"',
        "single-quoted": b"'chunked'",
        "identity": b"identity",
        "parameter": b"chunked;q=1",
        "empty": b"",
        "comma": b"chunked,",
        "leading comma": b", chunked",
        "two words": b"chunked chunked",
        "latin": "chunkéd".encode("latin-1"),
        "long s": "ſhunked".encode(),
        "high space": b"chunked\xa0",
        "backslash": b"chun\\ked",
    }
    cases = [
        refused(
            f"coding {name}", raw(body, b"Transfer-Encoding: " + value, framed=True), status=501
        )
        for name, value in unsupported.items()
    ]
    cases.append(refused("two codings", raw(body, CHUNKED, CHUNKED, framed=True), status=501))
    cases.append(
        refused(
            "chunked and then identity",
            raw(body, CHUNKED, b"Transfer-Encoding: identity", framed=True),
            status=501,
        )
    )
    length = b"Content-Length: %d" % len(body)
    malformed = {
        "coding with a vertical tab": b"Transfer-Encoding: \x0bchunked",
        "coding with a form feed": b"Transfer-Encoding: \x0cchunked",
        "coding with a NUL": b"Transfer-Encoding: chunked\x00",
        "coding with a CR": b"Transfer-Encoding: chunked\r",
        "coding, space before colon": b"Transfer-Encoding : chunked",
        "coding, tab before colon": b"Transfer-Encoding\t: chunked",
        "coding, space before name": b" Transfer-Encoding: chunked",
        "coding, tab before name": b"\tTransfer-Encoding: chunked",
        "coding folded": b"Transfer-Encoding:\r\n chunked",
        "coding folded by a tab": b"Transfer-Encoding:\r\n\tchunked",
        "coding after a fold": b"X-A: b\r\n Transfer-Encoding: chunked",
        "coding after a bare LF": b"X-A: b\nTransfer-Encoding: chunked",
        "coding after a bare CR": b"X-A: b\rTransfer-Encoding: chunked",
        "coding, name with a NUL": b"Transfer-Encoding\x00: chunked",
        "coding, name not ASCII": "Transfer-Encod\u0131ng: chunked".encode() + b"\r\n: x",
        "coding without a colon": b"Transfer-Encoding chunked",
    }
    cases += [refused(n, raw(body, f, length, framed=True)) for n, f in malformed.items()]
    over10 = raw(body, CHUNKED, framed=True, line=b"POST /v1/completions HTTP/1.0")
    both = raw(body, CHUNKED, length, framed=True, line=b"POST /v1/completions HTTP/1.0")
    kept = raw(body, CHUNKED, b"Connection: keep-alive", framed=True, line=b"POST /raw HTTP/1.0")
    cases += [
        refused("coding over 1.0", over10),
        refused("coding and length over 1.0", both),
        refused("coding over 1.0 kept alive", kept),
    ]
    return cases


def _chunks() -> list[Case]:
    """TERM.EXT, EXT.TERM, and sizes that parsers read differently."""
    end = b"0\r\n\r\n" + HIDDEN
    bad = {
        "size with a sign": b"+5\r\nhello\r\n",
        "size negative": b"-5\r\nhello\r\n",
        "size with a prefix": b"0x5\r\nhello\r\n",
        "size with an underscore": b"1_0\r\nhello\r\n",
        "no size": b"\r\nhello\r\n",
        "size of nothing but an extension": b";a=b\r\nhello\r\n",
        "size over 64 bits": b"10000000000000005\r\nhello\r\n",
        "size of 17 f": b"fffffffffffffffff\r\nhello\r\n",
        "size not ASCII": "５\r\nhello\r\n".encode(),
        "size and garbage": b"5g\r\nhello\r\n",
        "data longer than said": b"5\r\nhello!\r\n",
        "data shorter than said": b"6\r\nhello\r\n",
        "bare LF after a size": b"5\nhello\r\n",
        "bare CR after a size": b"5\rhello\r\n",
        "LF CR after a size": b"5\n\rhello\r\n",
        "two CR after a size": b"5\r\r\nhello\r\n",
        "bare LF after data": b"5\r\nhello\n",
        "bare CR after data": b"5\r\nhello\r",
        "nothing after data": b"5\r\nhello",
        "other bytes after data": b"5\r\nhelloXX",
        "LF in an extension": b"5;a\nb\r\nhello\r\n",
        "CR in an extension": b"5;a\rb\r\nhello\r\n",
        "LF ends an extension": b"5;a\nhello\r\n",
        "NUL in an extension": b"5;a=\x00\r\nhello\r\n",
        "LF in a quoted extension": b'5;a="\n"\r\nhello\r\n',
        "CR LF in a quoted extension": b'5;a="\r\n"\r\nhello\r\n',
        "huge extension": b"5;" + b"x" * 300_000 + b"\r\nhello\r\n",
        "flood of extensions": b"1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\nx\r\n" * 3_000,
        "space after a size": b"5 \r\nhello\r\n",
        "tab after a size": b"5\t\r\nhello\r\n",
        "space before a size": b" 5\r\nhello\r\n",
        "vertical tab after a size": b"5\x0b\r\nhello\r\n",
    }
    cases = [refused(f"chunks, {n}", raw(b + end, CHUNKED, framed=True)) for n, b in bad.items()]
    last = {
        "huge trailer": b"0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        "many trailers": b"0\r\n" + b"x: y\r\n" * 2_000 + b"\r\n",
        "trailer without a colon": b"0\r\nno trailer\r\n\r\n",
        "trailer, space before colon": b"0\r\nx : y\r\n\r\n",
        "trailer with a bare LF": b"0\r\nx: y\nz: a\r\n\r\n",
        "trailer with a bare CR": b"0\r\nx: y\rz: a\r\n\r\n",
        "trailer with a NUL": b"0\r\nx: \x00\r\n\r\n",
        "trailer ends by LF": b"0\r\nx: y\r\n\n",
        "last chunk with LF": b"0\n\n",
        "last chunk then LF": b"0\r\n\n",
        "last chunk with garbage": b"0\r\nX",
        "trailer folded": b"0\r\nx: y\r\n z\r\n\r\n",
    }
    cases += [
        refused(f"chunks, {n}", raw(b"5\r\nhello\r\n" + b + HIDDEN, CHUNKED, framed=True))
        for n, b in last.items()
    ]
    return cases


def _lines() -> list[Case]:
    """Request lines, spaces, names, bare line ends."""
    good = raw(b"{}")
    line = b"POST /v1/completions HTTP/1.1"
    lines = {
        "two spaces": b"POST  /v1/completions HTTP/1.1",
        "two spaces before the version": b"POST /v1/completions  HTTP/1.1",
        "tab for a space": b"POST\t/v1/completions HTTP/1.1",
        "space at the end": line + b" ",
        "space at the start": b" " + line,
        "no version": b"POST /v1/completions",
        "no target": b"POST HTTP/1.1",
        "no method": b"/v1/completions HTTP/1.1",
        "small version": b"POST /v1/completions http/1.1",
        "long version": b"POST /v1/completions HTTP/1.10",
        "version with a space": b"POST /v1/completions HTTP/ 1.1",
        "other protocol": b"POST /v1/completions ICAP/1.1",
        "two targets": b"POST /v1/completions /v1/completions HTTP/1.1",
        "CR in the line": b"POST /v1/completions\r HTTP/1.1",
        "NUL in the target": b"POST /v1/completions\x00 HTTP/1.1",
        "DEL in the target": b"POST /v1/completions\x7f HTTP/1.1",
        "target not ASCII": "POST /v1/completions¿ HTTP/1.1".encode(),
        "fragment": b"POST /v1/completions#x HTTP/1.1",
        "asterisk": b"OPTIONS * HTTP/1.1",
        "CONNECT": b"CONNECT evil:443 HTTP/1.1",
        "user": b"POST @evil/v1/completions HTTP/1.1",
        "authority": b"POST evil/v1/completions HTTP/1.1",
        "absolute with a user": b"POST http://u:p@evil/v1/completions HTTP/1.1",
        "absolute of another scheme": b"POST ftp://evil/v1/completions HTTP/1.1",
        "absolute without a host": b"POST http:///v1/completions HTTP/1.1",
        "absolute with a backslash": b"POST http://evil\\@x/v1/completions HTTP/1.1",
        "query without a path": b"POST ?x HTTP/1.1",
        "method of junk": b"P(ST /v1/completions HTTP/1.1",
        "method with a NUL": b"PO\x00ST /v1/completions HTTP/1.1",
        "long method": b"P" * 50 + b" /v1/completions HTTP/1.1",
        "HTTP/0.9": b"GET /v1/models",
    }
    cases = [refused(f"line: {n}", raw(b"{}", line=each)) for n, each in lines.items()]
    versions = {
        "2.0": b"POST /v1/completions HTTP/2.0",
        "1.2": b"POST /v1/completions HTTP/1.2",
        "3": b"POST /v1/completions HTTP/3",
        "0.9": b"POST /v1/completions HTTP/0.9",
    }
    cases += [
        refused(f"version {n}", raw(b"{}", line=each), status=505) for n, each in versions.items()
    ]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    fields = {
        "obs-fold": b"X-A: b\r\n c",
        "obs-fold at the start": b" X-A: b",
        "obs-fold of nothing": b"X-A: b\r\n ",
        "space before the colon": b"X-A : b",
        "no colon": b"X-A",
        "no name": b": b",
        "space in a name": b"X A: b",
        "brackets in a name": b"X(A): b",
        "slash in a name": b"X/A: b",
        "at in a name": b"X@A: b",
        "quote in a name": b'X"A: b',
        "name not ASCII": "X-Ä: b".encode(),
        "NUL in a value": b"X-A: b\x00c",
        "NUL in a name": b"X-\x00A: b",
        "CR in a value": b"X-A: b\rX-B: c",
        "LF in a value": b"X-A: b\nX-B: c",
        "LF CR in a value": b"X-A: b\n\rX-B: c",
        "two CR": b"X-A: b\r\r\nX-B: c",
        "escape in a value": b"X-A: \x1b[31m",
        "DEL in a value": b"X-A: b\x7f",
        "bell in a value": b"X-A: \x07",
    }
    cases += [refused(f"field: {n}", raw(b"{}", each)) for n, each in fields.items()]
    cases += [
        refused("the preface of HTTP/2", preface, status=505),
        refused("LF alone ends no line", good.replace(b"\r\n", b"\n")),
        refused("LF alone ends no head", good.replace(b"\r\n\r\n", b"\n\n")),
        refused("one LF among CR LF", good.replace(b"\r\n", b"\n", 1)),
        refused("CR alone ends no line", good.replace(b"\r\n", b"\r", 1)),
        refused("CR alone ends no head", good.replace(b"\r\n\r\n", b"\r\r")),
        refused("two empty lines", b"\r\n\r\n" + good),
        refused("an empty line of LF", b"\n" + good),
        refused("a NUL ahead", b"\x00" + good),
        refused("TLS", bytes.fromhex("16030100c8010000c40303") + bytes(200)),
        refused("SSH", b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
        refused("SOCKS", b"\x05\x01\x00"),
        refused("PROXY protocol", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + good),
        refused("PROXY protocol 2", b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12) + good),
        refused("high bytes", bytes(range(128, 256))),
        refused("a large header", raw(b"{}", b"X-A: " + b"x" * 17_000), status=431),
        refused("many headers", raw(b"{}", *[b"X-A: b"] * 130), status=431),
        refused("an endless line", b"POST /" + b"x" * 20_000, status=431),
        refused("an endless head", b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 5_000, status=431),
        refused("a long target", raw(b"{}", line=b"POST /%b HTTP/1.1" % (b"x" * 9_000))),
    ]
    return cases


def _hosts() -> list[Case]:
    bad = {
        "no Host": b"",
        "two Hosts": b"Host: x\r\nHost: x",
        "two other Hosts": b"Host: x\r\nhost: evil",
        "Host with a path": b"Host: a/b",
        "Host with a user": b"Host: a@b",
        "Host with a space": b"Host: a b",
        "Hosts in one": b"Host: a, b",
        "Host with a query": b"Host: a?b",
        "Host with a fragment": b"Host: a#b",
        "Host with a backslash": b"Host: a\\b",
        "Host with a quote": b'Host: a"b',
        "Host not ASCII": "Host: é".encode(),
        "Host with a port of letters": b"Host: a:b",
        "Host with two ports": b"Host: a:1:2",
        "Host with an open bracket": b"Host: [::1",
        "Host with a bracket in it": b"Host: a[b]",
        "Host with a scheme": b"Host: http://a",
        "Host, space before colon": b"Host : a",
        "Host folded": b"Host: a\r\n b",
    }
    return [refused(f"host: {n}", raw(b"{}", host=each)) for n, each in bad.items()]


def _targets() -> list[Case]:
    """Paths that are on no list: 404, and the connection stays."""
    paths = [
        b"//v1/completions",
        b"/v1//completions",
        b"/v1/completions/",
        b"/v1/%63ompletions",
        b"/v1%2Fcompletions",
        b"/v1/./completions",
        b"/v1/x/../completions",
        b"/v1/%2e%2e/v1/completions",
        b"/V1/completions",
        b"/v1/completions;a=b",
        b"/v1/completions%00",
        b"/v1\\completions",
        b"/v1/responses/../../sleep",
        b"//evil/v1/completions",
        b"/@evil/v1/completions",
        b"http://evil/sleep",
        b"http://evil//v1/completions",
        b"/sleep",
        b"/metrics",
        b"/api/v1/backends",
    ]
    cases = []
    for path in paths:
        line = b"POST " + path + b" HTTP/1.1"
        cases.append(refused(f"path {path.decode()}", raw(b"{}", line=line), status=404))
    for method in (b"PUT", b"DELETE", b"PATCH", b"TRACE", b"post", b"POSTX", b"M-SEARCH"):
        line = method + b" /v1/completions HTTP/1.1"
        send = raw(b"", line=line, framed=True)
        cases.append(Case(f"method {method.decode()}", (send,), (404,)))
    return cases


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
            (
                raw(chunks(one), CHUNKED, framed=True),
                0.05,
                raw(two),
            ),
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
    add("absolute form of another host", line=b"POST http://other:81/v1/completions HTTP/1.1")
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
    cases.append(accepted(name, head, 0.02, body))
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
            "WebSocket is not spoken",
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


REQUESTS = [
    *_lengths(),
    *_codings(),
    *_chunks(),
    *_lines(),
    *_hosts(),
    *_targets(),
    *_halves(),
    *_pipelines(),
    *_unusual(),
    *_old_and_bare(),
]
