"""What the proxy holds for readers that ask for a stream and take nothing of it."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from bench.overhead import answers
from bench.reliability.client import ClientConnection
from bench.reliability.proxy_process import ROOT, ProxyProcess, resident_bytes

MIB: Final = 2**20
KIB: Final = 1024
# What a reader's own kernel takes; the least there is.
RECEIVE_BUFFER_BYTES: Final = 4_096
# 256 KiB at which its backend is paused, as much again in the read that reached it, and the
# objects of a connection, an exchange and a backend's connection.
READER_BYTES_MAX: Final = 576 * KIB
# What a process grows by as it is first used, however many they are.
FIRST_USE_BYTES: Final = 8 * MIB
DROPPING_S: Final = 5.0
_PAGE_BYTES: Final = 4_096


class Stalled(NamedTuple):
    """The figures of one run; kernel memory is the machine's, of both ends and both legs."""

    readers: int
    before_bytes: int
    after_bytes: int
    dropped_bytes: int
    kernel_bytes: int
    dropped_after_s: float
    stall_s: float
    other_s: float

    @property
    def each_bytes(self) -> float:
        return (self.after_bytes - self.before_bytes) / self.readers


async def measure(readers: int, stall_s: float) -> Stalled:
    """Open the readers, wait until nothing grows, and then until they were dropped."""
    async with (
        _flood() as url,
        ProxyProcess([url], timeouts={"client_stall_s": stall_s}) as proxy,
    ):
        before_bytes, kernel_bytes = resident_bytes(proxy.pid), _kernel_bytes()
        began_s = monotonic()
        sockets = [await _reader(proxy.port) for _ in range(readers)]
        after_bytes = await _settled(proxy.pid, began_s + stall_s - 2.0)
        kernel_bytes = _kernel_bytes() - kernel_bytes
        other_s = await _other(proxy.port)
        left = await proxy.until_at_rest(stall_s + DROPPING_S)
        dropped_after_s = float("inf") if left else monotonic() - began_s
        for sock in sockets:
            sock.close()
        dropped_bytes = resident_bytes(proxy.pid)
    return Stalled(
        readers,
        before_bytes,
        after_bytes,
        dropped_bytes,
        kernel_bytes,
        dropped_after_s,
        stall_s,
        other_s,
    )


def report(figures: Stalled) -> list[str]:
    """Print the table; what is not as it must be."""
    before, after = figures.before_bytes / MIB, figures.after_bytes / MIB
    print(f"\n| {figures.readers:,} readers that take nothing | |\n|---|---:|")
    print(
        f"| memory of the proxy before / with them / after, MiB | {before:.0f} / {after:.0f} ",
        end="",
    )
    print(f"/ {figures.dropped_bytes / MIB:.0f} |")
    print(f"| a reader, KiB | {figures.each_bytes / KIB:.0f} |")
    kernel = figures.kernel_bytes / figures.readers / KIB
    print(f"| kernel buffers beside that, all four ends, a reader, KiB | {kernel:.0f} |")
    print(f"| another's request meanwhile, ms | {figures.other_s * 1e3:.1f} |")
    dropped = f"{figures.dropped_after_s:.1f}, of {figures.stall_s:g} given"
    print(f"| all dropped after s | {dropped} |")
    failures = []
    allowed_bytes = figures.readers * READER_BYTES_MAX + FIRST_USE_BYTES
    if figures.after_bytes - figures.before_bytes > allowed_bytes:
        failures.append(f"a stalled reader takes over {READER_BYTES_MAX // KIB} KiB")
    if figures.dropped_after_s == float("inf"):
        failures.append("stalled readers were not dropped")
    return failures


@asynccontextmanager
async def _flood() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.reliability.flood", stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


async def _reader(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, answers.chat_request(events=1))
    return sock


async def _settled(pid: int, until_s: float) -> int:
    """The resident set once it has stopped growing, or at `until_s`."""
    last = -1
    now = resident_bytes(pid)
    while now - last > MIB // 4 and monotonic() < until_s:
        await asyncio.sleep(1.0)
        last, now = now, resident_bytes(pid)
    return now


async def _other(port: int) -> float:
    """How long an ordinary request takes beside them."""
    connection = await ClientConnection.dial(port)
    began_s = monotonic()
    answer = await connection.ask(answers.chat_request())
    assert answer.status == 200
    assert answer.ended
    return monotonic() - began_s


def _kernel_bytes() -> int:
    """Memory of all TCP buffers of the machine."""
    words = Path("/proc/net/sockstat").read_text().split()
    return int(words[words.index("mem") + 1]) * _PAGE_BYTES
