"""Backends whose certificates take long to read delay no other backends."""

import asyncio
import contextlib
import os
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.certificates import issue
from tests.e2e.listening import stop_listening
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask
from tests.e2e.tls import TlsFront, post

# On the curve c2pnb304w1, compressed. To read a certificate with it takes half a millisecond.
DEAR_KEY = bytes.fromhex(
    "303f301306072a8648ce3d020106082a8648ce3d0300110328000214"
    "6cccbceb76f96215d15bc8112e0d559fd4af2b48f7fd409372003b86a4230cbeb5884fb8e2"
)
FLIGHT_BYTES = 24_400  # as many as a backend may send
TOKENS = 150
COMPLETIONS = "/v1/completions"
PROMPT = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 1}
STREAM = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": TOKENS, "stream": True}


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content).to_bytes(1, "big")
    return bytes([tag]) + (size if len(content) < 128 else b"\x81" + size) + content


def certificate() -> bytes:
    """The smallest one that OpenSSL reads."""
    ed25519 = der(0x30, bytes.fromhex("06032b6570"))
    dates = der(0x30, der(0x17, b"200101000000Z"), der(0x17, b"400101000000Z"))
    nobody = der(0x30)
    body = der(0x30, der(2, b"\1"), ed25519, nobody, dates, nobody, DEAR_KEY)
    return der(0x30, body, ed25519, der(3, b"\0"))


def flight() -> bytes:
    """A TLS 1.2 server's hello and certificates. Nobody needs a key to send them."""

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(3, "big") + data

    one = sized(certificate())
    hello = b"\x03\x03" + os.urandom(32) + bytes.fromhex("00c02b000005ff01000100")
    said = b"\x02" + sized(hello) + b"\x0b" + sized(sized(one * ((FLIGHT_BYTES - 120) // len(one))))
    records = (said[at : at + 16_000] for at in range(0, len(said), 16_000))
    return b"".join(b"\x16\x03\x03" + len(each).to_bytes(2, "big") + each for each in records)


async def pieces_of_a_stream(penstock: Penstock) -> list[float]:
    """When its client got each of its pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    writer.write(post("/v1/completions", STREAM))
    times = []
    while b"[DONE]" not in (data := await reader.read(65_536)):
        assert data
        times.append(time.perf_counter())
    writer.close()
    return times


async def attack(count: int) -> tuple[list[asyncio.Server], list[str], list[float]]:
    """So many hostile backends, their URLs, and when one of them has sent its flight."""
    sent: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read(65_536)
            writer.write(flight())
            sent.append(time.perf_counter())
            await reader.read(65_536)
        writer.transport.abort()

    attackers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(count)]
    urls = [f"https://localhost:{each.sockets[0].getsockname()[1]}" for each in attackers]
    return attackers, urls, sent


async def test_a_backends_certificates_delay_no_others_streams(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    """Each probe dials, and is sent 190 certificates: 100 to 200 ms of reading."""
    (server,) = await simulate(profile="steady-50")
    attackers, urls, sent = await attack(3)
    penstock = await serve(
        [server.url, *urls],
        ready=1,
        pool={"tls": {"ca_file": str(issue(tmp_path).ca)}},
        health={"interval_s": 0.1, "timeout_s": 2},
    )
    pieces = await pieces_of_a_stream(penstock)
    await stop_listening(*attackers)
    waits = sorted(
        max(
            later - piece
            for piece, later in pairwise(pieces)
            if piece <= at_s + 0.2 and later > at_s
        )
        for at_s in sent
        if pieces[0] < at_s < pieces[-1] - 0.3
    )
    print(f"waits for the next pieces: {[round(wait * 1000) for wait in waits]} ms")
    assert len(waits) >= 3
    assert median(waits) < 0.1


async def test_many_backends_certificates_delay_no_other_backends_handshakes(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    """A good backend in another pool is dialled for each request, because their keys differ."""
    (server,) = await simulate(profile="instant")
    front = await TlsFront(server.port).start()
    attackers, urls, sent = await attack(12)
    tls = {"ca_file": str(issue(tmp_path).ca)}
    hostile = [{"name": f"hostile-{number}", "url": url} for number, url in enumerate(urls)]
    pools = [
        {"name": "hostile", "models": ["other"], "tls": tls, "backends": hostile},
        {
            "name": "default",
            "models": ["sim-model"],
            "tls": tls,
            "backends": [{"name": "good", "url": front.url}],
        },
    ]
    # The good backend and the others run in this process, which may stand still for a second.
    health = {"interval_s": 0.5, "timeout_s": 5}
    penstock = await serve([], ready=1, pools=pools, health=health, timeouts={"connect_s": 5})
    waits_s: list[float] = []
    statuses: list[int] = []
    ends_s = time.perf_counter() + 4
    while time.perf_counter() < ends_s:
        began_s = time.perf_counter()
        got = await ask(penstock, COMPLETIONS, PROMPT, authorization=f"Bearer {len(waits_s)}")
        waits_s.append(time.perf_counter() - began_s)
        statuses.append(got.status)
        await asyncio.sleep(0.02)
    await stop_listening(*attackers)
    await front.stop()
    doubts = sum(b"name=good was=ready" in line for line in penstock.log)
    print(
        f"{len(waits_s)} requests, median {median(waits_s) * 1000:.0f} ms, longest"
        f" {max(waits_s) * 1000:.0f} ms; {len(sent)} flights; {doubts} doubts"
    )
    assert len(sent) > 12
    assert set(statuses) == {200}
    assert median(waits_s) < 0.15
    assert not doubts
