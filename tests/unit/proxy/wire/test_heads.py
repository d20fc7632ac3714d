"""Heads: what is canonical passes, what two parsers might read differently is refused."""

import pytest

from penstock.proxy.errors.client import (
    ClientError,
    ExpectationFailed,
    HeadersTooLarge,
    MalformedHttp,
    UnsupportedCoding,
    UnsupportedVersion,
)
from penstock.proxy.wire.forwarded_head import forwarded_request_head
from penstock.proxy.wire.header_fields import HEADERS_MAX, KEY_BYTES_MAX, Remembered
from penstock.proxy.wire.heads import bare_line_end, parse_request_head, parse_response_head

LINE = b"POST /v1/completions HTTP/1.1\r\nhost: x"


def test_a_plain_head() -> None:
    head = parse_request_head(LINE + b"\r\nContent-Length: 12\r\nX-Odd:  two  words \r\nX-Empty:")
    assert (head.method, head.path, head.length) == (b"POST", b"/v1/completions", 12)
    assert head.get(b"x-odd") == b"two  words"
    assert head.get(b"x-empty") == b""
    assert head.keep_alive


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (b"", MalformedHttp),
        (b"GET /", MalformedHttp),
        (b"GET / HTTP/1.1 \r\nhost: x", MalformedHttp),
        (b"GET  / HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"G\xc3\xa9T / HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"GET / HTTP/2.0\r\nhost: x", UnsupportedVersion),
        (b"GET / HTTP/1.2\r\nhost: x", UnsupportedVersion),
        (b"PRI * HTTP/2.0", UnsupportedVersion),
        (b"GET / http/1.1\r\nhost: x", MalformedHttp),
        (b"GET * HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"CONNECT x:80 HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"GET @evil/ HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"GET ftp://x/ HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"GET /a#b HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"GET /\x00 HTTP/1.1\r\nhost: x", MalformedHttp),
        (b"GET / HTTP/1.1", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: x", MalformedHttp),
        (b"GET / HTTP/1.0\r\nhost: x\r\nhost: y", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: a b", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: x/y", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: u@x", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: x:y", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: x:1:2", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: [::1", MalformedHttp),
        (b"GET / HTTP/1.1\r\nhost: a[b]", MalformedHttp),
        (b"GET http:///a HTTP/1.1\r\nhost: x", MalformedHttp),
        (LINE + b"\r\ncontent-length: 5, 5", MalformedHttp),
        (LINE + b"\r\ncontent-length: 5\r\ncontent-length: 5", MalformedHttp),
        (LINE + b"\r\ncontent-length: +5", MalformedHttp),
        (LINE + b"\r\ncontent-length: -5", MalformedHttp),
        (LINE + b"\r\ncontent-length: 0x5", MalformedHttp),
        (LINE + b"\r\ncontent-length: 1_0", MalformedHttp),
        (LINE + b"\r\ncontent-length: ", MalformedHttp),
        (LINE + b"\r\ncontent-length: 18446744073709551617", MalformedHttp),
        (LINE + b"\r\ncontent-length: \xef\xbc\x95", MalformedHttp),
        (LINE + b"\r\ncontent-length: 5\r\ntransfer-encoding: chunked", MalformedHttp),
        (LINE + b"\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked", UnsupportedCoding),
        (LINE + b"\r\ntransfer-encoding: xchunked", UnsupportedCoding),
        (LINE + b"\r\ntransfer-encoding: gzip, chunked", UnsupportedCoding),
        (LINE + b"\r\ntransfer-encoding: chunked, identity", UnsupportedCoding),
        (LINE + b'\r\ntransfer-encoding: "chunked"', UnsupportedCoding),
        (LINE + b"\r\ntransfer-encoding: \x0bchunked", MalformedHttp),
        (LINE + b"\r\ntransfer-encoding : chunked", MalformedHttp),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked", MalformedHttp),
        (LINE + b"\r\nauthorization: a\r\nauthorization: b", MalformedHttp),
        (LINE + b"\r\nx-api-key: a\r\nX-Api-Key: a", MalformedHttp),
        (LINE + b"\r\napi-key: a\r\napi-key: b", MalformedHttp),
        (LINE + b"\r\nexpect: 200-ok", ExpectationFailed),
        (LINE + b"\r\nx: a\nb: c", MalformedHttp),
        (LINE + b"\r\nx: a\rb: c", MalformedHttp),
        (LINE + b"\r\nx: a\x00b", MalformedHttp),
        (LINE + b"\r\n folded", MalformedHttp),
        (LINE + b"\r\nx: a\r\n\tfolded", MalformedHttp),
        (LINE + b"\r\nno colon", MalformedHttp),
        (LINE + b"\r\n: no name", MalformedHttp),
        (LINE + b"\r\nbad name: x", MalformedHttp),
        (LINE + b"\r\nx\xc3\xa9: y", MalformedHttp),
    ],
)
def test_refused(block: bytes, error: type[ClientError]) -> None:
    with pytest.raises(error) as caught:
        parse_request_head(block)
    assert caught.value.closes


def test_the_number_of_headers_is_limited() -> None:
    fields = b"".join(b"\r\nx-%d: y" % i for i in range(HEADERS_MAX - 1))
    assert len(parse_request_head(LINE + fields).headers) == HEADERS_MAX
    with pytest.raises(HeadersTooLarge):
        parse_request_head(LINE + fields + b"\r\none: more")


def test_a_hostile_value_takes_linear_time() -> None:
    """64 KB of blanks before a bad end: a backtracking pattern would take minutes."""
    with pytest.raises(MalformedHttp):
        parse_request_head(LINE + b"\r\nx: " + b" \t" * 32_000 + b"\x00")


def test_an_absolute_target_routes_by_its_path_alone() -> None:
    head = parse_request_head(b"GET http://evil:1/v1/models?a=b HTTP/1.1\r\nhost: x")
    assert (head.target, head.path) == (b"/v1/models?a=b", b"/v1/models")
    assert parse_request_head(b"GET http://evil HTTP/1.1\r\nhost: x").target == b"/"


def test_http_1_0_closes_and_expects_nothing() -> None:
    head = parse_request_head(b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1")
    assert not head.keep_alive
    assert not head.expects_continue


def test_credentials_tell_clients_apart() -> None:
    fields = (
        b"",
        b"\r\nauthorization: a",
        b"\r\nx-api-key: b",
        b"\r\nauthorization: c\r\nx-api-key: b",
        b"\r\napi-key: b",
        b"\r\napi-key: b\r\nx-api-key: b",
    )
    told = [parse_request_head(LINE + each).credentials for each in fields]
    assert told == [b"", b"a", b"\nb", b"c\nb", b"\n\nb", b"\nb\nb"]


def forwarded(*fields: bytes, authorization: bytes | None = None) -> list[bytes]:
    head = parse_request_head(b"\r\n".join((LINE, *fields, b"content-length: 2")))
    sent = forwarded_request_head(
        head,
        prefix=b"/below",
        authority=b"10.0.0.1:8000",
        peer=b"192.0.2.7",
        added=[(b"x-request-id", b"id-1"), (b"x-vllm-priority", b"3")],
        length=2,
        authorization=authorization,
    )
    assert sent.endswith(b"\r\n\r\n")
    return sent[:-4].split(b"\r\n")


def test_only_canonical_framing_goes_on() -> None:
    assert forwarded(b"user-agent: curl") == [
        b"POST /below/v1/completions HTTP/1.1",
        b"host: 10.0.0.1:8000",
        b"user-agent: curl",
        b"accept-encoding: identity",
        b"via: 1.1 penstock",
        b"x-forwarded-for: 192.0.2.7",
        b"x-request-id: id-1",
        b"x-vllm-priority: 3",
        b"content-length: 2",
    ]


@pytest.mark.parametrize(
    "field",
    [
        b"connection: x-mine\r\nx-mine: 1",
        b"keep-alive: timeout=5",
        b"te: trailers",
        b"trailer: x",
        b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AA",
        b"proxy-authorization: Basic x",
        b"proxy-connection: keep-alive",
        b"accept-encoding: gzip",
        b"x-forwarded-for: 1.2.3.4",
        b"forwarded: for=1.2.3.4",
        b"x-forwarded-host: evil",
        b"x-forwarded-client-cert: By=x",
        b"x-real-ip: 1.2.3.4",
        b"X.Real_IP: 1.2.3.4",
        b"x_api_key: k",
        b"x.penstock.tenant: 1",
        b"transfer.encoding: chunked",
        b"x-penstock-anything: 1",
        b"X-Penstock_Tenant: 1",
        b"x-vllm-priority: -9",
        b"x_vllm_priority: -9",
        b"X-data-parallel-rank: 3",
        b"x_data-parallel_rank: 3",
        b"transfer_encoding: chunked",
        b"content_length: 9",
    ],
)
def test_never_forwarded(field: bytes) -> None:
    assert forwarded(field) == forwarded()


def test_the_clients_key_goes_on_and_the_pools_only_without_one() -> None:
    assert b"authorization: Bearer mine" in forwarded(
        b"authorization: Bearer mine", authorization=b"Bearer pool"
    )
    assert b"authorization: Bearer pool" in forwarded(authorization=b"Bearer pool")
    both = forwarded(b"authorization: Bearer mine", authorization=b"Bearer pool")
    assert sum(line.startswith(b"authorization") for line in both) == 1
    # Nominating it does not strip it: that would unauthenticate a request on its way.
    assert b"authorization: Bearer mine" in forwarded(
        b"connection: authorization", b"authorization: Bearer mine"
    )


def test_via_goes_on_with_ours_behind() -> None:
    assert b"via: 1.0 edge, 1.1 b, 1.1 penstock" in forwarded(b"via: 1.0 edge", b"via: 1.1 b")
    assert b"via: 1.1 penstock" in forwarded()


def test_a_nominated_coding_of_the_body_stays() -> None:
    fields = forwarded(b"connection: content-encoding", b"content-encoding: gzip")
    assert b"content-encoding: gzip" in fields


@pytest.mark.parametrize("host", [b"", b"x:", b"[::1]:80", b"[fe80::1%25eth0]", b"my_host.x:8080"])
def test_hosts_in_use(host: bytes) -> None:
    assert parse_request_head(b"GET / HTTP/1.1\r\nhost: " + host).get(b"host") == host


@pytest.mark.parametrize(
    ("part", "bare"),
    [
        (b"", False),
        (b"a", False),
        (b"a\r", False),
        (b"a\r\n", False),
        (b"a\r\nb\r", False),
        (b"a\n", True),
        (b"a\rb", True),
        (b"a\r\r", True),
        (b"a\r\r\n", True),
        (b"a\r\n\n", True),
    ],
)
def test_line_ends_that_are_none(part: bytes, bare: bool) -> None:
    assert bare_line_end(part) is bare


@pytest.mark.parametrize(
    "block",
    [
        b"HTTP/2 200 OK",
        b"HTTP/1.1 99 Odd",
        b"HTTP/1.1 600 Odd",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 200 O\x00K",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\nx: a\nb: c",
        b"HTTP/1.1 200 OK\r\nset-cookie: a\rb",
    ],
)
def test_a_backends_malformed_head_is_refused(block: bytes) -> None:
    with pytest.raises(ClientError):
        parse_response_head(block)


def test_a_backends_head() -> None:
    head = parse_response_head(
        b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close"
    )
    assert (head.status, head.content_type) == (200, b"text/event-stream")
    assert head.chunked
    assert not head.keep_alive
    assert not head.encoded
    assert parse_response_head(b"HTTP/1.1 200\r\ncontent-encoding: gzip").encoded


def test_what_is_remembered_of_usual_lines_stays_small_whatever_clients_invent() -> None:
    known: Remembered[int] = Remembered(100)
    for number in range(1_234):
        known.put(b"invented-%d" % number, number)
        assert 0 < len(known) <= 100
    assert known.get(b"invented-0") is None
    known.put(b"usual", 7)
    assert known.get(b"usual") == 7


def test_long_keys_are_not_remembered() -> None:
    known: Remembered[int] = Remembered(100)
    known.put(b"k" * KEY_BYTES_MAX, 1)
    known.put(b"k" * (KEY_BYTES_MAX + 1), 2)
    assert (len(known), known.get(b"k" * KEY_BYTES_MAX)) == (1, 1)
