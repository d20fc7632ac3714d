"""Answers that lie of themselves: what is counted is bounded by what went by."""

import orjson

from tests.e2e.process import Serve
from tests.e2e.raw_backend import RawBackend
from tests.e2e.wire import Client, request

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":4000000000,"completion_tokens":4000000000}}\n\n'
)
FAULT = b'data: {"error":{"message":"no","code":400}}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = orjson.dumps({"model": "sim-model", "prompt": "x", "stream": True})


def streamed(*events: bytes) -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


async def test_absurd_usage_is_bounded_and_a_refusal_midway_is_told(serve: Serve) -> None:
    backend = RawBackend()
    await backend.start()
    try:
        penstock = await serve([backend.url])
        for events in ((TOKEN, USAGE, DONE), (TOKEN, FAULT, DONE)):
            backend.expect((streamed(*events),))
            client = await Client.open(penstock, request(b"Connection: close", body=BODY))
            got = await client.rest(5.0)
            client.close()
            assert got is not None
            assert got.endswith(b"0\r\n\r\n")
        lines = (await penstock.metrics()).splitlines()
        assert 'penstock_stream_failures_total{reason="refused"} 1.0' in lines
        counts = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("penstock_") and "_tokens_total{" in line
        ]
        assert 0 < max(counts) < 100_000
    finally:
        await backend.stop()
