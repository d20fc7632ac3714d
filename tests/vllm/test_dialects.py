"""Every API through penstock to a real vLLM: by the SDKs, and as raw HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import openai
import orjson
import pytest
from anthropic.types import TextBlock

from tests.e2e.process import Penstock
from tests.vllm.server import CONTEXT_TOKENS, MODEL

TOKENS = 24
QUESTION = "Tell me of rivers, 水 and bridges."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOO_MANY = CONTEXT_TOKENS + 1_000
# Each dialect's request, and how its stream ends.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": QUESTION, "max_tokens": TOKENS},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": TOKENS},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": TOKENS},
}
ENDS: dict[str, bytes | tuple[bytes, ...]] = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/responses": (
        b'"type":"response.completed"}\n\n',
        b'"type":"response.incomplete"}\n\n',  # from vLLM 0.33 on, at `max_output_tokens`
    ),
    "/v1/messages": b'data: {"type":"message_stop"}\n\n',
}
every_path = pytest.mark.parametrize("path", BODIES)
# The same words each time, and all of them.
EXACT: Any = {"extra_body": {"temperature": 0, "ignore_eos": True}}


@pytest.fixture
async def gpt(penstock: Penstock) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=penstock.url + "/v1", api_key="k", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def claude(penstock: Penstock) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=penstock.url, api_key="k", max_retries=0
    ) as client:
        yield client


async def test_openai_chat(gpt: openai.AsyncOpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, **EXACT}
    whole = await gpt.chat.completions.create(**ask)
    assert whole.usage.completion_tokens == TOKENS
    text, usages = "", 0
    async for chunk in await gpt.chat.completions.create(**ask, stream=True):
        text += chunk.choices[0].delta.content or ""  # no chunk without a choice
        usages += chunk.usage is not None
    assert (text, usages) == (whole.choices[0].message.content, 0)
    ask["stream_options"] = {"include_usage": True}
    chunks = [chunk async for chunk in await gpt.chat.completions.create(**ask, stream=True)]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == TOKENS


async def test_openai_completions(gpt: openai.AsyncOpenAI) -> None:
    ask: Any = {"model": MODEL, "prompt": [QUESTION, "x"], "max_tokens": TOKENS, **EXACT}
    whole = await gpt.completions.create(**ask)
    texts = ["", ""]
    async for chunk in await gpt.completions.create(**ask, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert all(texts)
    ask |= {"n": 2, "stream": True, "extra_body": {"ignore_eos": True}}
    several = await gpt.completions.create(**ask)
    indices = {chunk.choices[0].index async for chunk in several}
    assert indices == {0, 1, 2, 3}


async def test_openai_responses(gpt: openai.AsyncOpenAI) -> None:
    ask: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": TOKENS, **EXACT}
    whole = await gpt.responses.create(**ask)
    kinds, text = [], ""
    async for event in await gpt.responses.create(**ask, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == whole.output_text != ""
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def test_openai_the_rest(gpt: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in gpt.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError) as unknown:
        await gpt.chat.completions.create(model="gpt-0", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:  # the backend's own
        await gpt.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=TOO_MANY)
    assert long.value.param == "max_tokens"


async def test_anthropic_messages(claude: anthropic.AsyncAnthropic) -> None:
    ask: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, **EXACT}
    whole = await claude.messages.create(**ask)
    assert isinstance(whole.content[0], TextBlock)
    assert whole.usage.output_tokens == TOKENS
    async with claude.messages.stream(**ask) as stream:
        text = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", TOKENS)
    counted = await claude.messages.count_tokens(model=MODEL, messages=MESSAGES)
    assert counted.input_tokens == whole.usage.input_tokens
    with pytest.raises(anthropic.BadRequestError):
        await claude.messages.create(**ask | {"max_tokens": TOO_MANY})


@every_path
async def test_raw_http(penstock: Penstock, path: str) -> None:
    """Streamed and plain, with and without usage; the text is the backend's own."""
    direct = (await penstock.backends())[0]["url"]
    body = {"model": MODEL, "temperature": 0, "ignore_eos": True} | BODIES[path]
    async with aiohttp.ClientSession() as session:
        for fields in ({}, {"stream": True}, {"stream": True, "stream_options": USAGE}):
            if "stream_options" in fields and "completions" not in path:
                continue
            headers = {"x-request-id": "mine"}
            answers = []
            for url in (direct, penstock.url):
                async with session.post(url + path, json=body | fields, headers=headers) as answer:
                    assert answer.status == 200
                    answers.append((answer.headers, await answer.read()))
            (_, wanted), (heads, got) = answers
            assert heads["x-request-id"] == "mine"
            assert heads["x-penstock-backend"] in ("b0", "b1")
            assert text_of(got) == text_of(wanted) != ""
            if "stream" in fields:
                assert got.endswith(ENDS[path])
                assert (b'"usage":{"prompt_tokens"' in got) == ("stream_options" in fields)
            elif "completions" in path:
                assert orjson.loads(got)["usage"]["completion_tokens"] == TOKENS


USAGE = {"include_usage": True}


def text_of(body: bytes) -> str:
    """What the model said, in any dialect, streamed or not."""
    if b"data: " not in body:
        return said(orjson.loads(body))
    datas = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(map(delta_of, map(orjson.loads, datas)))


def said(whole: Any) -> str:
    if "output" in whole:
        return str(whole["output"][0]["content"][0]["text"])
    if "content" in whole:
        return str(whole["content"][0]["text"])
    choice = whole["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def delta_of(event: Any) -> str:
    if "choices" in event:
        choices = event["choices"]
        text = (
            choices[0].get("text") or choices[0].get("delta", {}).get("content") if choices else ""
        )
    elif event["type"] == "response.output_text.delta":
        text = event["delta"]
    else:
        text = event["delta"].get("text") if event["type"] == "content_block_delta" else ""
    return text or ""
