"""What is legal and looks like a failure: it passes, and no backend is accused of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import orjson
import pytest

from tests.e2e.answers import Got, ask
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.raw_backend import RawBackend, Script, answer
from tests.http.case import CLOSE, Steps

FAR_PROBES = {"interval_s": 60, "timeout_s": 5}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EMPTY = STREAM + b"0\r\n\r\n"
NO_TOKEN = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":0}}\n\ndata: [DONE]\n\n'
)
BARE: Steps = (STREAM, b"%x\r\n%b\r\n0\r\n\r\n" % (len(NO_TOKEN), NO_TOKEN))
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

Raw = Callable[[int], Awaitable[list[RawBackend]]]


@pytest.fixture
async def raw() -> AsyncIterator[Raw]:
    started: list[RawBackend] = []

    async def start(count: int) -> list[RawBackend]:
        for _ in range(count):
            started.append(RawBackend())
            await started[-1].start()
        return started

    yield start
    for backend in started:
        await backend.stop()


async def get(penstock: Penstock, path: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.get(penstock.url + path) as got:
        try:
            return got.status, await got.read()
        except aiohttp.ClientPayloadError:
            return got.status, b"cut"


def blamed(listing: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["state"], each["failures_total"]) for each in listing]


@pytest.mark.parametrize("kind", RAW_FAILURES)
async def test_retrieval_accuses_nobody(serve: Serve, raw: Raw, kind: str) -> None:
    backends = await raw(4)
    penstock = await serve([backend.url for backend in backends], health=FAR_PROBES)
    await penstock.until_ready(4)
    for backend in backends:
        backend.always = lambda request: RAW_FAILURES[kind]
    path = "/v1/responses/resp_{}?stream=true&starting_after=9"
    answers = await asyncio.gather(*[get(penstock, path.format(i % 4)) for i in range(24)])
    if kind == "nothing left to say":
        assert set(answers) == {(200, b"")}
    elif kind == "only its end":
        assert set(answers) == {(200, LAST)}
    elif kind == "given up":
        assert set(answers) == {(200, GIVEN_UP)}
    assert blamed(await penstock.backends()) == [("ready", 0)] * 4


async def test_an_answer_that_is_empty_everywhere_is_the_answer(serve: Serve, raw: Raw) -> None:
    """Beam search that ends at once: vLLM reports its usage, and no token."""
    backends = await raw(3)
    penstock = await serve([backend.url for backend in backends], health=FAR_PROBES)
    await penstock.until_ready(3)
    for backend in backends:
        backend.always = lambda request: BARE
    for _ in range(8):
        got = await ask(penstock, stream=True, use_beam_search=True)
        assert (got.status, got.ended, got.body) == (200, True, b"data: [DONE]\n\n")
        assert got.header(b"x-penstock-attempts") == b"2"
    assert blamed(await penstock.backends()) == [("ready", 0)] * 3
    # One backend alone has nobody to be compared with.
    alone = await serve([backends[0].url], health=FAR_PROBES)
    await alone.until_ready(1)
    got = await ask(alone, stream=True, use_beam_search=True)
    assert (got.status, got.ended, got.body) == (200, True, b"data: [DONE]\n\n")
    # Nor can it be told from what is given up: nothing that may be cut looks whole.
    assert (await ask(alone, stream=True)).status == 502


async def test_an_empty_answer_stands_when_the_next_backend_has_none_at_all(
    serve: Serve, raw: Raw
) -> None:
    backends = await raw(2)
    penstock = await serve([backend.url for backend in backends], health=FAR_PROBES)
    await penstock.until_ready(2)
    backends[0].always = lambda request: BARE
    bad = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
    backends[1].always = lambda request: (bad,)
    for _ in range(6):
        got = await ask(penstock, stream=True, use_beam_search=True)
        assert (got.status, got.ended, got.body) == (200, True, b"data: [DONE]\n\n")
    assert (await ask(penstock, stream=True)).status == 502


@pytest.mark.parametrize("beams", [{}, {"use_beam_search": False}])
async def test_an_ordinary_request_is_asked_of_a_third(
    serve: Serve, raw: Raw, beams: dict[str, Any]
) -> None:
    backends = await raw(3)
    penstock = await serve([backend.url for backend in backends], health=FAR_PROBES)
    await penstock.until_ready(3)
    for backend in backends:
        backend.always = lambda request: BARE
    got = await ask(penstock, stream=True, **beams)
    assert (got.status, got.header(b"x-penstock-attempts")) == (502, b"3")


async def test_a_fleet_that_gives_up_what_it_queues_is_asked_for_little_of_it_twice(
    serve: Serve, raw: Raw
) -> None:
    backends = await raw(2)
    penstock = await serve([backend.url for backend in backends], health=FAR_PROBES)
    await penstock.until_ready(2)
    begun, ended = 0, 0
    # By turns: what fails at one backend only may all move on.
    first_attempts: list[list[asyncio.Event]] = [[], []]
    second_attempts = asyncio.Event()

    def counted() -> None:
        waiting = max(first_attempts, key=len)
        if begun >= 60 and waiting:
            waiting.pop().set()
        if begun - 60 + ended == 60:  # each request has ended or waits in its second attempt
            second_attempts.set()

    def giving_up(waiting: list[asyncio.Event]) -> Callable[[bytes], Script]:
        def give_up(request: bytes) -> Script:
            nonlocal begun
            begun += 1
            until = second_attempts
            if begun <= 60:
                waiting.append(until := asyncio.Event())
            counted()
            return (until, *BARE)

        return give_up

    async def asked() -> Got:
        nonlocal ended
        got = await ask(penstock, stream=True)
        ended += 1
        counted()
        return got

    for backend, waiting in zip(backends, first_attempts, strict=True):
        backend.always = giving_up(waiting)
    answers = await asyncio.gather(*[asked() for _ in range(60)])
    for got in answers:
        assert (got.status, got.ended) == (502, True)  # nothing that may be cut looks whole
    attempts = [int(got.header(b"x-penstock-attempts")) for got in answers]
    assert 1 <= attempts.count(2) <= 12  # a fifth of what is in flight
    assert attempts.count(1) + attempts.count(2) == 60
    assert blamed(await penstock.backends()) == [("ready", 0)] * 2


async def test_streams_that_only_end_are_a_failure(serve: Serve, raw: Raw) -> None:
    """Without the usage that was asked for: so a server sends away what it will not do."""
    done: Steps = (STREAM, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    backends = await raw(2)
    penstock = await serve([backend.url for backend in backends], health=FAR_PROBES)
    await penstock.until_ready(2)
    for backend in backends:
        backend.always = lambda request: done
    got = await ask(penstock, stream=True)
    assert (got.status, orjson.loads(got.body)["error"]["code"]) == (502, "backend_error")
    assert all(failures for _, failures in blamed(await penstock.backends()))


async def test_no_stream_is_promised_where_none_will_come(serve: Serve, raw: Raw) -> None:
    """Embeddings do not stream, whatever the request says: their JSON may take its time."""
    body = b'{"object":"list","data":[]}'
    (backend,) = await raw(1)
    penstock = await serve([backend.url], health=FAR_PROBES, timeouts={"hold_s": 0.1})
    await penstock.until_ready(1)
    backend.always = lambda request: (0.5, answer(body))
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/embeddings", "/v1/chat/completions/batch", "/tokenize"):
            asked = {"model": "sim-model", "input": "x", "prompt": "x", "stream": True}
            async with session.post(penstock.url + path, json=asked) as got:
                assert (got.status, got.content_type) == (200, "application/json")
                assert await got.read() == body


async def test_a_transcription_without_its_end_is_told(serve: Serve, raw: Raw) -> None:
    chunk = (
        b'data: {"id":"t","object":"transcription.chunk","created":1,"model":"m",'
        b'"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    )
    (backend,) = await raw(1)
    penstock = await serve([backend.url], health=FAR_PROBES)
    await penstock.until_ready(1)
    for end, whole in ((b"", False), (b"data: [DONE]\n\n", True)):
        part = b"%x\r\n%b\r\n" % (len(chunk + end), chunk + end)
        backend.expect((STREAM, part, b"0\r\n\r\n"))
        form = aiohttp.FormData({"model": "sim-model", "stream": "true"})
        form.add_field("file", b"RIFF", filename="a.wav")
        url = penstock.url + "/v1/audio/transcriptions"
        async with aiohttp.ClientSession() as session, session.post(url, data=form) as got:
            assert got.status == 200
            if whole:
                assert await got.read() == chunk + end
                continue
            with pytest.raises(aiohttp.ClientPayloadError):
                await got.read()
    assert 'penstock_stream_failures_total{reason="unfinished"} 1.0' in await penstock.metrics()


async def test_the_simulated_server_agrees(simulate: Simulate, serve: Serve) -> None:
    """A stored response is passed as it is, by whoever holds it."""
    servers = await simulate(2)
    penstock = await serve(servers, health=FAR_PROBES)
    made = orjson.loads((await ask(penstock, "/v1/responses")).body)
    status, body = await get(penstock, f"/v1/responses/{made['id']}")
    assert (status, orjson.loads(body)["id"]) == (200, made["id"])
