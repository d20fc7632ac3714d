"""What SDKs make of answers in each API: directly, through aliases, a split and fall-backs."""

import operator
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import anthropic
import httpx2
import openai
import pytest

from tests.e2e.process import Serve, Simulate
from tests.e2e.raw_backend import RawBackend
from tests.e2e.routed import NAMES, REQUEST_ID, Kept, Routed, engine_got, start

QUESTION: Final = 'Tell me of rivers, 水 and "bridges".'
USER: Final = [{"role": "user", "content": QUESTION}]
PARAMETERS: Final = {
    "type": "object",
    "properties": {"lock": {"type": "string"}, "height_m": {"type": "number"}},
    "required": ["lock", "height_m"],
}
TOOLS: Final = [{"type": "function", "function": {"name": "open_lock", "parameters": PARAMETERS}}]
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SHOWN: Final = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
CHAT: Final = {"messages": USER, "max_tokens": 20}
_WHAT: Final = {"type": "text", "text": "What?"}
PICTURE: Final = CHAT | {"messages": [{"role": "user", "content": [_WHAT, SHOWN]}]}
USAGE: Final = {"stream_options": {"include_usage": True}}
# The resource of the SDK, and what is asked.
OPENAI: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("chat.completions", CHAT),
    "chat, streamed": ("chat.completions", CHAT | {"stream": True}),
    "chat, streamed with usage": ("chat.completions", CHAT | USAGE | {"stream": True}),
    "tools": ("chat.completions", CHAT | {"tools": TOOLS}),
    "tools, streamed": ("chat.completions", CHAT | {"tools": TOOLS, "stream": True}),
    "image": ("chat.completions", PICTURE),
    "image, streamed": ("chat.completions", PICTURE | {"stream": True}),
    "completion": ("completions", {"prompt": QUESTION}),
    "completion, streamed": ("completions", {"prompt": QUESTION, "stream": True}),
    "response": ("responses", {"input": QUESTION}),
    "response, streamed": ("responses", {"input": QUESTION, "stream": True}),
}
_ANTHROPIC_TOOLS: Final = [{"name": "open_lock", "input_schema": PARAMETERS}]
_SOURCE: Final = {"type": "base64", "media_type": "image/png", "data": PIXEL}
_ANTHROPIC_PICTURE: Final = CHAT | {
    "messages": [{"role": "user", "content": [{"type": "image", "source": _SOURCE}]}]
}
ANTHROPIC: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "messages": ("messages", CHAT),
    "messages, streamed": ("messages", CHAT | {"stream": True}),
    "tools": ("messages", CHAT | {"tools": _ANTHROPIC_TOOLS}),
    "tools, streamed": ("messages", CHAT | {"tools": _ANTHROPIC_TOOLS, "stream": True}),
    "image": ("messages", _ANTHROPIC_PICTURE),
    "image, streamed": ("messages", _ANTHROPIC_PICTURE | {"stream": True}),
}
Sdk = openai.AsyncOpenAI | anthropic.AsyncAnthropic


@pytest.fixture
async def routed(simulate: Simulate, serve: Serve) -> AsyncIterator[Routed]:
    failing = RawBackend()
    await failing.start()
    yield await start(simulate, serve, failing)
    await failing.stop()


def client(kind: type[Sdk], url: str, kept: Kept) -> Sdk:
    base_url = f"{url}/v1" if kind is openai.AsyncOpenAI else url
    return kind(
        base_url=base_url,
        api_key="k",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=kept),
    )


async def says(sdk: Sdk, resource: str, **ask: Any) -> list[Any]:
    """What the SDK makes of the answer, or of each event of it."""
    answer = await operator.attrgetter(resource)(sdk).create(**ask)
    return [each async for each in answer] if ask.get("stream") else [answer]


async def compare(
    routed: Routed, kind: type[Sdk], name: str, resource: str, ask: dict[str, Any], session: str
) -> str:
    """Ask for the name, then ask who answered it. Returns the model that did."""
    through, direct = Kept(), Kept()
    headers = REQUEST_ID | {"x-session-id": session}
    async with client(kind, routed.penstock.url, through) as sdk:
        said = await says(sdk, resource, model=name, extra_headers=headers, **ask)
    model = through.headers.get("x-penstock-model", name)
    assert model in NAMES[name]
    received, meant = engine_got(routed.servers[model])
    # penstock asks each stream of these two for its usage, and hides it again.
    hides = "completions" in resource and "stream" in ask and "stream_options" not in ask
    more = USAGE if hides else {}
    async with client(kind, routed.servers[model].url, direct) as sdk:
        wanted = await says(sdk, resource, model=model, extra_headers=headers, **ask, **more)
    if hides:
        assert not wanted.pop().choices
        direct.got = re.sub(rb'data: [^\n]*"choices":\[\][^\n]*\n\n', b"", direct.got)
    assert said == wanted
    assert through.got == direct.got
    # The engine got the client's bytes, with its model's name, and after them the edits.
    sent = through.sent.replace(b'"model":"%b"' % name.encode(), b'"model":"%b"' % model.encode())
    assert received.startswith(sent[:-1])
    assert meant == engine_got(routed.servers[model])[1]
    return model


@pytest.mark.parametrize("name", NAMES)
async def test_openai_through_routes(routed: Routed, name: str) -> None:
    for number, (resource, ask) in enumerate(OPENAI.values()):
        await compare(routed, openai.AsyncOpenAI, name, resource, ask, f"session {number}")


@pytest.mark.parametrize("name", NAMES)
async def test_anthropic_through_routes(routed: Routed, name: str) -> None:
    for number, (resource, ask) in enumerate(ANTHROPIC.values()):
        await compare(routed, anthropic.AsyncAnthropic, name, resource, ask, f"session {number}")


async def test_a_failing_target_is_tried_before_its_fall_back(routed: Routed) -> None:
    resource, ask = OPENAI["chat"]
    kept = Kept()
    async with client(openai.AsyncOpenAI, routed.penstock.url, kept) as sdk:
        await says(sdk, resource, model="gpt-failing", **ask)
    assert kept.headers["x-penstock-attempts"] == "2"
    assert kept.headers["x-penstock-backend"] == "qwen-small-0"
    assert routed.failing.arrived
