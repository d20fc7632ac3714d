"""A real vLLM writes its spans into the trace that penstock tells it of."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.process import Serve
from tests.e2e.span_receiver import SpanReceiver
from tests.vllm.server import MODEL, VllmServer, running

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, CLIENT = 2, 3
EXPORT_S = 5.0  # how often vLLM sends its spans
WITHIN_S = 30.0


@pytest.fixture
async def receiver() -> AsyncIterator[SpanReceiver]:
    one = SpanReceiver()
    await one.start()
    yield one
    await one.stop()


async def test_its_spans_are_children_of_our_attempts(
    serve: Serve, receiver: SpanReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    server = VllmServer(tmp_path / "vllm.log", "--otlp-traces-endpoint", receiver.url)
    with running([]) as servers:
        servers.append(server.start())
        await asyncio.to_thread(server.wait)
        tracing = {"otlp_endpoint": receiver.url, "ratio": 0.0, "forced_ratio": 1.0}
        penstock = await serve([server.url], tracing=tracing)
        body = {"model": MODEL, "prompt": "one two", "max_tokens": 4, "stream": True}
        async with aiohttp.ClientSession() as session:
            for flags in ("01", "00"):
                headers = {"traceparent": f"00-{TRACE}-{CALLER}-{flags}"}
                url = f"{penstock.url}/v1/completions"
                async with session.post(url, json=body, headers=headers) as answer:
                    assert answer.status == 200
                    await answer.read()
        async with asyncio.timeout(WITHIN_S):
            while len(found := [span for span in receiver.spans if span.trace_id == TRACE]) < 3:
                await asyncio.sleep(0.1)
        await asyncio.sleep(EXPORT_S + 1)  # that of the request that is not sampled would come, too
        found = [span for span in receiver.spans if span.trace_id == TRACE]
    ours = {span.kind: span for span in found if span.service == "penstock"}
    # It also tells of its start, in a trace of its own.
    (theirs,) = [span for span in found if span.service != "penstock"]
    assert ours[SERVER].parent_id == CALLER
    assert ours[CLIENT].parent_id == ours[SERVER].span_id
    assert (theirs.name, theirs.parent_id) == ("llm_request", ours[CLIENT].span_id)
    assert theirs.attributes["gen_ai.usage.completion_tokens"] == 4
    assert theirs.attributes["gen_ai.latency.time_in_queue"] >= 0
    assert ours[CLIENT].began_ns <= theirs.began_ns
