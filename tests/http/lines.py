"""Requests whose lines parsers read differently: fields, hosts, targets."""

from tests.http.case import Case
from tests.http.message import raw, refused


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
    """Paths that are on no list: 404; other methods: 405. The connection stays."""
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
        b"/v1/responses/a/b",
        b"/v1/responses/a%2Fcancel",
        b"/v1/responses//cancel",
        b"/sleep",
        b"/v1/load_lora_adapter",
        b"/reset_prefix_cache",
        b"/metrics",
        b"/livez",
        b"/api/v1/backends",
        b"/v1",
    ]
    cases = []
    for path in paths:
        line = b"POST " + path + b" HTTP/1.1"
        cases.append(refused(f"path {path.decode()}", raw(b"{}", line=line), status=404))
    for method in (b"PUT", b"DELETE", b"PATCH", b"TRACE", b"post", b"POSTX", b"M-SEARCH"):
        line = method + b" /v1/completions HTTP/1.1"
        send = raw(b"", line=line, framed=True)
        cases.append(Case(f"method {method.decode()}", (send,), (405,)))
    return cases


LINES = [*_lines(), *_hosts(), *_targets()]
