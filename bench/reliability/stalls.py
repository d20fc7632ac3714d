"""`penstock bench stalls`: how long one body holds up the streams of all others.

The proxy meters the turns of its loop while one body after another comes, of every shape that is
dear to read. What counts is the longest turn in the loop's own CPU time, so that a busy machine is
not the proxy's fault; beside it stands how late the events of a stream came, which is the same on
a machine that does nothing else. What is outside its bound is tried again, and the least counts.
Exit 0 when every turn is within 5 ms for each MiB of its body, and 50 ms.
"""

import argparse
import asyncio
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic
from typing import Final, NamedTuple

import uvloop

from bench.arguments import count, names
from bench.reliability.metered import FLOAT, Meter
from bench.reliability.pacer import STAMP, WATCHED
from bench.reliability.proxy_process import ROOT, ProxyProcess
from bench.reliability.shapes import SHAPES

MIB: Final = 2**20
SIZES_MIB: Final = (1, 4, 16, 32)
MS_PER_MIB: Final = 5.0
MS_MAX: Final = 50.0
# Of the limit: what a shape has around its size, and the head.
SLACK_BYTES: Final = 65_536
ANSWER_S: Final = 60.0
# Sent in chunks of a byte each: it holds a sixth of its size.
CHUNKS: Final = "chunks of a byte"
_CHUNKED_END: Final = b'19\r\n{"model":"m","prompt":""}\r\n0\r\n\r\n'
BODIES: Final = {**SHAPES, CHUNKS: lambda size: b"1\r\n \r\n" * (size // 6) + _CHUNKED_END}
# A model that nobody serves is unknown, however long its name.
ANSWERS: Final = (200, 404)
SETTLE_S: Final = 0.1
# The pacer answers no probe of the engine.
QUIET: Final = {"interval_s": 600, "timeout_s": 5, "deep": {"interval_s": 600}}


class Watcher:
    """The stream beside: how late its events come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.longest_s = 0.0

    async def watch(self) -> None:
        """Read on until cancelled."""
        while data := await self._reader.read(65_536):
            now_s = monotonic()
            found = STAMP.search(data)  # the oldest of those that came together
            if found is not None:
                self.longest_s = max(self.longest_s, now_s - float(found[1]))
        raise SystemExit("penstock bench: the stream beside ended")


@asynccontextmanager
async def _pacer() -> AsyncIterator[str]:
    command = [sys.executable, "-m", "bench.reliability.pacer"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


async def _watcher(port: int) -> Watcher:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\n%b\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % (WATCHED, len(body)) + body)
    return Watcher(reader, writer)


def _send(port: int, body: bytes) -> int:
    """Send one request, in a thread of its own; the status of its answer."""
    path = b"/v1/completions" if b'"prompt"' in body[-64:] + body[:64] else b"/v1/chat/completions"
    chunked = body.endswith(_CHUNKED_END)
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    head = b"POST %b HTTP/1.1\r\nhost: b\r\nconnection: close\r\n%b\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as sock:
        sock.sendall(head % (path, framing))
        sock.sendall(body)
        return int(sock.recv(65_536).split(b" ", 2)[1])


class Stall(NamedTuple):
    """In ms: the longest turn of the loop, and how late the stream beside was."""

    own_ms: float
    beside_ms: float


async def _beside(body: bytes, shape: str, port: int, meter: Meter, watcher: Watcher) -> Stall:
    await asyncio.sleep(SETTLE_S)
    watcher.longest_s = 0.0
    meter.reset()
    if body:
        try:
            status = await asyncio.to_thread(_send, port, body)
        except OSError as error:
            raise SystemExit(f"penstock bench: {shape} was not answered: {error}") from None
        if status not in ANSWERS:
            raise SystemExit(f"penstock bench: {shape} was answered {status}")
    await asyncio.sleep(SETTLE_S)
    return Stall(meter.longest_s * 1e3, watcher.longest_s * 1e3)


async def measure(
    shapes: Sequence[str], rounds: int, sizes_mib: Sequence[int] = SIZES_MIB
) -> AsyncIterator[tuple[str, list[Stall]]]:
    """The longest stall beside a body of each size; beside none for `(no body)`."""
    limits = {"body_bytes": 33 * MIB}
    with NamedTemporaryFile(prefix="penstock-bench-") as file:
        file.write(bytes(FLOAT.size))
        file.flush()
        meter = Meter(Path(file.name))
        command = ("bench.reliability.metered", file.name)
        async with (
            _pacer() as url,
            ProxyProcess([url], command, limits=limits, health=QUIET) as proxy,
        ):
            watcher = await _watcher(proxy.port)
            watching = asyncio.create_task(watcher.watch())
            try:
                for shape in ("", *shapes):
                    row = []
                    for size_mib in sizes_mib:
                        size = size_mib * MIB - SLACK_BYTES
                        # In a thread: the watcher must go on reading, or it is dropped as stalled.
                        body = await asyncio.to_thread(BODIES[shape], size) if shape else b""
                        least = await _beside(body, shape, proxy.port, meter, watcher)
                        for _ in range(rounds - 1):
                            if least.own_ms <= bound_ms(size_mib):
                                break
                            again = await _beside(body, shape, proxy.port, meter, watcher)
                            least = min(least, again)
                        row.append(least)
                    yield shape or "(no body)", row
            finally:  # before the proxy leaves, whose last word would hide why
                watching.cancel()
                watcher.writer.transport.abort()


def bound_ms(size_mib: int) -> float:
    """How long a body of that size may hold the loop."""
    return min(MS_PER_MIB * size_mib, MS_MAX)


async def report(options: argparse.Namespace) -> list[str]:
    """Print the table; what is outside its bound."""
    failures: list[str] = []
    heads = [f"{size} MiB (<= {bound_ms(size):g})" for size in SIZES_MIB]
    print(f"| longest turn, and stall beside, ms | {' | '.join(heads)} | inside |")
    print(f"|---|{'---:|' * len(heads)}---|")
    async for shape, row in measure(options.shapes, options.rounds):
        pairs = zip(row, SIZES_MIB, strict=True)
        inside = all(stall.own_ms <= bound_ms(size_mib) for stall, size_mib in pairs)
        cells = " | ".join(f"{stall.own_ms:.1f}, {stall.beside_ms:.1f}" for stall in row)
        print(f"| {shape} | {cells} | {'yes' if inside else 'NO'} |", flush=True)
        if not inside:
            failures.append(f"{shape}: a turn is outside its bound")
    return failures


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="penstock bench stalls", description="How long one body holds up all other streams."
    )
    tries = "of a body that is outside (default 3)"
    parser.add_argument("--rounds", type=count, default=3, help=tries)
    shapes = names("shape", BODIES)
    parser.add_argument("--shapes", type=shapes, default=",".join(BODIES), help="(default all)")
    options = parser.parse_args(argv)
    print(f"$ {shlex.join(['penstock', 'bench', 'stalls', *argv])}\n")
    failures = uvloop.run(report(options))
    for failure in failures:
        print(f"\nFailed: {failure}")
    return 1 if failures else 0
