"""Clients that stall in the handshake, or whose certificates take long to read, delay no others."""

import asyncio
import contextlib
import os
import socket
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.certificates import client_certificate, client_context
from tests.e2e.process import Penstock
from tests.e2e.test_client_certificates import (
    CERTIFIED,
    COMPLETIONS,
    KEYED,
    ONE,
    PROMPT,
    Certified,
    certified,
    showing,
)
from tests.e2e.test_dear_certificates import certificate
from tests.e2e.tls import TlsClient, post

__all__ = ["certified"]

STALLED = 200
ATTACKERS = 24
SHOWN_BYTES = 15_000  # a client may send 16 KiB


def sized(data: bytes, size_bytes: int = 3) -> bytes:
    return len(data).to_bytes(size_bytes, "big") + data


def record(message: bytes) -> bytes:
    return b"\x16\x03\x03" + sized(message, 2)


def hello() -> bytes:
    """A hello of TLS 1.2, whose certificates are not encrypted."""
    group = b"\x00\x0a" + sized(sized(b"\x00\x17", 2), 2)
    signatures = b"\x00\x0d" + sized(sized(b"\x04\x03\x08\x04\x04\x01", 2), 2)
    ciphers = sized(b"\xc0\x2b\xc0\x2f\xc0\x30\xc0\x2c", 2)
    body = b"\x03\x03" + os.urandom(32) + b"\0" + ciphers + b"\x01\0" + sized(group + signatures, 2)
    return record(b"\x01" + sized(body))


def dear_certificates() -> bytes:
    one = sized(certificate())
    return record(b"\x0b" + sized(sized(one * (SHOWN_BYTES // len(one)))))


async def stall(penstock: Penstock, sent: bytes) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    writer.write(sent)
    if len(sent) == len(hello()):
        assert await reader.read(65_536)  # the server's part
    return writer


async def attack(penstock: Penstock, took_s: list[float]) -> None:
    """Show dear certificates again and again."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
        try:
            writer.write(hello())
            await reader.readuntil(b"\x0e\0\0\0")  # the hello is done
            began_s = time.perf_counter()
            writer.write(dear_certificates())
            await reader.read(65_536)
            took_s.append(time.perf_counter() - began_s)
        except OSError:
            took_s.append(0.0)
        finally:
            writer.transport.abort()


def comes_from_elsewhere(penstock: Penstock, shows: Path) -> float:
    """How long the handshake of a client with another address takes, with its first answer."""
    context = client_context()
    context.load_cert_chain(shows, shows.with_suffix(".key"))
    began_s = time.perf_counter()
    with (
        socket.create_connection(
            ("127.0.0.1", penstock.port), 10, source_address=("127.0.0.2", 0)
        ) as tcp,
        context.wrap_socket(tcp, server_hostname="localhost") as client,
    ):
        client.sendall(post(COMPLETIONS, PROMPT))
        assert b"200 OK" in client.recv(4_096)
    return time.perf_counter() - began_s


@pytest.mark.alone
@pytest.mark.parametrize("tenants", [CERTIFIED, CERTIFIED + KEYED])
async def test_who_stalls_in_the_handshake_delays_nobody(
    certified: Certified, tmp_path: Path, tenants: list[object]
) -> None:
    _, penstock = await certified(tenants=tenants, timeouts={"client_head_s": 3})
    shows = client_certificate(tmp_path, ONE)
    parts = [hello(), hello()[:-9], b"", record(b"")[:3]]
    stalled = [await stall(penstock, parts[n % len(parts)]) for n in range(STALLED)]
    took_s = [await asyncio.to_thread(comes_from_elsewhere, penstock, shows.cert) for _ in range(9)]
    print(f"beside {len(stalled)}: {max(took_s) * 1000:.0f} ms at most")
    assert max(took_s) < 1
    async with asyncio.timeout(8):
        for writer in stalled:
            with contextlib.suppress(OSError):
                await writer.wait_closed() if writer.is_closing() else None
        while f"penstock_tls_handshakes_failed_total {STALLED}.0" not in await penstock.metrics():
            await asyncio.sleep(0.1)
    for writer in stalled:
        writer.transport.abort()


@pytest.mark.alone
async def test_certificates_that_take_long_delay_neither_streams_nor_other_handshakes(
    certified: Certified, tmp_path: Path
) -> None:
    _, penstock = await certified(profile="steady-50")
    shows = client_certificate(tmp_path, ONE)
    long = PROMPT | {"max_tokens": 200, "stream": True}
    stream = await TlsClient.open(penstock, post(COMPLETIONS, long), context=showing(shows))
    pieces: list[float] = []

    async def read() -> None:
        while b"[DONE]" not in await asyncio.to_thread(stream.sock.recv, 65_536):
            pieces.append(time.perf_counter())

    reading = asyncio.create_task(read())
    steps_s: list[float] = []
    attackers = [asyncio.create_task(attack(penstock, steps_s)) for _ in range(ATTACKERS)]
    took_s = []
    while not reading.done():
        took_s.append(await asyncio.to_thread(comes_from_elsewhere, penstock, shows.cert))
        await asyncio.sleep(0.1)
    await reading
    for each in attackers:
        each.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    gaps = sorted(later - piece for piece, later in pairwise(pieces))
    print(
        f"{len(steps_s)} shown; handshakes {[round(took * 1000) for took in took_s]} ms;"
        f" longest gaps of the stream {[round(gap * 1000) for gap in gaps[-3:]]} ms"
    )
    assert len(steps_s) > 3  # their party has a quarter of a thread
    # In the loop itself: gaps of 500 ms, and handshakes of 3 to 8 s.
    assert gaps[-len(gaps) // 20] < 0.2
    assert sorted(took_s)[len(took_s) // 2] < 1
