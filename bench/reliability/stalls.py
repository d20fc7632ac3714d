"""`penstock bench stalls`: how long one body holds up the streams of all others.

The proxy meters the turns of its loop while one body after another comes, of every shape that is
dear to read. What counts is the longest turn in the loop's own CPU time, so that a busy machine is
not the proxy's fault; beside it stands how late the events of a stream came, which is the same on
a machine that does nothing else. What is outside its bound is tried again, and the least counts.
Exit 0 when every turn is within 5 ms for each MiB of its body, and 50 ms.

The proxy that meters its loop is `python -m penstock.bench.reliability.stalls FILE serve …`. The
longest turn since somebody wrote a zero there stands in FILE as one float. A call in every turn is
what that takes, so the loop never rests.
"""

import asyncio
import mmap
import runpy
import struct
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic, thread_time
from typing import Any, Final, NamedTuple

import uvloop

from penstock.bench.arguments import count, names, option
from penstock.bench.client import HOST, call
from penstock.bench.processes import server
from penstock.bench.reliability import backend
from penstock.bench.reliability.proxy_process import QUIET, ProxyProcess
from penstock.bench.report import BenchError, head, row, verdict

MIB: Final = 2**20
SIZES_MIB: Final = (1, 4, 16, 32)
MS_PER_MIB: Final = 5.0
MS_MAX: Final = 50.0
# Of the limit: what a shape has around its size, and the head.
SLACK_BYTES: Final = 65_536
ANSWER_S: Final = 60.0
# A model that nobody serves is unknown, however long its name. Counts beyond reason are refused.
ANSWERS: Final = (200, 400, 404)
# Names of one server.
BACKENDS: Final = 64
FLOAT: Final = struct.Struct("d")
SETTLE_S: Final = 0.1


# Bodies that are dear to read, of any size: valid JSON, as any client may send it.
HEAD: Final = b'{"model":"m","stream":true,'


def _run(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def _keys(size: int) -> bytes:
    return b",".join([b'"k%d":1' % number for number in range(size // 13)])


def _chat(inside: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: HEAD + b'"messages":[%b0]}' % inside(size)


def _prompt(inside: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: HEAD + b'"prompt":[%b]}' % inside(size)


SHAPES: Final[dict[str, Callable[[int], bytes]]] = {
    "one string": lambda size: HEAD + b'"prompt":"%b"}' % (b"a" * size),
    "escaped lines": lambda size: HEAD + b'"prompt":"%b"}' % _run(b"\\n", size),
    "escaped quotes": lambda size: HEAD + b'"prompt":"%b"}' % _run(b'\\"', size),
    "escaped letters": lambda size: HEAD + b'"prompt":"%b"}' % _run(b"\\u00e9", size),
    "wide letters": lambda size: HEAD + b'"prompt":"%b"}' % _run("\u6cb3".encode(), size),
    "data urls": _chat(lambda size: b'{"type":"image"},' + _run(b'"data:;base64,",', size)),
    "half data urls": _chat(lambda size: b'{"type":"image"},' + _run(b'"data:",', size)),
    "parts": _chat(lambda size: _run(b'{"type":"image"},', size)),
    "images": _chat(
        lambda size: _run(b'{"type":"image_url","url":"data:;base64,%b"},' % (b"A" * 60_000), size)
    ),
    "deep": _chat(lambda size: _run(b"[" * 400 + b"]" * 400 + b",", size)),
    "deep objects": _chat(lambda size: _run(b'{"":' * 400 + b"0" + b"}" * 400 + b",", size)),
    "empty objects": _chat(lambda size: _run(b"{},", size)),
    "small objects": _chat(lambda size: _run(b'{"a":1},', size)),
    "blanks between": _chat(lambda size: _run(b'{ "a" : "b" } , ', size)),
    "blanks": _chat(lambda size: b" " * size),
    "numbers": _chat(lambda size: _run(b"1.25e-7,", size)),
    "empty keys": lambda size: HEAD + _run(b'"":1,', size) + b'"prompt":"x"}',
    "own keys": lambda size: HEAD + _keys(size) + b',"prompt":"x"}',
    "repeated keys": lambda size: HEAD + _run(b'"k":1,', size) + b'"prompt":"x"}',
    "long key": lambda size: HEAD + b'"%b":1,"prompt":"x"}' % (b"k" * size),
    "options": lambda size: HEAD + b'"stream_options":{%b}}' % _keys(size),
    "repeated options": lambda size: HEAD + _run(b'"options":{},', size) + b'"a":1}',
    "prompts": _prompt(lambda size: _run(b'"",', size) + b'"x"'),
    "token ids": _prompt(lambda size: _run(b"1,", size) + b"1"),
    "lists of ids": _prompt(lambda size: _run(b"[1],", size) + b"[1]"),
    "model": lambda size: b'{"stream":true,"prompt":"x","model":"%b"}' % (b"m" * size),
    "response id": lambda size: HEAD + b'"previous_response_id":"%b"}' % (b"r" * size),
    "digits": lambda size: HEAD + b'"prompt":"x","max_tokens":%b}' % (b"1" * size),
    "trailing blanks": lambda size: HEAD + b'"prompt":"x"}' + b" " * size,
}
# Sent in chunks of a byte each: it holds a sixth of its size.
CHUNKS: Final = "chunks of a byte"
_CHUNKED_END: Final = b'19\r\n{"model":"m","prompt":""}\r\n0\r\n\r\n'
BODIES: Final = {**SHAPES, CHUNKS: lambda size: b"1\r\n \r\n" * (size // 6) + _CHUNKED_END}


class Meter:
    """The longest turn, as both processes see it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), FLOAT.size)

    @property
    def longest_s(self) -> float:
        longest_s: float = FLOAT.unpack(self._shared)[0]
        return longest_s

    def reset(self, longest_s: float = 0.0) -> None:
        self._shared[:] = FLOAT.pack(longest_s)


def _metered(path: Path, run: Callable[..., Any]) -> Callable[..., Any]:
    meter = Meter(path)

    async def beside(work: Any) -> Any:
        loop = asyncio.get_running_loop()
        last_s = thread_time()

        def turn() -> None:
            nonlocal last_s
            now_s = thread_time()
            if now_s - last_s > meter.longest_s:
                meter.reset(now_s - last_s)
            last_s = now_s
            loop.call_soon(turn)

        turn()
        return await work

    return lambda work, **options: run(beside(work), **options)


class Watcher:
    """The stream beside: how late its events come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.longest_s = 0.0
        writer.write(backend.PACED)

    async def watch(self) -> None:
        while data := await self._reader.read(65_536):
            now_s = monotonic()
            found = backend.STAMP.search(data)  # the oldest of those that came together
            if found is not None:
                self.longest_s = max(self.longest_s, now_s - float(found[1]))
        raise BenchError("the stream beside ended")


def _send(port: int, body: bytes) -> int:
    """Send one request, in a thread of its own; the status of its answer."""
    path = "/v1/completions" if b'"prompt"' in body[-64:] + body[:64] else "/v1/chat/completions"
    headers = {"transfer-encoding": "chunked"} if body.endswith(_CHUNKED_END) else {}
    return call(port, "POST", path, body, headers, within_s=ANSWER_S)[0]


class Stall(NamedTuple):
    """In ms: the longest turn of the loop, and how late the stream beside was."""

    own_ms: float
    beside_ms: float


async def _beside(
    shape: str, body: bytes, proxy: ProxyProcess, meter: Meter, watcher: Watcher
) -> Stall:
    await asyncio.sleep(SETTLE_S)
    watcher.longest_s = 0.0
    meter.reset()
    if shape:
        try:
            status = await asyncio.to_thread(_send, proxy.port, body)
        except OSError as error:
            raise BenchError(f"{shape} was not answered: {error}") from None
        if status not in ANSWERS:
            raise BenchError(f"{shape} was answered {status}")
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
        module = ("penstock.bench.reliability.stalls", file.name)
        with server(backend.__name__) as url:
            urls = [url] * BACKENDS
            async with ProxyProcess(urls, module, limits=limits, health=QUIET) as proxy:
                watcher = Watcher(*await asyncio.open_connection(HOST, proxy.port))
                watching = asyncio.create_task(watcher.watch())
                try:
                    for shape in ("", *shapes):
                        stalls = [
                            await _least(shape, size, rounds, proxy, meter, watcher)
                            for size in sizes_mib
                        ]
                        yield shape or "(no body)", stalls
                finally:  # before the proxy leaves, whose last word would hide why
                    watching.cancel()
                    watcher.writer.transport.abort()


async def _least(
    shape: str, size_mib: int, rounds: int, proxy: ProxyProcess, meter: Meter, watcher: Watcher
) -> Stall:
    """The stall of one body; what is outside its bound is tried again."""
    make = BODIES.get(shape, lambda size: b"")
    # In a thread: the watcher must go on reading, or it is dropped as stalled.
    body = await asyncio.to_thread(make, size_mib * MIB - SLACK_BYTES)
    least = await _beside(shape, body, proxy, meter, watcher)
    for _ in range(rounds - 1):
        if least.own_ms <= bound_ms(size_mib):
            break
        least = min(least, await _beside(shape, body, proxy, meter, watcher))
    return least


def bound_ms(size_mib: int) -> float:
    """How long a body of that size may hold the loop."""
    return min(MS_PER_MIB * size_mib, MS_MAX)


async def report(options: Namespace) -> list[str]:
    """Print the table; what is outside its bound."""
    failures: list[str] = []
    heads = [f"{size} MiB (<= {bound_ms(size):g})" for size in SIZES_MIB]
    print(head("longest turn, and stall beside, ms", *heads, "inside"))
    async for shape, stalls in measure(options.shapes, options.rounds):
        pairs = zip(stalls, SIZES_MIB, strict=True)
        inside = all(stall.own_ms <= bound_ms(size_mib) for stall, size_mib in pairs)
        cells = [f"{stall.own_ms:.1f}, {stall.beside_ms:.1f}" for stall in stalls]
        print(row(shape, *cells, "yes" if inside else "NO"), flush=True)
        if not inside:
            failures.append(f"{shape}: a turn is outside its bound")
    return failures


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--rounds N", count, 3, "tries of a body that is outside")
    option(parser, "--shapes NAME,…", names("shape", BODIES), ",".join(BODIES), "which")


def run(options: Namespace) -> int:
    return verdict(uvloop.run(report(options)))


if __name__ == "__main__":
    uvloop.run = _metered(Path(sys.argv[1]), uvloop.run)
    sys.argv = ["penstock", *sys.argv[2:]]
    runpy.run_module("penstock.proxy", run_name="__main__")
