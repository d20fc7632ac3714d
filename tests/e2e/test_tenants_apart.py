"""Backends that send more than they are asked for: no tenant ever sees another one's bytes.

Every surplus holds the key of the tenant whose answer it follows, so that a single byte out
of place is seen.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable

import orjson
import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, answer
from tests.http.case import Steps, echo
from tests.http.referees import Refused, h11_answers

_KEY = re.compile(rb"\r\nauthorization: Bearer (key-[a-z]-end)\r\n")
TENANTS = (b"key-a-end", b"key-b-end", b"key-c-end")
PLACE = b"key-?-end"
SECONDS = 2.5


def too_much(
    pause_s: float | None, surplus: bytes, status: bytes = b"200 OK"
) -> Callable[[bytes], Steps]:
    """Lets `surplus` follow each answer, after `pause_s` (None: in the same write)."""

    def script(request: bytes) -> Steps:
        head, _, body = request.partition(b"\r\n\r\n")
        match = _KEY.search(head)
        assert match is not None
        whole = answer(echo(body)) if status == b"200 OK" else b"HTTP/1.1 %b\r\n\r\n" % status
        more = surplus.replace(PLACE, match[1])
        return (whole + more,) if pause_s is None else (whole, pause_s, more)

    return script


ANSWER = answer(b'{"secret":"%b"}' % PLACE)
EVENT = b'data: {"choices":[{"index":0,"text":"%b","finish_reason":"stop"}]}\n\n' % PLACE
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
)
BACKENDS = {
    "an answer with the answer": too_much(None, ANSWER),
    "an answer at once": too_much(0.0, ANSWER),
    "an answer within the rest": too_much(0.005, ANSWER),
    "an answer after the rest": too_much(0.04, ANSWER),
    "a late timeout": too_much(0.05, b"HTTP/1.1 408 Late\r\nx-secret: %b\r\n\r\n" % PLACE),
    "half an answer": too_much(0.03, ANSWER[:-2]),
    "a stream": too_much(0.03, STREAM),
    "a body after a 204": too_much(0.0, ANSWER, b"204 No Content"),
    "a chunk": too_much(0.03, b"9\r\n%b\r\n0\r\n\r\n" % PLACE),
}


@pytest.fixture
async def backends() -> AsyncIterator[list[RawBackend]]:
    started = [RawBackend() for _ in BACKENDS]
    for backend, script in zip(started, BACKENDS.values(), strict=True):
        backend.always = script
        await backend.start()
    yield started
    for backend in started:
        await backend.stop()


async def test_no_tenant_sees_anothers_bytes(serve: Serve, backends: list[RawBackend]) -> None:
    penstock = await serve(
        [backend.url for backend in backends],
        pool={"policy": "round_robin"},
        timeouts={"first_byte_s": 1, "idle_s": 1},
    )
    ends_s = time.monotonic() + SECONDS

    async def ask_on(key: bytes) -> int:
        served = 0
        while served < len(BACKENDS) or time.monotonic() < ends_s:
            got = await ask(penstock, key, b"%b %d" % (key, served))
            others = [other for other in TENANTS if other != key and other in got]
            assert not others, got
            served += 1
        return served

    served = await asyncio.gather(*(ask_on(key) for key in TENANTS * 2))
    arrived = [sum(map(len, backend.arrived)) for backend in backends]
    assert all(arrived), served


async def ask(penstock: Penstock, key: bytes, prompt: bytes) -> bytes:
    """All bytes that come of one request, until its answer is whole or cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    body = orjson.dumps({"prompt": prompt.decode()})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key
    writer.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    got = b""
    async with asyncio.timeout(10):
        while not _whole(got) and (data := await reader.read(65_536)):
            got += data
    writer.transport.abort()
    return got


def _whole(got: bytes) -> bool:
    try:
        return any(each.whole for each in h11_answers(got, [b"POST"], eof=False))
    except Refused:
        return True
