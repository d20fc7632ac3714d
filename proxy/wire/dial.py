"""Opens connections to one backend: to which of its addresses, and whose fault it is if none opens.

Requests, probes and scrapes dial in the same way. Each address has a moment, the last one all the
time that is left, so that a slow handshake succeeds beside a dead address.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Final, TypeVar
from urllib.parse import urlsplit

from penstock.proxy.errors.backend import Lacking, Unresolved
from penstock.proxy.wire.connection import BackendConnection, ConnectionOwner
from penstock.proxy.wire.deadline import Deadline
from penstock.proxy.wire.handshakes import Handshakes, HandshakeThreads
from penstock.proxy.wire.host import OWN_ERRORS, Host, Names
from penstock.proxy.wire.sockets import reset_at_close, round_trip_s
from penstock.proxy.wire.tls import TlsConnection

T = TypeVar("T")

# After this time without a connection the next address is tried: RFC 8305's delay between two
# attempts.
NEXT_ADDRESS_S: Final = 0.25
# A timer that comes so late is not the backend's delay.
DIAL_LATE_S: Final = 0.1


class Dialer(ConnectionOwner):
    """Connects to one backend, through TLS if its URL says so."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        *,
        name: str = "",
        names: Names | None = None,
        threads: HandshakeThreads | None = None,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`name` is the backend's name. All backends share `threads`."""
        parts = urlsplit(url)
        host = Host(loop, parts.hostname or "", name, names or Names(), now)
        super().__init__(loop, name, host, now)
        self.round_trip_s = 0.0  # of the last connection that was opened
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._secure = parts.scheme == "https"
        self.tls = tls  # for https; replaced with the configuration
        self._handshakes = Handshakes(threads or HandshakeThreads(loop))
        self.authority = parts.netloc.rpartition("@")[2].encode("ascii")
        self.prefix = parts.path.encode("ascii")  # all paths are below it

    async def open(self, owner: ConnectionOwner) -> BackendConnection:
        """Connect to the first address that accepts. One that is too slow is tried last next time.

        Raises Unresolved, Lacking if the process has no descriptor, memory or port for it,
        ConnectionRefusedError if all refuse, SSLError if an address is not trusted, otherwise
        another OSError. The caller limits the time: a cancelled call leaves nothing open.
        """
        try:
            addresses = await self.host.addresses()
        except OSError as error:
            raise Unresolved from error
        failures: list[OSError] = []
        for number, address in enumerate(addresses, 1):
            connection = BackendConnection(owner)
            try:
                seconds = NEXT_ADDRESS_S if number < len(addresses) else inf
                await in_time(self.loop, seconds, self._connect(address, connection))
                return connection
            except asyncio.CancelledError:
                self.host.failed(address)
                raise
            except OSError as error:
                # No local port is left, unless it has no way there at all.
                lacks_port = error.errno == errno.EADDRNOTAVAIL and self.host.has_way(address)
                failures.append(Lacking(error.errno, error.strerror) if lacks_port else error)
                if isinstance(error, TimeoutError):
                    self.host.failed(address)
        raise _judge(failures)

    async def _connect(self, address: str, protocol: asyncio.Protocol) -> None:
        """Connect `protocol` to this address. A cancelled call leaves nothing open."""
        if not self._secure:
            await self._connect_socket(address, protocol)
            return
        assert self.tls is not None
        tls = TlsConnection(
            self.loop,
            self.tls,
            protocol,
            handshake_s=inf,
            reads=self.reads.records,
            handshakes=self._handshakes,
            server_name=self.host.name,
        )
        try:
            await self._connect_socket(address, tls)
            await tls.opened
        except BaseException:  # also when cancelled: nobody else knows of it
            tls.abort()
            raise

    async def _connect_socket(self, address: str, protocol: asyncio.Protocol) -> None:
        """Connect `protocol` so that closing sends a reset, from the first packet on.

        A connect that nobody waits for is cancelled. It must leave no descriptor, and no local port
        in TIME_WAIT for a minute. So the socket is made here, before the loop connects it.
        """
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            sock.setblocking(False)
            reset_at_close(sock)
            await self.loop.sock_connect(sock, (address, self._port))
            self.round_trip_s = round_trip_s(sock)
            await self.loop.create_connection(lambda: protocol, sock=sock)
        except BaseException:
            sock.close()
            raise


async def in_time(
    loop: asyncio.AbstractEventLoop, seconds: float, work: Coroutine[object, object, T]
) -> T:
    """What `work` returns. Raises TimeoutError if it takes longer while the process runs.

    If the process was stopped, or its loop was busy, the timer comes late, and perhaps before the
    loop has read that the connection is there. Then the work has a little longer.
    """
    if seconds == inf:
        return await work
    async with asyncio.timeout(None) as limit:
        expired = partial(limit.reschedule, 0.0)
        deadline = Deadline(loop, expired, loop.time, late_s=DIAL_LATE_S)
        deadline.set(loop.time() + seconds)
        try:
            return await work
        finally:
            deadline.close()


def _judge(failures: Sequence[OSError]) -> OSError:
    """The error that means the same as these failures of all addresses of a backend.

    An address for which no local port is left, or that shows another certificate, may be the one
    that answers.
    """
    for error in failures:
        if isinstance(error, (Lacking, ssl.SSLError)):
            return error
    if all(error.errno in OWN_ERRORS for error in failures):
        return Lacking(failures[-1].errno, failures[-1].strerror)
    tried = [error for error in failures if error.errno != errno.EADDRNOTAVAIL]
    refused = tried and all(isinstance(error, ConnectionRefusedError) for error in tried)
    return ConnectionRefusedError() if refused else OSError("no address took a connection")
