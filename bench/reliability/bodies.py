"""`penstock bench bodies`: the memory that many large bodies take, and what is left of it.

All are sent at the same time. Their streams then go on, which needs nothing of the bodies.
"""

import asyncio
from argparse import ArgumentParser, Namespace
from random import Random
from typing import Final

import orjson
import uvloop

from penstock.bench.arguments import count, option, positive
from penstock.bench.client import ClientConnection, Way, post
from penstock.bench.meter import peak_memory_of, resident_bytes
from penstock.bench.processes import server
from penstock.bench.reliability import backend
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.report import head, row, verdict

MIB: Final = 2**20
BACKENDS: Final = 2
FIRST_TOKENS_S: Final = 60.0
SETTLING_S: Final = 5.0
WORDS: Final = 5_000


def run(options: Namespace) -> int:
    """Print the table; returns the exit status."""
    return verdict(uvloop.run(_measure(options)))


async def _measure(options: Namespace) -> list[str]:
    with server(backend.__name__) as first, server(backend.__name__) as second:
        async with ProxyProcess([first, second], log={"level": "error"}) as proxy:
            before_bytes = resident_bytes(proxy.pid)
            bodies = [
                _request(options.size_kib * 1024, number) for number in range(options.requests)
            ]
            streams = [await ClientConnection.dial(proxy.port) for _ in bodies]
            for stream, body in zip(streams, bodies, strict=True):
                stream.send(body)
            late = await _without_token(streams)
            await asyncio.sleep(SETTLING_S)
            settled_bytes = resident_bytes(proxy.pid)
            await asyncio.sleep(max(0.0, options.stream_s - SETTLING_S))
            at_end_bytes = resident_bytes(proxy.pid)
            broken = sum([not stream.open for stream in streams])
            peak_bytes = peak_memory_of(proxy.pid)
            for stream in streams:
                stream.leave(Way.RESET)
            left = await proxy.until_at_rest(SETTLING_S)
    print(head(f"{options.requests} bodies of {options.size_kib:,} KiB", "MiB"))
    for name, size_bytes in (
        ("before", before_bytes),
        ("most", peak_bytes),
        (f"{SETTLING_S:g} s after the first tokens", settled_bytes),
        (f"after {options.stream_s:g} s of streams", at_end_bytes),
    ):
        print(row(name, f"{size_bytes / MIB:.0f}"))
    failures = [f"{late} had no first token"] if late else []
    failures += [f"{broken} streams broke"] if broken else []
    return failures + ([f"left over: {left}"] if left else [])


async def _without_token(streams: list[ClientConnection]) -> int:
    """Wait for all first tokens. Returns how many had none."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + FIRST_TOKENS_S
    while loop.time() < until_s and not all(stream.answer.body for stream in streams):
        await asyncio.sleep(0.05)
    return sum([not stream.answer.body for stream in streams])


def _request(size_bytes: int, number: int) -> bytes:
    rng = Random(number)
    words = [f"{rng.getrandbits(24):x}" for _ in range(WORDS)]
    text = " ".join(rng.choices(words, k=size_bytes // 5))[:size_bytes]
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    return post("/v1/chat/completions", orjson.dumps(body), backend.PACED_RARELY)


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--requests N", count, 200, "at once")
    option(parser, "--size-kib N", count, 1_000, "of each body")
    option(parser, "--stream-s S", positive, 60.0, "of streams")
