"""Bodies too large, connections too many, clients too slow: bounded, told, and then as before."""

import asyncio
import time

import orjson

from tests.e2e.wire import (
    PROMPT,
    Client,
    Guard,
    refuse_all,
    request,
)


async def test_a_body_over_the_limit(guard: Guard) -> None:
    server, penstock = await guard(limits={"body_bytes": 2048})
    padded = {"prompt": PROMPT, "max_tokens": 1, "x": ""}
    padded["x"] = "x" * (2048 - len(orjson.dumps(padded)))
    fits = orjson.dumps(padded)
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    declared = request(b"Content-Length: 2049", body=b"")
    await refuse_all(
        penstock,
        {
            "declared": (declared, 413, "body_too_large"),
            "sent": (request(body=fits + b" "), 413, "body_too_large"),
            "far too much": (request(body=b"x" * 3_000_000), 413, "body_too_large"),
            "chunked": (
                request(b"Transfer-Encoding: chunked", body=chunk * 3),
                413,
                "body_too_large",
            ),
        },
    )
    assert not server.seen
    client = await Client.open(penstock, request(body=fits))
    assert (await client.answer()).status == 200
    client.send(request(b"Transfer-Encoding: chunked", body=b"800\r\n" + fits + b"\r\n0\r\n\r\n"))
    assert (await client.answer()).status == 200


async def test_all_bodies_together_are_limited(guard: Guard) -> None:
    server, penstock = await guard(limits={"body_bytes": 2048, "bodies_bytes": 4096})
    body = orjson.dumps({"prompt": PROMPT + " " * 1900, "max_tokens": 1})
    for half in (body[:-1], b"x" * 2000):
        waiting = [
            await Client.open(penstock, request(b"Content-Length: 2048", body=half)[:2000])
            for _ in range(2)
        ]
        await asyncio.sleep(0.05)
        client = await Client.open(penstock, request(body=body))
        answer = await client.answer()
        assert (answer.status, answer.code) == (429, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert await client.rest() == b""
        # By its declared length alone, before a byte of it is asked for.
        client = await Client.open(
            penstock, request(b"Expect: 100-continue", b"Content-Length: 2048", body=b"")
        )
        assert (await client.answer()).status == 429
        for each in waiting:
            each.close()
        await asyncio.sleep(0.05)
    assert not server.seen
    client = await Client.open(penstock)
    for _ in range(4):  # what is answered is given back
        client.send(request(body=body))
        assert (await client.answer()).status == 200


async def test_connections_are_limited(guard: Guard) -> None:
    server, penstock = await guard(limits={"connections": 2})
    first, second = [await Client.open(penstock, request()) for _ in range(2)]
    for client in (first, second):
        assert (await client.answer()).status == 200
    third = await Client.open(penstock)
    answer = await third.answer()
    assert (answer.status, answer.code) == (429, "overloaded")
    assert int(answer.headers["retry-after-ms"]) > 0
    assert await third.rest() == b""
    first.close()
    await asyncio.sleep(0.05)
    fourth = await Client.open(penstock, request())
    assert (await fourth.answer()).status == 200
    assert len(server.seen) == 3
    shed = 'penstock_shed_total{priority="0",reason="connections"} 1.0'
    assert shed in await penstock.metrics()


async def test_half_a_request_is_not_waited_for(guard: Guard) -> None:
    limits = {"client_head_s": 0.2, "client_body_s": 0.3, "client_idle_s": 0.4}
    server, penstock = await guard(timeouts=limits)
    for half, limit_s in ((request()[:60], 0.2), (request()[:-5], 0.3)):
        for drip in (b"", b"x"):  # a byte now and then buys no time
            began_s = time.monotonic()
            client = await Client.open(penstock, half)
            answer = asyncio.create_task(client.answer())
            while not answer.done():
                await asyncio.sleep(0.04)
                if drip and limit_s == 0.2:
                    client.send(drip)
            got = await answer
            assert (got.status, got.code) == (408, "request_timeout")
            assert limit_s * 0.9 < time.monotonic() - began_s < limit_s + 0.5
            assert await client.rest() == b""
    began_s = time.monotonic()
    client = await Client.open(penstock)  # nothing was asked: nothing is answered
    assert await client.rest(2.0) == b""
    assert 0.3 < time.monotonic() - began_s < 1.0
    assert not server.seen


async def test_empty_lines_buy_no_time(guard: Guard) -> None:
    """One is skipped before a request; a client that goes on with them asks for nothing."""
    limits = {"client_head_s": 0.3, "client_idle_s": 0.4}
    _, penstock = await guard(timeouts=limits)
    client = await Client.open(penstock, b"\r\n" + request())
    assert (await client.answer()).status == 200
    client.send(b"\r\n" + request())
    assert (await client.answer()).status == 200
    began_s = time.monotonic()
    client = await Client.open(penstock)
    rest = asyncio.create_task(client.rest(5.0))
    while not rest.done():
        for byte in (b"\r", b"\n"):
            client.send(byte)
            await asyncio.sleep(0.05)
    assert await rest is not None
    assert time.monotonic() - began_s < 3.0


async def test_a_slow_body_is_cut_and_a_moving_one_is_not(guard: Guard) -> None:
    server, penstock = await guard(timeouts={"client_body_s": 0.2})
    body = orjson.dumps({"prompt": PROMPT + " " * 5_000, "max_tokens": 1})
    raw = request(body=body)
    head = len(raw) - len(body)
    client = await Client.open(penstock, raw[:head])
    for start in range(head, len(raw), 300):  # some 7 KB a second for 0.7 s
        client.send(raw[start : start + 300])
        await asyncio.sleep(0.04)
    assert (await client.answer()).status == 200
    client = await Client.open(penstock, raw[:head])
    answer = asyncio.create_task(client.answer())
    for start in range(head, head + 30):
        client.send(raw[start : start + 1])
        await asyncio.sleep(0.04)
        if answer.done():
            break
    assert (await answer).status == 408
    assert len(server.seen) == 1
