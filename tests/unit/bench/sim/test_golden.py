"""The simulated server answers as a real vLLM does: the same heads, events and keys.

Each recorded request is put to a simulated server and the answers are compared in
shape: header names, the order of events, and each event's keys and kinds of values,
in order. Runs of equal shapes count once: how many tokens a chunk brings is chance.
"""

import re
from dataclasses import replace
from itertools import groupby
from typing import Any

import orjson
import pytest

from penstock.bench.sim.profiles import PROFILES
from penstock.bench.sim.server import SimServer
from tests.unit.bench.sim.simulated import simulated
from tests.unit.proxy.data.golden import GOLDEN, Golden, body_of

# What made the real server say it, for a simulated one.
FAULTS: dict[str, dict[str, Any]] = {
    "draining": {"kind": "draining"},
    "busy": {"kind": "busy"},
    "dead": {"kind": "error_event", "status": 500},
    "aborted": {"kind": "abort_mid_stream", "tokens": 3},
    "aborted_queued": {"kind": "abort_empty"},
}
PROFILE = replace(PROFILES["instant"], max_model_len=4_096)


async def answer_of(golden: Golden) -> bytes:
    """A simulated server's answer to a recorded request."""
    server = SimServer("sim", PROFILE, "tiny", speedup=1e9, clock=lambda: 1767225600.0)
    for kind in sorted(FAULTS, key=len):
        if golden.name.startswith(kind):
            server.faults.clear()
            server.faults.set(**fault(golden, kind))
    return await simulated(server, golden.request)


def fault(golden: Golden, kind: str) -> dict[str, Any]:
    options = dict(FAULTS[kind])
    if golden.name.endswith("_inside"):
        return {"kind": "error_event", "status": 503}
    if kind == "dead" and golden.streamed:
        options["tokens"] = 3
    if kind == "aborted_queued" and golden.streamed:
        options["kind"] = "done_only"
    return options


def shape(value: Any) -> Any:
    """A JSON value without its contents: keys in order, and the kinds of the rest."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [each for each, _ in groupby(map(shape, value))]
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else "text"


def shapes(body: bytes) -> list[Any]:
    """The shape of each event of a stream, or of the one JSON value; runs once."""
    parts = body.split(b"\n\n") if b"data: " in body else [body]
    told = []
    for part in parts:
        name, _, data = part.rpartition(b"data: ")
        # Spaces after the colons are part of the shape: they tell an error from a chunk.
        spaced = data.startswith((b'{"error": ', b'{"type": '))
        plain = data if data in (b"", b"[DONE]") else orjson.dumps(shape(orjson.loads(data)))
        told.append((name.decode(), spaced, plain.decode()))
    return [each for each, _ in groupby(told)]


def heads(answer: bytes) -> list[str]:
    """The status line, and the headers with the values that are no numbers or dates."""
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return [re.sub("^(date|content-length): .*", r"\1", line) for line in lines]


@pytest.mark.parametrize("name", GOLDEN)
async def test_the_simulated_server_answers_alike(name: str) -> None:
    golden = GOLDEN[name]
    answer = await answer_of(golden)
    assert heads(answer) == heads(golden.answer)
    assert shapes(body_of(answer)) == shapes(golden.body)
    if golden.status >= 400:
        assert error_of(body_of(answer)) == error_of(golden.body)
    if golden.status >= 500:  # by these words it is known
        assert body_of(answer) == golden.body


def error_of(body: bytes) -> dict[str, Any]:
    """An error without its words."""
    error: dict[str, Any] = orjson.loads(body).get("error", {})
    return error | {"message": ""}
