"""What clients send is told to nobody: not in logs, metrics, errors, nor on the admin port.

Canaries go in wherever text goes in, through answers and every kind of failure, at the most
talkative level; then everything that came out is searched for them.
"""

import asyncio
import re
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask
from tests.e2e.wire import Client

PLACES = (
    *("key", "prompt", "system", "tool", "model", "path", "query", "header", "cookie", "session"),
    *("user", "response", "admin", "digest", "wrong", "method", "pool"),
)
CANARY = {place: f"cnry{number:02d}{place}" for number, place in enumerate(PLACES)}
FORGED = "\r\n1700000000.000 INFO forged\x1b[2J\0\x9b31m\u2028"
TENANTS = [{"name": "one", "keys": [{"key": CANARY["key"]}]}]

# Who asks for a model that nobody serves hears its name again: quoted, and cut.
MODEL_TOLD = re.compile(rb"No pool serves this model: `[^`\x00-\x1f\x7f-\xff]{1,250}`; ")
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
# On any number of requests to one server.
FAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "cut_before_headers"},
    {"kind": "cut_after_headers"},
    {"kind": "cut_mid_stream", "tokens": 2},
    {"kind": "cut_mid_stream", "tokens": 2, "rst": True},
    {"kind": "error_event", "times": 1},
    {"kind": "busy", "times": 1},
    {"kind": "hang_before_headers"},
    {"kind": "hang_mid_stream", "tokens": 1},
    {"kind": "second_answer"},
)
# One request is enough to eject a server, so each has one of its own, by the model it serves.
LAST_FAULTS: dict[str, dict[str, Any]] = {
    "m-dead": {"kind": "error_event", "tokens": 2, "status": 500},
    "m-empty": {"kind": "abort_empty"},
    "m-abort": {"kind": "abort_mid_stream", "tokens": 2},
    "m-done": {"kind": "done_only"},
    "m-drain": {"kind": "draining"},
    "m-refuse": {"kind": "refuse"},
}


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": CANARY["tool"], "parameters": {}}}]
    body: dict[str, Any] = {
        "model": "sim-model",
        "max_tokens": 5,
        "max_output_tokens": 5,
        "user": CANARY["user"],
        "tools": tools,
    }
    if path == "/v1/completions":
        body |= {"prompt": CANARY["prompt"]}
    elif path == "/v1/responses":
        body |= {"input": CANARY["prompt"], "instructions": CANARY["system"]}
    else:
        body |= {"messages": [{"role": "user", "content": CANARY["prompt"]}]}
        body |= {"system": CANARY["system"]}
    return body | fields


HEADERS = {
    "authorization": f"Bearer {CANARY['key']}",
    "x_trace": CANARY["header"],
    "cookie": f"a={CANARY['cookie']}",
    "x_session_id": CANARY["session"],
}
QUERY = f"?key={CANARY['query']}"


def raw_requests() -> list[bytes]:
    """What no client library sends: bytes that are no text, lines in values, odd methods."""
    key = b"Authorization: Bearer " + CANARY["key"].encode() + b"\r\n"
    host, path = b"Host: x\r\n", CANARY["path"].encode()
    header, method = CANARY["header"].encode(), CANARY["method"].encode()
    chat = b"POST /v1/chat/completions HTTP/1.1\r\n"
    return [
        b"GET /" + path + b" HTTP/1.1\r\n" + host + key + b"\r\n",
        b"GET /" + path + b"%0d%0a%1b HTTP/1.1\r\n" + host + key + b"\r\n",
        b"GET /v1/responses/" + path + b" HTTP/1.1\r\n" + host + key + b"\r\n",
        b"GET http://" + path + b"/x HTTP/1.1\r\n" + host + key + b"\r\n",
        b"GET /" + path * 2_000 + b" HTTP/1.1\r\n" + host + key + b"\r\n",
        b"GET /\xff\xfe" + path + b" HTTP/1.1\r\n" + host + b"\r\n",
        method + b" /v1/models HTTP/1.1\r\n" + host + b"\r\n",
        chat + host + key + b"X: " + header + b"\x1b\0\r\n\r\n",
        chat + host + key + b"X: " + header + b"\r" + header + b"\r\n\r\n",
        chat + host + key + header + b"\r\n\r\n",
        chat + b"Host: " + header + b" x\r\n" + key + b"\r\n",
        chat + host + key + b"Content-Length: " + header + b"\r\n\r\n",
        chat + host + key + b"Transfer-Encoding: " + header + b"\r\n\r\n",
        chat + host + key + b"Expect: " + header + b"\r\n\r\n",
        chat + host + key + b"X: \xff\xfe\xc3\x28" + header + b"\r\nContent-Length: 2\r\n\r\n{}",
        chat + host + key + b"X: " + header * 9_000 + b"\r\n\r\n",
        chat + host + b"Authorization: Bearer " + CANARY["wrong"].encode() + b"\r\n\r\n",
        chat + host + b"X-Api-Key: \xff" + CANARY["wrong"].encode() + b"\r\n\r\n",
        header + b"\r\n\r\n",
        chat + host + key + b"Content-Length: 99\r\n\r\n" + CANARY["prompt"].encode(),
    ]


def bad_bodies() -> list[bytes]:
    prompt = CANARY["prompt"].encode()
    models = (CANARY["model"], CANARY["model"] + FORGED, CANARY["model"] * 5_000)
    return [
        b'{"prompt": "' + prompt,
        b'["' + prompt + b'"]',
        b'{"prompt":"\xff' + prompt + b'","model":"sim-model"}',
        b'{"model":{"a":"' + CANARY["model"].encode() + b'"},"prompt":"x"}',
        b'{"model":"\\ud800' + CANARY["model"].encode() + b'","prompt":"x"}',
        *(orjson.dumps({"model": model, "prompt": CANARY["prompt"]}) for model in models),
        orjson.dumps({"prompt": "x", "previous_response_id": "resp_" + CANARY["response"]}),
        b"x" * 70_000,
    ]  # fmt: skip


async def sends(penstock: Penstock, said: list[bytes], data: bytes) -> None:
    client = await Client.open(penstock, data)
    said.append(await client.rest(1.0) or b"")


async def through_every_failure(
    penstock: Penstock, servers: dict[str, SimServer], said: list[bytes]
) -> int:
    """Requests sent; what penstock itself says of failures goes to `said`."""
    statuses = []

    async def send(path: str, **fields: Any) -> None:
        try:
            got = await ask(penstock, path + QUERY, body_of(path, **fields), **HEADERS)
            statuses.append(got.status)
            if got.status >= 500:
                said.append(got.body)
        except aiohttp.ClientPayloadError:  # an answer without an end
            statuses.append(0)

    server = servers["sim-model"]
    for fault in FAULTS:
        for number, path in enumerate(PATHS):
            if fault:
                server.faults.set(**fault)
            await send(path, stream=bool((number + len(fault)) % 2))
            server.faults.clear()
            await send(path)  # a whole answer: failures in a row would eject it
    for model, fault in LAST_FAULTS.items():
        servers[model].faults.set(**fault)
        await send("/v1/completions", model=model, stream=model != "m-drain")
        servers[model].faults.clear()
    assert {0, 200, 502, 504} <= set(statuses)
    assert statuses.count(200) > len(FAULTS) * len(PATHS)
    return len(statuses)


async def told_by_the_admin_port(penstock: Penstock) -> list[bytes]:
    said = []
    async with aiohttp.ClientSession() as session:
        for path in ("/metrics", "/api/v1/config", "/api/v1/backends", f"/{CANARY['path']}"):
            for token in (CANARY["admin"], CANARY["wrong"]):
                headers = {"authorization": f"Bearer {token}"}
                async with session.get(penstock.admin_url + path, headers=headers) as answer:
                    said.append(await answer.read())
    return said


@pytest.mark.timeout(120)
async def test_canaries_are_found_nowhere(simulate: Simulate, serve: Serve) -> None:
    servers = {}
    for model in ("sim-model", *LAST_FAULTS):
        (servers[model],) = await simulate(model=model, api_key=CANARY["pool"])
    penstock = await serve(
        [],
        ready=len(servers),
        pools=[
            {
                "name": model,
                "api_key": CANARY["pool"],
                "policy": "session",
                "backends": [{"name": model, "url": server.url}],
            }
            for model, server in servers.items()
        ],
        tenants=TENANTS,
        log={"level": "debug"},
        admin={"host": "127.0.0.1", "port": 0, "token": CANARY["admin"]},
        timeouts={"first_byte_s": 0.3, "idle_s": 0.3, "client_body_s": 0.5, "client_head_s": 0.5},
        limits={"body_bytes": 65_536, "bodies_bytes": 1_000_000, "head_bytes": 65_536},
    )
    said: list[bytes] = []
    sent = 0
    for body in bad_bodies():
        got = await ask(penstock, "/v1/completions" + QUERY, body, **HEADERS)
        said.append(MODEL_TOLD.sub(b"", got.body))
        sent += 1
    raw = raw_requests()
    await asyncio.gather(*(sends(penstock, said, data) for data in raw))
    sent += await through_every_failure(penstock, servers, said)
    await servers["sim-model"].stop()
    said.append((await ask(penstock, PATHS[1], body_of(PATHS[1]), **HEADERS)).body)
    said += await told_by_the_admin_port(penstock)
    await penstock.until_at_rest()
    assert await penstock.stop() == 0
    await asyncio.sleep(0.05)
    # Each request has its line, and no line is another's: forged ones would be more, or no JSON.
    assert len(penstock.access_lines) == sent + len(raw) + 1
    said += penstock.log
    said.append(orjson.dumps(penstock.access_lines))
    text = b"\n".join(said)
    assert len(text) > 20_000
    assert not [place for place, canary in CANARY.items() if canary.encode() in text]
    for control in (b"\x1b", b"\0", b"\x9b", b"forged"):
        assert control not in text
    assert {line["tenant"] for line in penstock.access_lines} == {"one", None}
