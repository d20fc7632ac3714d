"""Streams of the simulated server in every API, as recordings of a real one are: request, answer.

The server's clock stands still and ids follow the request's, so each is always the same bytes.
"""

import asyncio
from functools import cache
from typing import Any, Final

import orjson

from penstock.bench.sim.profiles import PROFILES
from penstock.bench.sim.server import SimServer
from tests.unit.bench.sim.simulated import simulated
from tests.unit.proxy.data.golden import Golden

TEXT: Final = 'Tell me of rivers, 水 and "bridges".'
TURNS: Final = [{"role": "user", "content": TEXT}]
USAGE: Final = {"stream_options": {"include_usage": True}}
CHAT: Final[dict[str, Any]] = {"messages": TURNS, "max_tokens": 24}
BODIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", CHAT | USAGE),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 24} | USAGE),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 24}),
    "messages": ("/v1/messages", CHAT),
}
# Each in every API.
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "crlf": {"kind": "crlf"},
    "multi": {"kind": "multi_token", "tokens": 7},
    "cut": {"kind": "cut_mid_stream", "tokens": 4},
    "error": {"kind": "error_event", "status": 500, "tokens": 4},
}
SEVERAL: Final = {"prompt": ["one", "two", TEXT], "n": 2, "max_tokens": 5, **USAGE}
# The path, the body, and the server's fault.
ASKED: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    **{
        f"{api}_{fault}": (*BODIES[api], options)
        for api in BODIES
        for fault, options in FAULTS.items()
    },
    "chat_no_usage": ("/v1/chat/completions", CHAT, {}),
    "completions_several": ("/v1/completions", SEVERAL, {}),
}


def request_of(name: str) -> tuple[bytes, bytes]:
    """(path, body) of a recording."""
    path, body, _ = ASKED[name]
    return path.encode(), orjson.dumps({"model": "sim-model", "stream": True, **body})


@cache
def recorded(name: str) -> Golden:
    """One of them. Not to be asked for in a running loop."""
    path, body = request_of(name)
    head = (
        b"POST %b HTTP/1.1\r\nhost: vllm\r\nx-request-id: recorded\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    )
    request = head % (path, len(body)) + body
    return Golden(name, request, asyncio.run(_answer(request, ASKED[name][2])))


async def _answer(request: bytes, fault: dict[str, Any]) -> bytes:
    server = SimServer("sim", PROFILES["instant"], speedup=1e9, clock=lambda: 1_700_000_000.0)
    if fault:
        server.faults.set(**fault)
    return await simulated(server, request)
