"""The real SDKs before a proxy whose only backend fails: each must raise, or have all of it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anthropic
import openai

from tests.faults.streams import CHAT, COMPLETIONS, RESPONSES, Stream, Verdict


async def ask(url: str, name: str, paths: Sequence[str], limit_s: float) -> list[Verdict]:
    """One stream of each dialect at once, and what its application would believe."""
    streams = [Stream(f"{name} sdk {path}", path) for path in paths]
    async with (
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as gpt,
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as claude,
    ):
        return await asyncio.gather(*[_judged(gpt, claude, each, limit_s) for each in streams])


async def _judged(
    gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, stream: Stream, limit_s: float
) -> Verdict:
    said: list[str] = []
    try:
        async with asyncio.timeout(limit_s):
            await _read(gpt, claude, stream, said)
    except TimeoutError:
        return Verdict.HUNG
    except (openai.OpenAIError, anthropic.AnthropicError):
        return Verdict.TOLD
    text = "".join(said)
    if text == stream.wanted:
        return Verdict.WHOLE
    return Verdict.SILENT if stream.wanted.startswith(text) else Verdict.MIXED


async def _read(
    gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, stream: Stream, said: list[str]
) -> None:
    asked: Any = stream.asked
    if stream.path == CHAT:
        async for chunk in await gpt.chat.completions.create(**asked):
            said += [choice.delta.content or "" for choice in chunk.choices]
    elif stream.path == COMPLETIONS:
        async for part in await gpt.completions.create(**asked):
            said += [choice.text for choice in part.choices]
    elif stream.path == RESPONSES:
        async for event in await gpt.responses.create(**asked):
            if event.type == "response.output_text.delta":
                said.append(event.delta)
    else:
        async for message in await claude.messages.create(**asked):
            if message.type == "content_block_delta" and message.delta.type == "text_delta":
                said.append(message.delta.text)
