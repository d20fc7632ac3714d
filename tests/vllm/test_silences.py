"""A real vLLM that is silent for 90 s after its first token, behind a balancer of 60 s."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import openai
import orjson
import pytest

from tests.e2e.process import Serve
from tests.vllm.server import MODEL, VllmServer, running

PARSERS: Final = Path(__file__).parent / "held_parsers.py"
FLAGS: Final = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "held"),
    *("--tool-parser-plugin", str(PARSERS), "--reasoning-parser-plugin", str(PARSERS)),
    # So many that the fastest machine is not done before the call.
    *("--reasoning-parser", "held", "--max-model-len", "100000"),
    *("--hf-overrides", '{"max_position_embeddings": 100000}', "--num-gpu-blocks-override", "3200"),
)
BALANCER_S: Final = 60.0
PARAMETERS: Final = {"type": "object", "properties": {"lock": {"type": "string"}}}
TOOLS: Final = [{"type": "function", "function": {"name": "open_lock", "parameters": PARAMETERS}}]


@asynccontextmanager
async def balancer(port: int) -> AsyncIterator[int]:
    """Passes bytes to a port, and closes who was sent nothing for BALANCER_S."""

    async def passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)

    async def answered(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(BALANCER_S):
                data = await source.read(65_536)
            if not data:
                return
            sink.write(data)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, sending = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(passed(reader, sending))
        with suppress(TimeoutError, ConnectionError):
            await answered(upstream, writer)
        asking.cancel()
        sending.close()
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.timeout(900)
async def test_a_silent_stream_is_whole(serve: Serve, tmp_path: Path) -> None:
    with running([VllmServer(tmp_path / "vllm.log", *FLAGS)]) as (server,):
        penstock = await serve([server.url])
        async with balancer(penstock.port) as port:
            url = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Open it."}]}
                ask |= {"tools": TOOLS, "stream": True, "temperature": 0.0}
                ask |= {"max_tokens": 90_000, "extra_body": {"ignore_eos": True}}
                reasoning, arguments, ends, at_s = "", "", "", [time.monotonic()]
                async for chunk in await client.chat.completions.create(**ask):
                    at_s.append(time.monotonic())
                    delta = chunk.choices[0].delta
                    reasoning += getattr(delta, "reasoning", None) or ""
                    for call in delta.tool_calls or []:
                        arguments += (call.function and call.function.arguments) or ""
                    ends = chunk.choices[0].finish_reason or ends
                    if arguments:
                        break  # the rest would take minutes
    silence_s = max(after - before for before, after in itertools.pairwise(at_s))
    print(f"\n{silence_s:.1f} s without an event; {at_s[-1] - at_s[0]:.1f} s in all")
    assert silence_s > BALANCER_S
    assert reasoning
    assert orjson.loads(arguments)["lock"] == "north"
