"""Sockets on both legs: accepting them, their options, and how they are closed."""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final

# How many connections wait in a socket until they are accepted.
BACKLOG: Final = 4_096
# How much of an answer the kernel may hold for a client that does not read.
RECEIVE_BUFFER_BYTES: Final = 131_072
# A slow client pauses its backend's connection above HIGH; below LOW reading goes on.
HIGH_BYTES: Final = 16_384
LOW_BYTES: Final = 4_096
# uvloop keeps all of a write until its last byte is sent. So much is written at once.
WRITE_BYTES: Final = 65_536
# For a host that vanished: the first keepalive after 15 s, the end by 30 s.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 15, 5, 3
USER_TIMEOUT_MS: Final = 30_000
# `tcpi_rtt` of Linux's `struct tcp_info` (include/uapi/linux/tcp.h): eight bytes, then words.
_TCP_INFO_BYTES: Final = 104
_ROUND_TRIP_AT: Final = 68
_INT: Final = bytes(4)
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


class Accepting:
    """Accepts what waits in a listening socket behind the connection that the loop has accepted.

    uvloop accepts one connection in a turn of its loop. While turns are long, new clients would
    wait for seconds behind whoever only connects.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """`protocol` makes the protocol of a connection."""
        self._loop = loop
        self._protocol = protocol
        self._accepted: set[asyncio.Task[object]] = set()

    def accept(self, listening: socket.socket, most: int) -> None:
        """Accept those that wait. At most so many are not known yet, which takes some turns."""
        for _ in range(most - len(self._accepted)):
            try:
                sock, _ = listening.accept()
            except OSError:  # nobody waits, or there are no descriptors: the loop sees to that
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._connect(sock))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    async def known(self) -> None:
        """Return when all that were accepted are known."""
        if self._accepted:
            await asyncio.wait(self._accepted)

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, sock)
        except OSError:  # its client has left already
            sock.close()


def write(transport: asyncio.Transport, data: bytes) -> None:
    """Write large data in pieces, so that what was sent is freed."""
    if len(data) <= WRITE_BYTES:
        transport.write(data)
        return
    for at in range(0, len(data), WRITE_BYTES):
        transport.write(data[at : at + WRITE_BYTES])


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """What the kernel keeps because the peer has not acknowledged it. 0 if it does not tell."""
    sock = transport.get_extra_info("socket")
    try:
        (size_bytes,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, _INT))
    except (AttributeError, OSError, ValueError):  # no socket, or a closed one
        return 0
    return int(size_bytes)


def round_trip_s(sock: socket.socket) -> float:
    """The time to the peer and back, as the kernel measured it. 0.0 if it does not tell."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (round_trip_us,) = struct.unpack_from("I", told, _ROUND_TRIP_AT)
    except (AttributeError, OSError, struct.error):  # another platform
        return 0.0
    return int(round_trip_us) / 1e6


def tune(sock: socket.socket) -> None:
    """Set no delay and a bounded buffer. A peer that vanished is noticed within 30 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    keep_alive(sock)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def keep_alive(sock: socket.socket) -> None:
    """Notice a peer that vanished without a FIN, where the platform can."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def reset_at_close(sock: socket.socket) -> None:
    """Make closing send a reset, so that no local port stays in TIME_WAIT for a minute.

    The side that closes first keeps its port in TIME_WAIT. A client that connects and leaves again
    and again would use up all ports to a backend.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)


def reset(transport: asyncio.Transport, last: bytes = b"") -> None:
    """Close with a reset. `abort` alone sends a plain FIN, which can mean a whole answer.

    `last`: goes out before it, if nothing else is unsent and TLS would not hold it up. A peer that
    reads what came before the reset has it.
    """
    plain = transport.get_extra_info("ssl_object") is None
    if last and plain and not transport.get_write_buffer_size():
        with contextlib.suppress(OSError):
            os.write(transport.get_extra_info("socket").fileno(), last)
    with contextlib.suppress(OSError):  # closed already
        reset_at_close(transport.get_extra_info("socket"))
    transport.abort()
