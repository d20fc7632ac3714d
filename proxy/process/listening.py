"""The listening socket of the data port, and what errors of ports say."""

import errno
import os
import socket

from penstock.conf.listen import ListenSettings


def listening_socket(listen: ListenSettings) -> socket.socket:
    """Bind it. Raises OSError."""
    host, port = listen.host, listen.port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise OSError(
            None, f"cannot listen on {host}:{port} (listen.host): {error.strerror}"
        ) from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listen.reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise named(error, "listen", host, port) from None
    return sock


def is_meant(sock: socket.socket, listen: ListenSettings) -> bool:
    """Whether a socket listens where the configuration says, whatever free port was taken.

    The address of a socket that a service manager holds is the manager's.
    """
    if "LISTEN_FDS" in os.environ:
        return True
    try:
        meant = socket.getaddrinfo(listen.host, listen.port, sock.family, socket.SOCK_STREAM)
    except OSError:
        return False
    host, port = sock.getsockname()[:2]
    return any(each[4][0] == host and listen.port in (0, port) for each in meant)


def named(error: OSError, section: str, host: str, port: int) -> OSError:
    """The error, with the name of the port that it is about."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = (
        "; end what listens there, or set another port" if error.errno == errno.EADDRINUSE else ""
    )
    return OSError(error.errno, f"cannot listen on {host}:{port} ({section}.port): {reason}{hint}")
