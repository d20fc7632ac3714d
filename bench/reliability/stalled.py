"""What the proxy holds for readers that ask for a stream and take nothing of it."""

import asyncio
import socket
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from penstock.bench.client import HOST, Clients
from penstock.bench.meter import resident_bytes
from penstock.bench.processes import server
from penstock.bench.reliability import backend
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.report import head, row

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


async def measure(readers: int, stall_s: float) -> Stalled:
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
            dropped_bytes = resident_bytes(proxy.pid)
    return Stalled(
        readers,
        before_bytes,
        after_bytes,
        dropped_bytes,
        kernel_bytes,
        kernel_dropped_bytes,
        dropped_after_s,
        stall_s,
        other_s,
    )


def report(figures: Stalled) -> list[str]:
    """Print the table; what is not as it must be."""
    before, after = figures.before_bytes / MIB, figures.after_bytes / MIB
    print("\n" + head(f"{figures.readers:,} readers that take nothing", ""))
    memory = f"{before:.0f} / {after:.0f} / {figures.dropped_bytes / MIB:.0f}"
    print(row("memory of the proxy before / with them / after, MiB", memory))
    print(row("a reader, KiB", f"{figures.each_bytes / KIB:.0f}"))
    kernel_each = figures.kernel_bytes / figures.readers / KIB
    kernel_dropped_each = figures.kernel_dropped_bytes / figures.readers / KIB
    kernel = f"{kernel_each:.0f} / {kernel_dropped_each:.0f}"
    print(row("kernel buffers, all four ends, a reader, with them / after, KiB", kernel))
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
