"""Tells systemd (sd_notify): ready, stopping, and a line for `systemctl status`."""

import logging
import os
import socket
from errno import errorcode

logger = logging.getLogger(__name__)


def notify(*fields: str) -> None:
    """Send fields such as `READY=1` to $NOTIFY_SOCKET. Does nothing if that is not set.

    A service manager that cannot be reached is logged and never stops the proxy.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(1.0)
            sock.connect(address)
            sock.send("\n".join(fields).encode())
    except OSError as error:
        logger.warning("systemd not notified error=%s", errorcode.get(error.errno or 0, "unknown"))
