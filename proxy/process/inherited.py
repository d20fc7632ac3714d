"""A listening socket that the starting process passes on (sd_listen_fds(3)).

`LISTEN_FDS` sockets begin at descriptor 3 and are for the process `LISTEN_PID`. The
starting process keeps the socket open too. So connections wait in it while one proxy
ends and the next begins. The data port is the socket named `data` in `LISTEN_FDNAMES`,
or the only one.
"""

import os
import socket
from collections.abc import Mapping
from typing import Final

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
