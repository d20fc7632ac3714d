"""The connections to one backend: dialed, pooled while idle, given for the next request.

The pool gives the youngest first and keeps none longer than 3.5 s, because vLLM
(uvicorn) closes at 5.0 s and a POST must not meet that close.

What a backend sends unasked would become the answer to somebody else's request.
So a connection is used again only for the credentials that it was used for; it
rests before, which is when such bytes come; a byte on it kills it, also one that
the loop has not read yet; and a backend that sent one is not trusted with a
second request on a connection for a while.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from health.shortage import OWN_ERRORS
from proxy.deadline import Deadline
from proxy.errors import ConnectFailed, ConnectionRefused
from proxy.host import Host, Names
from proxy.long_reads import TURN_S, TurnShare
from proxy.rota import Rota
from proxy.tls import TlsConnection
from proxy.upstream import BackendConnection

IDLE_S: Final = 3.5
IDLE_MAX: Final = 256
# A server that writes more than its answer does so with it, or in the turn after. At 1,000
# requests/s to one backend this keeps 20 more connections open, each cold when its turn comes:
# 7 % of a small request's CPU, and less rest lets more bytes through.
REST_S: Final = 0.02
# One request a connection, after bytes that nobody asked for.
DISTRUST_S: Final = 600.0


class NoDescriptors(Exception):
    """The process may open no more: what it lacks is its own, and no fault of the backend's."""


class ConnectionPool:
    """The connections to one backend. `connect_timeout_s` may change while it is used."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        *,
        connect_timeout_s: float,
        name: str = "",
        names: Names | None = None,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`name` is the backend's, for the log."""
        parts = urlsplit(url)
        self.loop = loop
        self.host = Host(loop, parts.hostname or "", name, names or Names(), now)
        self.connect_timeout_s = connect_timeout_s
        self._now = now
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._secure = parts.scheme == "https"
        self.tls = tls  # of https: replaced when a configuration is
        # Oldest first; what rests is younger than what has rested.
        self._idle: deque[BackendConnection] = deque()
        self._resting: deque[BackendConnection] = deque()
        self._distrusted_until_s = 0.0
        self._deadline = Deadline(loop, self._expire, now)
        self.rota = Rota(loop, TURN_S)
        self.turn_share = TurnShare(loop)
        self.authority = parts.netloc.rpartition("@")[2].encode("ascii")

    def trust(self, tls: ssl.SSLContext | None) -> None:
        """Verify by this from now on; what is idle was verified by another."""
        if self._secure and tls is not self.tls:
            self.tls = tls
            self._drop_idle()

    def take_idle(self, credentials: bytes = b"") -> BackendConnection | None:
        """The youngest connection of these credentials that has rested and is surely open."""
        now_s = self._now()
        idle, resting = self._idle, self._resting
        while resting and now_s - resting[0].idle_since_s >= REST_S:
            idle.append(resting.popleft())
        for index in range(len(idle) - 1, -1, -1):
            connection = idle[index]
            if connection.credentials == credentials:
                del idle[index]
                if (
                    now_s - connection.idle_since_s < IDLE_S
                    and connection.epoch == self.host.epoch
                    and connection.quiet
                ):
                    connection.reused = True
                    return connection
                connection.abort()
        return None

    async def dial(self) -> BackendConnection:
        """Open a new connection, to the first address that takes it.

        Raises ConnectionRefused when all refuse, NoDescriptors when there are none left
        for it, else ConnectFailed.
        """
        failures: list[OSError] = []
        address = ""
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                for address in await self.host.addresses():
                    try:
                        return await self._open(address)
                    except OSError as error:
                        failures.append(error)
                        self.host.failed(address)
        except (OSError, TimeoutError):  # no address is known, or time is up
            self.host.failed(address)
            raise ConnectFailed from None
        if all(error.errno in OWN_ERRORS for error in failures):
            raise NoDescriptors
        refused = all(isinstance(error, ConnectionRefusedError) for error in failures)
        raise ConnectionRefused if refused else ConnectFailed

    async def _open(self, address: str) -> BackendConnection:
        connection = BackendConnection(self)
        context = self.tls
        if not self._secure:
            await self.loop.create_connection(lambda: connection, address, self._port)
            return connection
        assert context is not None
        _, tls = await self.loop.create_connection(
            lambda: TlsConnection(
                self.loop,
                context,
                connection,
                handshake_s=self.connect_timeout_s,
                server_name=self.host.name,
            ),
            address,
            self._port,
        )
        try:
            await tls.opened
        except BaseException:  # cancelled too: nobody else knows of it
            tls.abort()
            raise
        return connection

    def put(self, connection: BackendConnection) -> None:
        """Take back a connection whose request and answer both ended."""
        if connection.epoch != self.host.epoch:
            connection.abort()
            return
        connection.idle_since_s = self._now()
        connection.on_deadline = None
        connection.deadline.clear()
        if connection.idle_since_s < self._distrusted_until_s:
            connection.abort()
            return
        self._resting.append(connection)
        if len(self._idle) + len(self._resting) > IDLE_MAX:
            (self._idle or self._resting).popleft().abort()
        if len(self._idle) + len(self._resting) == 1:
            self._deadline.set(connection.idle_since_s + IDLE_S)

    def distrust(self) -> None:
        """The backend sent what nobody asked for: use no connection twice for a while."""
        self._distrusted_until_s = self._now() + DISTRUST_S
        self._drop_idle()

    def forget(self, connection: BackendConnection) -> None:
        """A connection was lost; it may have been idle."""
        for waiting in (self._idle, self._resting):
            if connection in waiting:
                waiting.remove(connection)

    def close(self) -> None:
        """Close what is idle; connections in use end with their answers."""
        self.host.close()
        self._deadline.close()
        self._drop_idle()

    def _drop_idle(self) -> None:
        for waiting in (self._idle, self._resting):
            while waiting:
                waiting.pop().abort()

    def _expire(self) -> None:
        limit_s = self._now() - IDLE_S
        for waiting in (self._idle, self._resting):
            while waiting and waiting[0].idle_since_s <= limit_s + 0.002:
                waiting.popleft().abort()
            if waiting:
                self._deadline.set(waiting[0].idle_since_s + IDLE_S)
                return
