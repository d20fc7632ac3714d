"""Simulated answers of lengths that the server chooses, and tokens that it does not show."""

import json
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.cli import main
from penstock.bench.sim.job import Manner, Span
from penstock.bench.sim.server import SimServer
from tests.e2e.process import Simulate

pytestmark = pytest.mark.once

CHAT = "/v1/chat/completions"


def body(number: int, **fields: Any) -> dict[str, Any]:
    options = {"include_usage": True}
    messages = [{"role": "user", "content": f"{number} rivers"}]
    return {"messages": messages, "stream": True, "stream_options": options, **fields}


async def chunks(server: SimServer, asked: dict[str, Any]) -> list[Any]:
    async with (
        aiohttp.ClientSession(server.url) as client,
        client.post(CHAT, json=asked) as response,
    ):
        *events, done = (await response.text()).split("\n\n")[:-1]
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_an_answer_without_a_limit_is_as_long_as_the_server_says(simulate: Simulate) -> None:
    (server,) = await simulate()
    server.manner = Manner(answer_tokens=Span(60, 200))
    lengths = []
    for number in range(20):
        *_, last, usage = await chunks(server, body(number))
        assert last["choices"][0]["finish_reason"] == "stop"
        lengths.append(usage["usage"]["completion_tokens"])
    assert min(lengths) >= 60
    assert max(lengths) <= 200
    assert len(set(lengths)) > 10
    again = await chunks(server, body(3))
    assert again[-1]["usage"]["completion_tokens"] == lengths[3]
    *_, last, usage = await chunks(server, body(3, max_tokens=7))
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("early", [False, True])
async def test_hidden_tokens_take_time_and_are_not_shown(simulate: Simulate, early: bool) -> None:
    (server,) = await simulate()
    server.manner = Manner(hidden_tokens=Span(50, 50), early_role=early)
    role, *deltas, usage = await chunks(server, body(0, max_tokens=5))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(deltas) == 5
    assert usage["usage"]["completion_tokens"] == 55
    assert server.engine.generation_tokens_total == 55


async def test_an_early_role_comes_before_the_engine_has_begun(simulate: Simulate) -> None:
    (server,) = await simulate(profile="default")
    asked = body(0, messages=[{"role": "user", "content": "long " * 8_000}])  # a second of prefill
    for early in (True, False):
        server.manner = Manner(early_role=early)
        async with (
            aiohttp.ClientSession(server.url) as client,
            client.post(CHAT, json=asked) as response,
        ):
            await response.content.readline()
            assert bool(server.engine.generation_tokens_total) != early
            server.engine.generation_tokens_total = 0


async def test_a_hidden_answer_fits_the_context(simulate: Simulate) -> None:
    (server,) = await simulate(profile="small-kv")
    server.manner = Manner(Span(9_000, 9_000), Span(9_000, 9_000))
    *_, last, _ = await chunks(server, body(0))
    assert last["choices"][0]["finish_reason"] == "length"
    assert server.engine.preemptions_total == 0


@pytest.mark.parametrize("text", ["200:60", "0:5", "x", "5:", ":5", "1:2:3"])
def test_a_span_without_sense_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["--port", "0", "--answer-tokens", text])
