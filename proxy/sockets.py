"""What is set on the sockets of both legs."""

import socket
from typing import Final

# What the kernel may hold of an answer whose client does not read.
RECEIVE_BUFFER_BYTES: Final = 262_144
# A host that vanished: first keepalive after 15 s, gone by 30 s.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 15, 5, 3
USER_TIMEOUT_MS: Final = 30_000


def tune(sock: socket.socket) -> None:
    """No delay, bounded buffer, and a peer that vanished is noticed within 30 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    keep_alive(sock)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def keep_alive(sock: socket.socket) -> None:
    """Notice a peer that vanished without a word (where the platform can)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
