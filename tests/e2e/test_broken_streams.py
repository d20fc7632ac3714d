"""Failures after the first token: told, and never like an end; and long waits for it."""

import asyncio
import os
import time

import aiohttp
import pytest

from tests.e2e.answers import BODIES, ENDS, Got, ask, asked
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.raw_backend import RawBackend, RawBackends, answer
from tests.faults.matrix import FAULTS, Fault, fleet, run
from tests.faults.streams import Verdict
from tests.http.case import CLOSE, Steps

every_dialect = pytest.mark.parametrize("path", BODIES)


def assert_broken(path: str, got: Got) -> None:
    """The dialect's error event is the last thing said, and nothing looks like an end."""
    assert got.status == 200
    assert not got.ended
    assert b"[DONE]" not in got.body
    assert got.body.endswith(b"}\n\n")
    event = got.body.rstrip().rpartition(b"\n\n")[2]
    told = got.last_event
    if path == "/v1/messages":
        assert event.startswith(b"event: error\ndata: ")
        assert told["type"] == "error"
        assert told["error"].keys() == {"type", "message"}
    elif path == "/v1/responses":
        assert event.startswith(b"event: error\ndata: ")
        assert (told["type"], told["code"]) == ("error", "stream_broken")
    else:
        assert event.startswith(b"data: ")
        assert told["error"]["code"] == "stream_broken"


@every_dialect
async def test_a_cut_stream_is_reported_broken(simulate: Simulate, serve: Serve, path: str) -> None:
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("cut_mid_stream", tokens=3)
    got = await ask(penstock, path, stream=True)
    assert_broken(path, got)
    for server in servers:
        server.faults.set("cut_mid_stream", tokens=3, rst=True)
    assert_broken(path, await ask(penstock, path, stream=True))
    assert asked(servers) == 2
    got = await ask(penstock, path, stream=True, http=b"1.0")
    assert got.reset
    for server in servers:
        server.faults.clear()
    got = await ask(penstock, path, stream=True, http=b"1.0")
    assert not got.reset
    assert not got.header(b"transfer-encoding")
    assert got.body.endswith(ENDS[path])


async def test_a_held_stream_still_fails_over(simulate: Simulate, serve: Serve) -> None:
    """The 200 and a ping go out after `hold_s`; the tokens are another backend's."""
    servers = await simulate(2)
    limits = {"hold_s": 0.2, "first_byte_s": 0.5, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits, pool={"policy": "round_robin"})
    async with aiohttp.ClientSession() as session:
        for path, fields in BODIES.items():
            servers[0].faults.set("hang_after_headers", times=1, path=path)
            url, body = penstock.url + path, fields | {"stream": True}
            held = 0
            for _ in range(2):
                began_s = time.monotonic()
                async with session.post(url, json=body) as answer:
                    assert answer.status == 200
                    assert answer.content_type == "text/event-stream"
                    first = await answer.content.readline()
                    first_s = time.monotonic() - began_s
                    rest = await answer.content.read()
                if first.startswith(b":"):
                    held += 1
                    assert first == b": ping\n"
                    assert 0.15 < first_s < 0.45
                    assert 0.45 < time.monotonic() - began_s < 1.0
                    first = rest.lstrip()
                assert first.startswith((b"data: {", b"event: "))
                assert rest.endswith(ENDS[path])
                assert b"error" not in rest.replace(b'"error":null', b"")
            assert held == 1, path


FAR_PROBES = {"interval_s": 60, "timeout_s": 5}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EMPTY = STREAM + b"0\r\n\r\n"
LAST = (
    b'event: response.completed\ndata: {"type":"response.completed","response":'
    b'{"id":"resp_1","object":"response","status":"completed","usage":null}}\n\n'
)
GIVEN_UP = (
    b'{"id":"resp_1","object":"response","status":"completed","usage":'
    b'{"input_tokens":7,"output_tokens":0}}'
)
RAW_FAILURES: dict[str, Steps] = {
    "nothing left to say": (EMPTY,),
    "only its end": (STREAM, b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST)),
    "without an end": (STREAM, b"4\r\n: x\n\r\n", CLOSE),
    "given up": (answer(GIVEN_UP),),
    "an error of its own": (answer(b'{"error":{"message":"no"}}', status=b"500 Internal"),),
    "502": (answer(b"{}", status=b"502 Bad Gateway"),),
    "too much": (answer(b"{}", status=b"429 Too Many"),),
    "cut": (answer(b'{"id":"resp_1"}')[:-9], CLOSE),
}


async def get(penstock: Penstock, path: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.get(penstock.url + path) as got:
        try:
            return got.status, await got.read()
        except aiohttp.ClientPayloadError:
            return got.status, b"cut"


async def test_failed_retrievals_blame_no_backend(serve: Serve, raw_backends: RawBackends) -> None:
    backends = await raw_backends(4)
    penstock = await serve(backends, health=FAR_PROBES)
    path = "/v1/responses/resp_{}_{}?stream=true&starting_after=9"
    wanted = {"nothing left to say": b"", "only its end": LAST, "given up": GIVEN_UP}
    for number, (kind, steps) in enumerate(RAW_FAILURES.items()):
        for backend in backends:
            backend.always = lambda request, steps=steps: steps
        asked = [get(penstock, path.format(number, i % 4)) for i in range(24)]
        answers = await asyncio.gather(*asked)
        assert kind not in wanted or set(answers) == {(200, wanted[kind])}
        listing = [(each["state"], each["failures_total"]) for each in await penstock.backends()]
        assert listing == [("ready", 0)] * 4, kind


async def test_answers_that_never_stream_are_not_held(
    serve: Serve, raw_backend: RawBackend
) -> None:
    """Embeddings do not stream, whatever the request says: their JSON may take its time."""
    body = b'{"object":"list","data":[]}'
    penstock = await serve([raw_backend], health=FAR_PROBES, timeouts={"hold_s": 0.1})
    raw_backend.always = lambda request: (0.5, answer(body))
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/embeddings", "/v1/chat/completions/batch", "/tokenize"):
            asked = {"model": "sim-model", "input": "x", "prompt": "x", "stream": True}
            async with session.post(penstock.url + path, json=asked) as got:
                assert (got.status, got.content_type) == (200, "application/json")
                assert await got.read() == body


# `make faults` has all, with 200 streams each.
STREAMS = int(os.environ.get("TEST_FAULT_STREAMS", "24"))
FEW = (
    "SIGKILL",
    "SIGKILL before its first token",
    "RST at byte 3700",
    "error event after 5 tokens",
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "fault",
    [each for each in FAULTS if STREAMS > 24 or each.name in FEW],
    ids=lambda fault: str(fault.name),
)
async def test_no_client_is_deceived_by_a_fault(serve: Serve, fault: Fault) -> None:
    async with fleet() as servers:
        row = await run(fault, servers, serve, STREAMS)
    print(row)
    assert row.problems(hidden=fault.hidden) == []
    assert row.verdicts.total() == STREAMS
    if fault.during_all and fault.name in FEW:
        assert row.verdicts[Verdict.TOLD] > 0
        assert row.sdk[Verdict.TOLD] == len(fault.paths)
