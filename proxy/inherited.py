"""A listening socket that whoever started us has open already (sd_listen_fds(3)).

`LISTEN_FDS` sockets begin at descriptor 3, for the process `LISTEN_PID`. Since
the other side keeps it open too, connections wait in it while one process ends
and the next begins. The data port is the one named `data` by `LISTEN_FDNAMES`,
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
    """The listening socket handed to this process; None when none was.

    Raises OSError when what was handed over cannot be the data port.
    """
    if environ.get("LISTEN_PID") != str(os.getpid() if pid is None else pid):
        return None  # another process's, which we descend from
    count = environ.get("LISTEN_FDS", "")
    if not count.isdecimal() or not 1 <= int(count) <= FDS_MAX:
        return None
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    index = names.index(name) if name in names else 0
    if int(count) > 1 and name not in names:
        raise OSError(None, f"of {count} inherited sockets none is named `{name}`")
    return _listening(FIRST_FD + index)


def _listening(fd: int) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise OSError(None, f"inherited descriptor {fd}: {error.strerror}") from None
    if not listens or sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.detach()  # not ours to close
        raise OSError(None, f"inherited descriptor {fd} is no listening TCP socket")
    return sock
