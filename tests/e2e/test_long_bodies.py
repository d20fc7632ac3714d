"""Long bodies arrive whole at the backend, however they come, and hold nothing when they do not."""

import asyncio
import random

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, answer

MIB = 2**20


def post(body: bytes, *fields: bytes, length: int | None = None) -> bytes:
    """A request whose body may be announced longer than it is."""
    size_bytes = len(body) if length is None else length
    lines = [b"host: x", b"content-type: application/json", b"content-length: %d" % size_bytes]
    head = b"\r\n".join([b"POST /v1/completions HTTP/1.1", *lines, *fields])
    return head + b"\r\n\r\n" + body


def prompt(rng: random.Random, size_bytes: int) -> bytes:
    """A body of this size. No two parts of it are alike."""
    letters = rng.randbytes(size_bytes // 2).hex().encode()
    return b'{"prompt":"%b"}' % letters[: size_bytes - 13].ljust(size_bytes - 13, b"x")


async def connect(penstock: Penstock) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", penstock.port)


async def answer_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The status line and the body of one answer with a length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head.split(b"\r\n")[0], await asyncio.wait_for(reader.readexactly(length), 20)


async def test_pieces_and_pipelined_requests_arrive_as_they_were_sent(serve: Serve) -> None:
    """A read may end anywhere, and a short request may come with a body's last bytes."""
    rng = random.Random(5)
    backend = RawBackend()
    await backend.start()
    bodies: list[bytes] = []

    def keep(raw: bytes) -> tuple[bytes]:
        bodies.append(raw.partition(b"\r\n\r\n")[2])
        return (answer(b'{"choices":[]}'),)

    backend.always = keep
    penstock = await serve([backend.url])
    reader, writer = await connect(penstock)
    sent: list[bytes] = []
    for size_bytes in (300_000, MIB, 5 * MIB, 262_144, 700_000):
        sent += [prompt(rng, size_bytes), prompt(rng, 40)]
        stream, at = post(sent[-2]) + post(sent[-1]), 0
        while at < len(stream):
            size = rng.choice((1, 100, 65_536, 262_144, MIB))
            writer.write(stream[at : at + size])
            at += size
            await writer.drain()
            if rng.random() < 0.3:
                await asyncio.sleep(0.01)
        for _ in range(2):
            assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b'{"choices":[]}')
    assert [len(body) for body in bodies] == [len(body) for body in sent]
    assert bodies == sent
    writer.transport.abort()
    await backend.stop()


async def test_a_body_that_does_not_come_ends_and_others_go_on(serve: Serve) -> None:
    """Of one the rest is never sent, the clients of others leave, and one wants to be asked."""
    backend = RawBackend()
    await backend.start()
    limits = {"body_bytes": 2 * MIB, "bodies_bytes": 12 * MIB}  # one client may fill half of it
    penstock = await serve([backend.url], timeouts={"client_body_s": 1.0}, limits=limits)
    rng = random.Random(6)
    silent, others = await connect(penstock), [await connect(penstock) for _ in range(10)]
    for _, writer in (silent, *others):
        begun = 1_000 if writer is silent[1] else 500_000  # more would give it more time
        writer.write(post(prompt(rng, begun), length=2 * MIB))
        await writer.drain()
    await asyncio.sleep(0.2)
    for number, (_, writer) in enumerate(others):
        if number % 2:
            writer.transport.abort()
        else:
            writer.close()
    assert (await answer_of(silent[0]))[0].startswith(b"HTTP/1.1 408 ")
    for _ in range(5):  # the answer has ended: these bytes are for nobody
        silent[1].write(b"x" * 65_536)
    assert await asyncio.wait_for(silent[0].read(), 20) == b""
    silent[1].transport.abort()
    reader, writer = await connect(penstock)
    writer.write(post(b"", b"expect: 100-continue", length=MIB))
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20) == (
        b"HTTP/1.1 100 Continue\r\n\r\n"
    )
    body = prompt(rng, MIB)
    writer.write(body)
    assert (await answer_of(reader))[0] == b"HTTP/1.1 200 OK"
    (arrived,) = backend.arrived
    assert arrived.endswith(b"\r\n\r\n" + body)
    writer.transport.abort()
    await backend.stop()
