"""The listening socket of the data port: inherited or bound, and what errors of ports say.

A process may pass on sockets (sd_listen_fds(3)): `LISTEN_FDS` of them begin at descriptor 3 and are
for the process `LISTEN_PID`. It keeps them open too, so connections wait while one proxy ends and
the next begins. The data port is the one named `data` in `LISTEN_FDNAMES`, or the only one.
"""

import errno
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the supervisor is small
    from penstock.conf.listen import ListenSettings

FIRST_FD: Final = 3
FDS_MAX: Final = 64


def inherited(
    name: str, environ: Mapping[str, str] = os.environ, pid: int | None = None
) -> socket.socket | None:
    """The listening socket passed to this process. None when there is none.

    Raises OSError when the socket cannot be the data port.
    """
    if environ.get("LISTEN_PID") != str(os.getpid() if pid is None else pid):
        return None  # meant for an ancestor of this process
    count = environ.get("LISTEN_FDS", "")
    if not count.isdecimal() or not 1 <= int(count) <= FDS_MAX:
        return None
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    index = names.index(name) if name in names else 0
    if int(count) > 1 and name not in names:
        raise OSError(None, f"none of the {count} inherited sockets is named `{name}`")
    return _listening(FIRST_FD + index)


def _listening(fd: int) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise OSError(None, f"inherited descriptor {fd}: {error.strerror}") from None
    if not listens or sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.detach()  # it is not ours, so it must stay open
        raise OSError(None, f"inherited descriptor {fd} is not a listening TCP socket")
    return sock


def listening_socket(listen: "ListenSettings") -> socket.socket:
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


def is_meant(sock: socket.socket, listen: "ListenSettings") -> bool:
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
