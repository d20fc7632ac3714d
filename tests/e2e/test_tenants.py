"""Tenants: whose key opens what, what goes upstream, and what stays apart."""

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, pool_of
from tests.e2e.raw_backend import RawBackends, answer
from tests.e2e.request import BODIES, Got, ask
from tests.e2e.wire import Client
from tests.http.case import Steps, echo
from tests.http.referees import Refused, h11_answers

ONE, TWO, POOL = "sk-one-5f2c", "sk-two-91ab", "sk-pool-77de"
TENANTS = [
    {"name": "one", "keys": [{"key": "sk-one-old"}, {"key": ONE}]},
    {"name": "two", "keys": [{"key": TWO}]},
]
COMPLETIONS = "/v1/completions"


@pytest.fixture
def fleet(fleet: Fleet) -> Fleet:
    """Servers behind a proxy that asks for keys."""
    return partial(fleet, tenants=TENANTS)


def sent(server: SimServer, name: str) -> list[str]:
    """The values of a header of the last request that a server got."""
    headers = server.seen[-1].headers
    return [value.decode() for key, value in headers if key.decode().lower() == name]


async def as_tenant(penstock: Penstock, key: str, path: str, *args: Any, **fields: Any) -> Got:
    return await ask(penstock, path, *args, authorization=f"Bearer {key}", **fields)


async def test_a_missing_or_wrong_key_gives_the_same_401(fleet: Fleet) -> None:
    """One answer for all that is wrong, whatever the path, before the body is read."""
    (server,), penstock = await fleet()
    ways: list[dict[str, Any]] = [
        {},
        {"authorization": "Bearer sk-nobodys"},
        {"authorization": f"Basic {ONE}"},
        {"authorization": ONE},
        {"x_api_key": ""},
    ]
    targets = [*((path, "POST") for path in BODIES), ("/v1/models", "GET"), ("/nowhere", "GET")]
    targets += [("/v1/responses/resp_1", "GET"), ("/metrics", "GET"), ("/v1/realtime", "GET")]
    for path, method in targets:
        answers = [await ask(penstock, path, method=method, **way) for way in ways]
        assert {got.status for got in answers} == {401}
        assert {got.headers["www-authenticate"] for got in answers} == {"Bearer"}
        assert len({got.body for got in answers}) == 1
        error = answers[0].json["error"]
        assert error["type"] == "authentication_error"
        assert error.get("code") == (None if path == "/v1/messages" else "unauthorized")
    assert not server.seen


async def test_health_and_preflights_need_no_key(fleet: Fleet) -> None:
    """Browsers ask before they send a key."""
    for origins, status in ((["https://a.example"], 204), ([], 401)):
        listen = {"host": "127.0.0.1", "port": 0, "cors_origins": origins}
        _, penstock = await fleet(listen=listen)
        got = await ask(penstock, COMPLETIONS, method="OPTIONS", origin="https://a.example")
        assert got.status == status
        for method, told in (("GET", 200), ("HEAD", 200), ("POST", 401)):
            assert (await ask(penstock, "/health", method=method)).status == told


WHOSE: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "nothing-said": ({}, [], []),
    "own": ({"api_key": POOL}, [f"Bearer {POOL}"], []),
    "client": ({"forward_authorization": "client", "api_key": POOL}, [f"Bearer {ONE}"], [ONE]),
    "pool": ({"forward_authorization": "pool", "api_key": POOL}, [f"Bearer {POOL}"], []),
    "none": ({"forward_authorization": "none", "api_key": POOL}, [], []),
}
# Nobody is asked for a key, so the client's is the backend's, as ever.
WITHOUT_TENANTS = {"nothing-said": ([f"Bearer {ONE}"], [ONE]), "own": ([f"Bearer {ONE}"], [ONE])}


@pytest.mark.parametrize("tenants", [TENANTS, []])
async def test_whose_key_a_backend_gets(
    simulate: Simulate, serve: Serve, tenants: list[dict[str, Any]]
) -> None:
    servers = {name: (await simulate(model=name))[0] for name in WHOSE}
    pools = [pool_of(name, {name: servers[name]}, **told) for name, (told, _, _) in WHOSE.items()]
    penstock = await serve([], ready=len(WHOSE), pools=pools, tenants=tenants)
    fields: Any = {"authorization": f"Bearer {ONE}", "x_api_key": ONE, "x_trace": "t"}
    for name, (_, bearer, api_key) in WHOSE.items():
        await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS] | {"model": name}, **fields)
        if not tenants:
            bearer, api_key = WITHOUT_TENANTS.get(name, (bearer, api_key))
        server = servers[name]
        got = sent(server, "authorization"), sent(server, "x-api-key")
        assert got == (bearer, api_key), name
        assert sent(server, "x-trace") == ["t"]


async def test_stored_responses_belong_to_their_tenant(fleet: Fleet) -> None:
    # Probes far apart: every connection is a request's.
    servers, penstock = await fleet(2, health={"interval_s": 60, "timeout_s": 5})
    made = await as_tenant(penstock, ONE, "/v1/responses", BODIES["/v1/responses"])
    response_id = made.json["id"]
    path = f"/v1/responses/{response_id}"
    asked = [server.connections_total for server in servers]
    more = BODIES["/v1/responses"] | {"previous_response_id": response_id}
    foreign = [
        await as_tenant(penstock, TWO, path, method="GET"),
        await as_tenant(penstock, TWO, path + "/cancel", {}),
        await as_tenant(penstock, TWO, "/v1/responses", more),
    ]
    assert [server.connections_total for server in servers] == asked
    unknown = await as_tenant(penstock, TWO, "/v1/responses/resp_nobodys", method="GET")
    for got in foreign:
        body = unknown.body.replace(b"resp_nobodys", response_id.encode())
        assert (got.status, got.body) == (404, body)
        assert set(got.headers) == set(unknown.headers)
    assert (await as_tenant(penstock, ONE, path, method="GET")).json["id"] == response_id
    assert (await as_tenant(penstock, ONE, "/v1/responses", more)).status == 200


async def test_keys_come_and_go_by_reload(fleet: Fleet) -> None:
    """From the next request on, on connections that are open too."""
    _, penstock = await fleet()
    asks = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: %b\r\n\r\n"

    async def status(client: Client, key: str) -> int:
        client.send(asks % key.encode())
        return (await client.answer()).status

    client = await Client.open(penstock)
    assert [await status(client, key) for key in (ONE, "sk-new")] == [200, 401]
    changed = [{"name": "one", "keys": [{"key": "sk-new"}]}]
    assert (await penstock.reload(tenants=changed))[0] == 200
    assert [await status(client, key) for key in (ONE, TWO, "sk-new")] == [401, 401, 200]
    assert (await penstock.reload(tenants=[*changed, *changed]))[0] == 422
    assert [await status(client, key) for key in (ONE, "sk-new")] == [401, 200]
    assert (await penstock.reload(tenants=[]))[0] == 200
    assert [await status(client, key) for key in (ONE, "sk-nobodys")] == [200, 200]
    client.close()


_KEY = re.compile(rb"\r\nauthorization: Bearer (key-[a-z]-end)\r\n")
APART_KEYS = (b"key-a-end", b"key-b-end", b"key-c-end")
PLACE = b"key-?-end"
SECONDS = 1.5


def too_much(
    pause_s: float | None, surplus: bytes, status: bytes = b"200 OK"
) -> Callable[[bytes], Steps]:
    """Lets `surplus` follow each answer, after `pause_s` (None: in the same write)."""

    def script(request: bytes) -> Steps:
        head, _, body = request.partition(b"\r\n\r\n")
        match = _KEY.search(head)
        assert match is not None
        whole = answer(echo(body)) if status == b"200 OK" else b"HTTP/1.1 %b\r\n\r\n" % status
        more = surplus.replace(PLACE, match[1])
        return (whole + more,) if pause_s is None else (whole, pause_s, more)

    return script


ANSWER = answer(b'{"secret":"%b"}' % PLACE)
EVENT = b'data: {"choices":[{"index":0,"text":"%b","finish_reason":"stop"}]}\n\n' % PLACE
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
)
BACKENDS = {
    "an answer with the answer": too_much(None, ANSWER),
    "an answer at once": too_much(0.0, ANSWER),
    "an answer within the rest": too_much(0.005, ANSWER),
    "an answer after the rest": too_much(0.04, ANSWER),
    "a late timeout": too_much(0.05, b"HTTP/1.1 408 Late\r\nx-secret: %b\r\n\r\n" % PLACE),
    "half an answer": too_much(0.03, ANSWER[:-2]),
    "a stream": too_much(0.03, STREAM),
    "a body after a 204": too_much(0.0, ANSWER, b"204 No Content"),
    "a chunk": too_much(0.03, b"9\r\n%b\r\n0\r\n\r\n" % PLACE),
}


async def test_no_tenant_sees_anothers_bytes(serve: Serve, raw_backends: RawBackends) -> None:
    """Every surplus holds the key of the tenant whose answer it follows."""
    backends = await raw_backends(len(BACKENDS))
    for backend, script in zip(backends, BACKENDS.values(), strict=True):
        backend.always = script
    timeouts = {"first_byte_s": 1, "idle_s": 1}
    penstock = await serve(backends, pool={"policy": "round_robin"}, timeouts=timeouts)
    ends_s = time.monotonic() + SECONDS

    async def ask_on(key: bytes) -> None:
        served = 0
        while served < len(BACKENDS) or time.monotonic() < ends_s:
            got = await ask_raw(penstock, key, b"%b %d" % (key, served))
            others = [other for other in APART_KEYS if other != key and other in got]
            assert not others, got
            served += 1

    await asyncio.gather(*(ask_on(key) for key in APART_KEYS * 2))
    assert all(backend.arrived for backend in backends)


async def ask_raw(penstock: Penstock, key: bytes, prompt: bytes) -> bytes:
    """All bytes that come of one request, until its answer is whole or cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    body = orjson.dumps({"prompt": prompt.decode()})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key
    writer.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    got = b""
    async with asyncio.timeout(10):
        while not _whole(got) and (data := await reader.read(65_536)):
            got += data
    writer.transport.abort()
    return got


def _whole(got: bytes) -> bool:
    try:
        return any(each.whole for each in h11_answers(got, [b"POST"], eof=False))
    except Refused:
        return True
