"""Requests that are broken or hostile, over raw sockets.

Each gets the status and code that are promised, reaches no backend, and costs the connection
where its framing is in doubt. The key and the prompt that they carry show up nowhere.
"""

import asyncio

import pytest

from penstock.bench.sim.text import expected
from tests.e2e.wire import (
    BODY,
    HOST,
    PROMPT,
    Client,
    Guard,
    malformed,
    numbered,
    refuse_all,
    request,
)

# Framing ---------------------------------------------------------------------------------------

HIDDEN = b"GET /v1/responses/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTHS = {
    "list": b"5, 5",
    "plus": b"+5",
    "minus": b"-5",
    "hex": b"0x5",
    "underscore": b"1_0",
    "empty": b"",
    "two words": b"5 5",
    "2^64": b"18446744073709551616",
    "2^64+5": b"18446744073709551621",
    "full-width": "５".encode(),
    "superscript": "²".encode(),
    "float": b"5.0",
    "exponent": b"5e0",
    "comma": b"5,",
}
CODINGS = {
    "unknown": b"xchunked",
    "two": b"chunked, identity",
    "gzip": b"gzip, chunked",
    "twice": b"chunked, chunked",
    "quoted": b'"chunked"',
    "identity": b"identity",
    "parameter": b"chunked;q=1",
    "empty": b"",
    "comma": b"chunked,",
}


async def test_lengths_and_codings_that_parsers_read_differently(guard: Guard) -> None:
    server, penstock = await guard()
    cases = {
        f"length {name}": (request(b"Content-Length: " + value), 400, "invalid_request")
        for name, value in LENGTHS.items()
    } | {
        f"coding {name}": (request(b"Transfer-Encoding: " + value), 501, "unsupported")
        for name, value in CODINGS.items()
    }
    both = b"0\r\n\r\n" + HIDDEN
    te, cl = b"Transfer-Encoding: chunked", b"Content-Length: 5"
    cases |= malformed(
        {
            "length and coding": request(cl, te, body=both),
            "coding and length": request(te, cl, body=both),
            "two equal lengths": request(cl, cl, body=b"abcde" + HIDDEN),
            "two lengths": request(cl, b"Content-Length: 0", body=b"abcde" + HIDDEN),
            "vertical tab": request(b"Transfer-Encoding: \x0bchunked", body=both),
            "NUL": request(b"Transfer-Encoding: chunked\x00", body=both),
            "space before colon": request(b"Transfer-Encoding : chunked", cl, body=both),
            "space before name": request(b" Transfer-Encoding: chunked", cl, body=both),
            "folded coding": request(b"Transfer-Encoding:\r\n chunked", body=both),
            "folded length": request(b"Content-Length: 1\r\n 0", body=both),
            "coding over 1.0": request(te, body=both).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        }
    )
    two = request(te, te, body=both)
    cases["two codings"] = (two, 501, "unsupported")
    await refuse_all(penstock, cases)
    assert not server.seen


CHUNKS = {
    "sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "underscore": b"1_0\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "overflow": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "longer than said": b"5\r\nhello!\r\n0\r\n\r\n",
    "shorter than said": b"6\r\nhello\r\n0\r\n\r\n",
    "bare LF after size": b"5\nhello\r\n0\r\n\r\n",
    "bare LF after data": b"5\r\nhello\n0\r\n\r\n",
    "bare CR": b"5\rhello\r\n0\r\n\r\n",
    "LF in extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "NUL in extension": b"5;a=\x00\r\nhello\r\n0\r\n\r\n",
    "huge extension": b"5;" + b"x" * 1_000_000 + b"\r\nhello\r\n0\r\n\r\n",
    "flood of extensions": b"1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\nx\r\n" * 20_000,
    "huge trailer": b"5\r\nhello\r\n0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    "space after size": b"5 \r\nhello\r\n0\r\n\r\n",
    "space before size": b" 5\r\nhello\r\n0\r\n\r\n",
}


async def test_chunks_that_parsers_read_differently(guard: Guard) -> None:
    server, penstock = await guard()
    te = b"Transfer-Encoding: chunked"
    cases = {name: request(te, body=chunks) for name, chunks in CHUNKS.items()}
    await refuse_all(penstock, malformed(cases))
    assert not server.seen


async def test_a_read_of_nothing_but_line_ends_is_no_chunk(guard: Guard) -> None:
    """It comes in a read of its own, and ends there."""
    _, penstock = await guard()
    client = await Client.open(penstock, request(b"Transfer-Encoding: chunked", body=b""))
    await asyncio.sleep(0.2)
    client.send(b"\n" * 4_096)
    assert (await client.answer()).status == 400


async def test_canonical_chunks_become_a_length(guard: Guard) -> None:
    server, penstock = await guard()
    whole = b"%X;ext=1\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(BODY), BODY)
    single = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    client = await Client.open(penstock)
    for chunks in (whole, single):
        client.send(request(b"Transfer-Encoding: chunked", body=chunks))
        assert (await client.answer()).status == 200
        seen = server.seen[-1]
        assert seen.body == BODY
        assert seen.header("content-length") == str(len(BODY))
        assert not seen.header("transfer-encoding")
        assert not seen.header("trailer")


# Heads -----------------------------------------------------------------------------------------


async def test_heads_that_are_not_http(guard: Guard) -> None:
    server, penstock = await guard()
    good = request()
    line = good.partition(b"\r\n")[0]
    cases = {
        "no Host": request(host=b""),
        "two Hosts": request(host=HOST + HOST),
        "other Host": request(host=HOST + b"Host: evil\r\n"),
        "Host with a path": request(host=b"Host: a/b\r\n"),
        "Host with a user": request(host=b"Host: a@b\r\n"),
        "Host with a space": request(host=b"Host: a b\r\n"),
        "Host twice in one": request(host=b"Host: a, b\r\n"),
        "obs-fold": request(b"X-A: b\r\n c"),
        "space before colon": request(b"X-A : b"),
        "no colon": request(b"X-A"),
        "no name": request(b": b"),
        "bad name": request(b"X A: b"),
        "name in brackets": request(b"X(A): b"),
        "NUL in a value": request(b"X-A: b\x00c"),
        "NUL in a name": request(b"X-\x00A: b"),
        "CR in a value": request(b"X-A: b\rX-B: c"),
        "LF in a value": request(b"X-A: b\nX-B: c"),
        "DEL in a value": request(b"X-A: b\x7f"),
        "two spaces": good.replace(b" ", b"  ", 1),
        "tab for a space": good.replace(b" ", b"\t", 1),
        "space at the end": good.replace(line, line + b" ", 1),
        "no version": good.replace(b" HTTP/1.1", b"", 1),
        "small version": good.replace(b"HTTP/1.1", b"http/1.1", 1),
        "long version": good.replace(b"HTTP/1.1", b"HTTP/1.10", 1),
        "HTTP/0.9": b"GET /v1/models\r\n\r\n",
        "asterisk": request(path=b"*", method=b"OPTIONS", body=None),
        "CONNECT": request(path=b"evil:443", method=b"CONNECT", body=None),
        "user": request(path=b"@evil/v1/completions"),
        "authority": request(path=b"evil/v1/completions"),
        "absolute with a user": request(path=b"http://u:p@evil/v1/completions"),
        "other scheme": request(path=b"ftp://evil/v1/completions"),
        "fragment": request(path=b"/v1/completions#x"),
        "NUL in the path": request(path=b"/v1/completions\x00"),
        "not ASCII": request(path="/v1/completions¿".encode()),
        "method of junk": request(method=b"P(ST"),
        "long method": request(method=b"P" * 50),
        "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "junk": bytes(range(128, 256)),
    }
    await refuse_all(penstock, malformed(cases))
    versions = {
        "2.0": good.replace(b"HTTP/1.1", b"HTTP/2.0", 1),
        "1.2": good.replace(b"HTTP/1.1", b"HTTP/1.2", 1),
        "3": good.replace(b"HTTP/1.1", b"HTTP/3", 1),
        "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    }
    others = {
        **{name: (raw, 505, "unsupported") for name, raw in versions.items()},
        "expectation": (request(b"Expect: 200-ok"), 417, "unsupported"),
        "WebSocket": (
            request(
                b"Connection: Upgrade",
                b"Upgrade: websocket",
                path=b"/v1/realtime?model=x",
                method=b"GET",
                body=None,
            ),
            426,
            "unsupported",
        ),
        "large header": (request(b"X-A: " + b"x" * 70_000), 431, "headers_too_large"),
        "many headers": (request(*[b"X-A: b"] * 200), 431, "headers_too_large"),
        "endless head": (request()[:40] + b"x" * 70_000, 431, "headers_too_large"),
    }
    await refuse_all(penstock, others)
    assert not server.seen


async def test_line_feeds_alone_end_no_line(guard: Guard) -> None:
    server, penstock = await guard(timeouts={"client_head_s": 0.1})
    for raw in (request().replace(b"\r\n", b"\n"), request().replace(b"\r\n\r\n", b"\n\n")):
        client = await Client.open(penstock, raw)
        assert (await client.answer()).status in (400, 408)
        assert await client.rest() == b""
    assert not server.seen


async def test_an_empty_line_before_a_request_is_skipped(guard: Guard) -> None:
    """RFC 9112 2.2, wherever the network cuts the bytes."""
    _, penstock = await guard()
    for first in (b"\r\n", b"\r"):
        client = await Client.open(penstock, first)
        await asyncio.sleep(0.02)
        client.send((b"\r\n" + request())[len(first) :])
        assert (await client.answer()).status == 200


async def test_other_targets_are_not_on_the_list(guard: Guard) -> None:
    server, penstock = await guard(paths=["GET /version"])
    paths = [b"//v1/completions", b"http://evil/sleep", b"/sleep", b"/sim/faults", b"/version/"]
    cases = {path.decode(): (request(path=path), 404, "unknown_path") for path in paths}
    methods = (b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"post", b"HEADX")
    for method in methods:
        bare = request(method=method, body=None)
        cases[method.decode()] = (bare, 405, "method_not_allowed")
    await refuse_all(penstock, cases, closes=False)
    assert not server.seen


async def test_the_authority_of_a_target_routes_nothing(guard: Guard) -> None:
    server, penstock = await guard()
    client = await Client.open(penstock)
    for path in (b"http://evil:1/v1/completions", b"https://evil/v1/completions?a=b"):
        client.send(request(path=path))
        assert (await client.answer()).status == 200
        assert server.seen[-1].target.startswith("/v1/completions")
        assert server.seen[-1].header("host") == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
async def test_an_offered_upgrade_is_not_taken(guard: Guard, offer: bytes) -> None:
    """Java's HttpClient offers h2c on every POST."""
    server, penstock = await guard()
    upgrade = (
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: " + offer,
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    )
    client = await Client.open(penstock, request(*upgrade))
    answer = await client.answer()
    assert answer.status == 200
    assert answer.json["choices"][0]["text"] == expected(PROMPT, 4)
    seen = server.seen[-1]
    assert seen.body == BODY
    assert not any(seen.header(name) for name in ("connection", "upgrade", "http2-settings"))
    client.send(request())
    assert (await client.answer()).status == 200


# Expect and pipelining -------------------------------------------------------------------------


async def test_a_continue_comes_from_penstock_once_the_head_is_accepted(guard: Guard) -> None:
    server, penstock = await guard()
    expect = b"Expect: 100-Continue"
    head = request(expect)[: -len(BODY)]
    client = await Client.open(penstock)
    for _ in range(2):
        client.send(head)
        assert (await client.answer()).status == 100
        client.send(BODY)
        assert (await client.answer()).status == 200
        assert not server.seen[-1].header("expect")
    for refused, status in (
        (request(expect, path=b"/sleep")[: -len(BODY)], 404),
        (request(expect, b"Content-Length: 99999999", body=b""), 413),
    ):
        client = await Client.open(penstock, refused)
        assert (await client.answer()).status == status
        assert await client.rest() == b""
    client = await Client.open(penstock, request(expect).replace(b"/1.1", b"/1.0", 1))
    assert (await client.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(guard: Guard) -> None:
    server, penstock = await guard()
    health = request(path=b"/health", method=b"GET", body=None)
    raw = numbered(0) + health + numbered(1) + request(body=b"[]") + numbered(2) + numbered(3)
    for step in (len(raw), 200, 1):
        client = await Client.open(penstock)
        for start in range(0, len(raw), step):
            client.send(raw[start : start + step])
            await asyncio.sleep(0)
        answers = [await client.answer() for _ in range(6)]
        assert [answer.status for answer in answers] == [200, 200, 200, 400, 200, 200]
        said = [answers[i].json["choices"][0]["text"] for i in (0, 2, 4, 5)]
        assert said == [expected(f"{PROMPT} {i}", 6) for i in range(4)]
    assert len(server.seen) == 12


async def test_the_clocks_of_a_pipelined_request_start_at_its_turn(guard: Guard) -> None:
    """Its time limits are not used up by the request ahead of it."""
    limits = {"client_head_s": 0.6, "client_body_s": 0.6, "total_s": 1.6}
    _, penstock = await guard("steady-50", timeouts=limits)
    first, second = [numbered(i, max_tokens=50) for i in range(2)]  # a second each

    async def ask_twice(ahead: int) -> None:
        client = await Client.open(penstock, first + second[:ahead])
        assert (await client.answer()).status == 200
        client.send(second[ahead:])
        assert (await client.answer()).status == 200

    await asyncio.gather(ask_twice(len(second)), ask_twice(30))


async def test_of_a_flood_of_pipelined_requests_only_the_first_is_served(guard: Guard) -> None:
    server, penstock = await guard(timeouts={"first_byte_s": 1.0, "first_byte_s_per_1k_tokens": 0})
    server.faults.set("hang_before_headers")
    client = await Client.open(penstock, numbered(0) * 2_000)
    assert await client.rest(0.3) is None  # what is far ahead ends no answer
    got = await client.rest(8.0)
    assert got is not None
    assert got.count(b"HTTP/1.1 ") == 1
    assert sum(bool(each.header("x-request-id")) for each in server.seen) == 1
