"""`penstock bench slow`: clients that send slowly, and clients that do not read.

First, slow heads and slow bodies, a byte a second each, beside ordinary requests: windows without
and with them alternate, and what the others wait for is compared. Every slow client must be closed
in the time it is given. Then readers that ask for an endless stream and take nothing: what the
proxy holds for each, until it drops them. Exit 0 when all were closed in time, the others' p99
stayed within the limit, and memory within the bound.

Slow senders are in a process of their own: `python -m penstock.bench.reliability.slow` with an
Attack as JSON opens them, waits until the proxy has closed all of them, and prints their Lives.
"""

import asyncio
import socket
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, NamedTuple

import msgspec
import uvloop

from penstock.bench.arguments import count, option, positive
from penstock.bench.client import HOST, ClientConnection, Clients
from penstock.bench.meter import resident_bytes
from penstock.bench.processes import report_of, server
from penstock.bench.reliability import backend
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.reliability.workload import wanted
from penstock.bench.report import head, row, verdict
from penstock.bench.sim.server import SimServer

RATE_PER_S: Final = 50.0
# Time to be told and closed after the time that is given: the loop's lateness, and two
# thousand closes at once.
CLOSING_S: Final = 3.0
# The others' p99: at most so much longer, where that is more than noise.
P99_FACTOR: Final = 1.5
P99_NOISE_S: Final = 0.010
# Beside what slow clients are given: to start, to open all, and how long the last are waited for.
ATTACKERS_S: Final = 60.0
# Opened in groups, so that it is slowness that is measured and not a burst of connects.
GROUP: Final = 100
GROUP_S: Final = 0.05
# Any proxy that is to end them has done so this long after the time it gives them.
PATIENCE_S: Final = 30.0
_HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\nx-slow: "
_WHOLE_HEAD: Final = (
    b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b'content-length: 1000000\r\n\r\n{"prompt":"'
)
MIB: Final = 2**20
KIB: Final = 1024
# What a reader's own kernel takes; the least there is.
RECEIVE_BUFFER_BYTES: Final = 4_096
# 16 KiB at which its backend is paused, 64 KiB in the slice that reached it, 256 KiB in the read
# that the slice is of, the objects of a connection, an exchange and a backend's connection, and a
# tenth for what the allocator cannot use.
READER_BYTES_MAX: Final = 512 * KIB
# What a process grows by as it is first used, however many they are.
FIRST_USE_BYTES: Final = 8 * MIB
DROPPING_S: Final = 5.0
_PAGE_BYTES: Final = 4_096


# Slow senders ------------------------------------------------------------------------------


class Attack(msgspec.Struct):
    """How many of each kind, and when they must have been closed."""

    port: int
    heads: int
    bodies: int
    head_s: float
    body_s: float
    drip_s: float = 1.0


class Lives(msgspec.Struct):
    """Seconds from the first byte to the close, by kind; statuses that were answered."""

    heads_s: list[float]
    bodies_s: list[float]
    statuses: dict[str, int]
    never: int = 0


async def attack(plan: Attack) -> Lives:
    """Open all and wait for the proxy to close them."""
    told = Lives([], [], {})
    kinds = [(_HEAD, told.heads_s)] * plan.heads + [(_WHOLE_HEAD, told.bodies_s)] * plan.bodies
    attackers = []
    for start in range(0, len(kinds), GROUP):
        for beginning, lives_s in kinds[start : start + GROUP]:
            attackers.append(asyncio.create_task(_one(plan, beginning, lives_s, told)))
        await asyncio.sleep(GROUP_S)
    done, never = await asyncio.wait(attackers, timeout=max(plan.head_s, plan.body_s) + PATIENCE_S)
    for each in done:
        each.result()  # raises what went wrong here
    told.never = len(never)
    return told


async def _one(plan: Attack, beginning: bytes, lives_s: list[float], told: Lives) -> None:
    """Send a beginning and then a byte now and then, until the proxy closes the connection."""
    connection = await ClientConnection.dial(plan.port)
    began_s = monotonic()
    connection.send(beginning)

    async def drip() -> None:
        while True:
            connection.go_on(b"x")
            await asyncio.sleep(plan.drip_s)

    dripping = asyncio.create_task(drip())
    await connection.gone()
    lives_s.append(monotonic() - began_s)
    dripping.cancel()
    status = str(connection.answer.status or "none")
    told.statuses[status] = told.statuses.get(status, 0) + 1


class Others:
    """Ordinary requests at a steady rate over kept-alive connections."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._clients = Clients(proxy.port)
        self._rng = Random(1)
        self._number = 0
        self.failed = 0

    async def window(self, ended: asyncio.Event) -> list[float]:
        """Seconds each request took, until `ended` is set."""
        times_s: list[float] = []
        next_s = monotonic()
        async with asyncio.TaskGroup() as tasks:
            while not ended.is_set():
                next_s += self._rng.expovariate(RATE_PER_S)
                await asyncio.sleep(max(0.0, next_s - monotonic()))
                tasks.create_task(self._one(times_s))
        return times_s

    async def quiet(self, seconds: float) -> list[float]:
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, ended.set)
        return await self.window(ended)

    async def _one(self, times_s: list[float]) -> None:
        self._number += 1
        request = wanted(self._number, self._rng, tokens=4, path="/v1/chat/completions")
        connection = await self._clients.take()
        began_s = monotonic()
        answer = await connection.ask(request.raw)
        times_s.append(monotonic() - began_s)
        self.failed += answer.status != 200 or not answer.ended
        self._clients.give(connection)


async def _attacked(others: Others, plan: Attack) -> tuple[list[float], Lives]:
    ended = asyncio.Event()
    window = asyncio.create_task(others.window(ended))
    within_s = plan.body_s + plan.head_s + ATTACKERS_S
    lives = await asyncio.to_thread(report_of, __name__, plan, Lives, within_s)
    ended.set()
    return await window, lives


class Attacked(msgspec.Struct):
    """The figures of all rounds."""

    p99_quiet_s: list[float]
    p99_attacked_s: list[float]
    lives: list[Lives]
    failed: int = 0


async def attacks(options: Namespace) -> Attacked:
    """Windows without and with slow clients, in turn, before one proxy."""
    simulated = SimServer("sim", "instant")
    await simulated.start()
    timeouts = {"client_head_s": options.head_s, "client_body_s": options.body_s}
    figures = Attacked([], [], [])
    try:
        async with ProxyProcess([simulated.url], timeouts=timeouts) as proxy:
            others = Others(proxy)
            await others.quiet(2.0)
            both = options.clients, options.clients
            plan = Attack(proxy.port, *both, options.head_s, options.body_s)
            for _ in range(options.rounds):
                quiet = await others.quiet(options.body_s)
                attacked, lives = await _attacked(others, plan)
                figures.p99_quiet_s.append(statistics.quantiles(quiet, n=100)[98])
                figures.p99_attacked_s.append(statistics.quantiles(attacked, n=100)[98])
                figures.lives.append(lives)
            figures.failed = others.failed
    finally:
        await simulated.stop()
    return figures


def report(options: Namespace, figures: Attacked) -> list[str]:
    """Print the table of the slow senders; what is not as it must be."""
    failures: list[str] = []
    heads = [each for lives in figures.lives for each in lives.heads_s]
    bodies = [each for lives in figures.lives for each in lives.bodies_s]
    never = sum(lives.never for lives in figures.lives)
    statuses = sum((Counter(lives.statuses) for lives in figures.lives), Counter[str]())
    quiet_s = statistics.median(figures.p99_quiet_s)
    attacked_s = statistics.median(figures.p99_attacked_s)
    print(head(f"{options.clients:,} slow heads and {options.clients:,} slow bodies", ""))
    given = (("heads", options.head_s, heads), ("bodies", options.body_s, bodies))
    for name, given_s, lives_s in given:
        span = f"{min(lives_s):.2f} to {max(lives_s):.2f}" if lives_s else "-"
        print(row(f"{name} closed after s, of {given_s:g} given", span))
        if not lives_s or max(lives_s) > given_s + CLOSING_S:
            failures.append(f"{name} were closed too late")
    print(row("never closed", never))
    told = ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items()))
    print(row("answered", told))
    waits_ms = f"{quiet_s * 1e3:.1f} / {attacked_s * 1e3:.1f}"
    print(row("the others' p99 without / with, ms", waits_ms))
    print(row("the others' failures", figures.failed))
    if never:
        failures.append(f"{never} were never closed")
    if figures.failed:
        failures.append(f"{figures.failed} ordinary requests failed")
    if attacked_s > max(quiet_s * P99_FACTOR, quiet_s + P99_NOISE_S):
        failures.append("the others waited longer")
    return failures


# Readers that take nothing -----------------------------------------------------------------


class Stalled(NamedTuple):
    """The figures of one run; kernel memory is the machine's, of both ends and both legs."""

    readers: int
    before_bytes: int
    after_bytes: int
    dropped_bytes: int
    kernel_bytes: int
    kernel_dropped_bytes: int
    dropped_after_s: float
    stall_s: float
    other_s: float

    @property
    def each_bytes(self) -> float:
        return (self.after_bytes - self.before_bytes) / self.readers


async def stall(readers: int, stall_s: float) -> Stalled:
    """Open the readers, wait until nothing grows, and then until they were dropped."""
    with server(backend.__name__) as url:
        async with ProxyProcess([url], timeouts={"client_stall_s": stall_s}) as proxy:
            before_bytes, kernel_before_bytes = resident_bytes(proxy.pid), _kernel_bytes()
            began_s = monotonic()
            sockets = [await _reader(proxy.port) for _ in range(readers)]
            await _settled(proxy.pid, began_s + stall_s - 2.0)
            after_bytes = resident_bytes(proxy.pid)
            kernel_bytes = _kernel_bytes() - kernel_before_bytes
            other_s = await _other(proxy.port)
            left = await proxy.until_at_rest(stall_s + DROPPING_S)
            dropped_after_s = float("inf") if left else monotonic() - began_s
            kernel_dropped_bytes = _kernel_bytes() - kernel_before_bytes
            for sock in sockets:
                sock.close()
            memory = before_bytes, after_bytes, resident_bytes(proxy.pid)
    kernel = kernel_bytes, kernel_dropped_bytes
    return Stalled(readers, *memory, *kernel, dropped_after_s, stall_s, other_s)


def report_stalled(figures: Stalled) -> list[str]:
    """Print the table; what is not as it must be."""
    memory = (figures.before_bytes, figures.after_bytes, figures.dropped_bytes)
    kernel = (figures.kernel_bytes, figures.kernel_dropped_bytes)
    print("\n" + head(f"{figures.readers:,} readers that take nothing", ""))
    shown = " / ".join(f"{each / MIB:.0f}" for each in memory)
    print(row("memory of the proxy before / with them / after, MiB", shown))
    print(row("a reader, KiB", f"{figures.each_bytes / KIB:.0f}"))
    shown = " / ".join(f"{each / figures.readers / KIB:.0f}" for each in kernel)
    print(row("kernel buffers, all four ends, a reader, with them / after, KiB", shown))
    print(row("another's request meanwhile, ms", f"{figures.other_s * 1e3:.1f}"))
    dropped = f"{figures.dropped_after_s:.1f}, of {figures.stall_s:g} given"
    print(row("all dropped after s", dropped))
    failures = []
    allowed_bytes = figures.readers * READER_BYTES_MAX + FIRST_USE_BYTES
    if figures.after_bytes - figures.before_bytes > allowed_bytes:
        failures.append(f"a stalled reader takes over {READER_BYTES_MAX // KIB} KiB")
    if figures.dropped_after_s == float("inf"):
        failures.append("stalled readers were not dropped")
    return failures


async def _reader(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (HOST, port))
    await loop.sock_sendall(sock, backend.FLOOD)
    return sock


async def _settled(pid: int, until_s: float) -> None:
    """Wait until neither the proxy nor the kernel's buffers grow, or until `until_s`."""
    last_bytes = -MIB
    now_bytes = resident_bytes(pid) + _kernel_bytes()
    while now_bytes - last_bytes > MIB // 4 and monotonic() < until_s:
        await asyncio.sleep(1.0)
        last_bytes, now_bytes = now_bytes, resident_bytes(pid) + _kernel_bytes()


async def _other(port: int) -> float:
    """How long an ordinary request takes beside them."""
    clients = Clients(port)
    clients.give(await clients.take())
    began_s = monotonic()
    answer = await clients.ask(backend.PLAIN)
    assert answer.status == 200
    assert answer.ended
    return monotonic() - began_s


def _kernel_bytes() -> int:
    """Memory of all TCP buffers of the machine."""
    words = Path("/proc/net/sockstat").read_text().split()
    return int(words[words.index("mem") + 1]) * _PAGE_BYTES


def run(options: Namespace) -> int:
    failures = report(options, uvloop.run(attacks(options)))
    failures += report_stalled(uvloop.run(stall(options.clients, options.stall_s)))
    return verdict(failures)


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--clients N", count, 1_000, "of each kind")
    option(parser, "--rounds N", count, 2, "pairs of windows")
    option(parser, "--head-s S", positive, 10.0, "given for a head")
    option(parser, "--body-s S", positive, 60.0, "given for a body")
    option(parser, "--stall-s S", positive, 20.0, "given a reader")


if __name__ == "__main__":
    told = uvloop.run(attack(msgspec.json.decode(sys.argv[1], type=Attack)))
    sys.stdout.buffer.write(msgspec.json.encode(told))
