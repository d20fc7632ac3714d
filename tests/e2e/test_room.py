"""What one client only holds is not kept from another: bodies and connections."""

import asyncio
import contextlib
import time
from typing import Any

import orjson
import pytest

from tests.e2e.wire import BODY, PROMPT, Client, Guard, request

TENANTS = [{"name": name, "keys": [{"key": name * 20}]} for name in ("mallory", "victim")]
LIMITS = {"body_bytes": 65_536, "bodies_bytes": 163_840}
HELD_S = 1.2  # what was held for a second may be taken


def keyed(tenant: str, *fields: bytes, body: bytes = BODY) -> bytes:
    raw = request(*fields, body=body)
    return raw.replace(b"Bearer sk-canary-7f3a", b"Bearer " + (tenant * 20).encode())


@pytest.mark.parametrize(
    ("method", "path"),
    [(b"GET", b"/health"), (b"OPTIONS", b"/v1/completions"), (b"POST", b"/none")],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_what_needs_no_key_holds_no_memory(
    guard: Guard, method: bytes, path: bytes, chunked: bool
) -> None:
    _, penstock = await guard(
        limits=LIMITS,
        tenants=TENANTS,
        listen={
            "host": "127.0.0.1",
            "port": 0,
            "cors_origins": ["*"],
        },
    )
    frame = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 65536"
    sent = b"ffff\r\n" + b"x" * 60_000 if chunked else b"x" * 65_535
    strangers = [
        await Client.open(penstock, request(frame, method=method, path=path, body=sent))
        for _ in range(2)
    ]
    for stranger in strangers:
        assert (await stranger.answer()).status in (200, 204, 401)
    body = orjson.dumps({"prompt": PROMPT + " " * 60_000, "max_tokens": 1})
    client = await Client.open(penstock, keyed("victim", body=body))
    assert (await client.answer()).status == 200
    for stranger in strangers:  # nor does one that goes on keep its place
        assert await stranger.rest(4.0) == b""


async def test_a_health_check_with_a_small_body_keeps_its_connection(guard: Guard) -> None:
    _, penstock = await guard()
    check = request(method=b"GET", path=b"/health", body=b"{}")
    client = await Client.open(penstock, check + check)
    for _ in range(2):
        assert (await client.answer()).status == 200
    client.send(request())
    assert (await client.answer()).status == 200


async def test_slow_bodies_of_one_tenant_cost_another_nothing(guard: Guard) -> None:
    server, penstock = await guard(limits=LIMITS, tenants=TENANTS)
    half = keyed("mallory", b"Content-Length: 65536", body=b"x" * 65_000)
    slow = [await Client.open(penstock, half) for _ in range(2)]
    await asyncio.sleep(HELD_S)
    body = orjson.dumps({"prompt": PROMPT + " " * 60_000, "max_tokens": 1})
    for _ in range(3):
        client = await Client.open(penstock, keyed("victim", body=body))
        assert (await client.answer()).status == 200
    refused = await slow[0].answer()  # the one of them that was in the way
    assert (refused.status, refused.code) == (429, "overloaded")
    assert len(server.seen) == 3
    slow[1].send(b"x" * 536)
    assert (await slow[1].answer()).status == 400  # no JSON, but it was read to its end


async def test_bodies_of_running_streams_take_no_room(guard: Guard) -> None:
    """Once a token went out no other backend can be asked, and nobody needs the body again."""
    server, penstock = await guard("steady-50", limits=LIMITS, tenants=TENANTS)
    options = {"prompt": PROMPT + " " * 60_000, "stream": True, "max_tokens": 2_000}
    body = orjson.dumps(options)
    streams = [await Client.open(penstock, keyed("mallory", body=body)) for _ in range(2)]
    for stream in streams:
        await stream.until(b"data: ")
    body = orjson.dumps(options | {"stream": False, "max_tokens": 1})
    for _ in range(3):
        client = await Client.open(penstock, keyed("victim", body=body))
        assert (await client.answer()).status == 200
    assert server.engine.running == len(streams)
    for stream in streams:
        stream.close()
    await penstock.until_at_rest()
    client = await Client.open(penstock, keyed("victim", body=body))
    assert (await client.answer()).status == 200  # nothing was given back twice


async def test_bodies_of_one_tenant_that_wait_leave_room_for_another(guard: Guard) -> None:
    limits = LIMITS | {"bodies_bytes": 262_144}
    server, penstock = await guard(limits=limits, tenants=TENANTS)
    server.faults.set("hang_before_headers")
    body = orjson.dumps({"prompt": PROMPT + " " * 60_000, "max_tokens": 1})
    waiting = [await Client.open(penstock, keyed("mallory", body=body)) for _ in range(6)]
    refused = await asyncio.gather(*(client.rest(1.0) for client in waiting))
    assert [rest is None for rest in refused].count(True) == 3  # the others were refused
    server.faults.clear()
    for _ in range(3):
        client = await Client.open(penstock, keyed("victim", body=body))
        assert (await client.answer()).status == 200
    for client in waiting:
        client.close()


@pytest.mark.alone
async def test_connections_that_ask_nothing_make_room(guard: Guard) -> None:
    _, penstock = await guard(limits={"connections": 4})
    known = await Client.open(penstock, request())
    assert (await known.answer()).status == 200
    heads = (b"", request()[:40], request(method=b"GET", path=b"/health", body=None))
    strangers = [await Client.open(penstock, head) for head in heads]
    await asyncio.sleep(HELD_S)
    began_s = time.monotonic()
    newcomer = await Client.open(penstock)
    await asyncio.sleep(0.1)
    newcomer.send(request())
    assert (await newcomer.answer()).status == 200
    assert time.monotonic() - began_s < 1.0
    for stranger in strangers:
        assert await stranger.rest() is not None  # gone


@pytest.mark.parametrize("kind", ["health", "no key", "connects", "nonsense"])
async def test_who_only_keeps_busy_takes_no_seats(guard: Guard, kind: str) -> None:
    """Another address asks for what needs no key, or for nothing, more than once a second."""
    keys: dict[str, Any] = {} if kind == "nonsense" else {"tenants": TENANTS}
    _, penstock = await guard(limits={"connections": 40}, **keys)
    asked = {
        "health": request(method=b"GET", path=b"/health", body=None),
        "no key": request(method=b"GET", path=b"/v1/models", body=None),
        "connects": b"",
        "nonsense": request(body=b"{}"),
    }[kind]

    async def attack() -> None:
        while True:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", penstock.port, local_addr=("127.0.0.2", 0)
                )
                try:
                    for _ in range(10):
                        writer.write(asked)
                        await asyncio.sleep(0.7)
                        if not asked or reader.at_eof():
                            break
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.05)

    attackers = [asyncio.create_task(attack()) for _ in range(50)]
    await asyncio.sleep(HELD_S)
    served = 0
    for _ in range(20):
        with contextlib.suppress(OSError, EOFError):
            client = await Client.open(penstock, keyed("victim"))
            served += (await client.answer()).status == 200
            client.close()
        await asyncio.sleep(0.05)
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    assert served >= 17


@pytest.mark.parametrize("held_s", [0.8, 0.0])
async def test_strangers_of_many_addresses_take_nothing_from_a_key(
    guard: Guard, held_s: float
) -> None:
    """They hold connections and ask for nothing; one that ends is made anew."""
    _, penstock = await guard(limits={"connections": 100}, tenants=TENANTS)

    async def attack(address: str) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", penstock.port, local_addr=(address, 0)
                )
                try:
                    async with asyncio.timeout(held_s or 60.0):  # `wait_for` may miss the cancel
                        await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.02)

    kept = [await Client.open(penstock, keyed("victim")) for _ in range(20)]
    for client in kept:
        assert (await client.answer()).status == 200
    attackers = [asyncio.create_task(attack(f"127.0.0.{2 + i % 40}")) for i in range(160)]
    await asyncio.sleep(HELD_S)
    served = 0
    for _ in range(40):
        with contextlib.suppress(OSError, EOFError):
            client = await Client.open(penstock, keyed("victim"))
            served += (await client.answer()).status == 200
            client.close()
        await asyncio.sleep(0.05)
    again = 0
    for client in kept:
        with contextlib.suppress(OSError, EOFError):
            client.send(keyed("victim"))
            again += (await client.answer()).status == 200
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    assert again == 20
    assert served >= 39
