"""The connections to one backend: opened, kept while idle, used for the next request.

The pool gives the youngest idle connection first and keeps none longer than 3.5 s. vLLM (uvicorn)
closes at 5.0 s, and a POST must not meet that close.

Bytes that a backend sends unasked could become the answer to somebody else's request. So a
connection is used again only for the same credentials. It rests before, because that is when such
bytes come. Any byte on an idle connection closes it, also one that the loop has not read yet. And
for a while no connection to that backend is used twice.
"""

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from penstock.proxy.errors.backend import ConnectFailed, ConnectionRefused, Lacking, NoPorts
from penstock.proxy.wire.connection import BackendConnection
from penstock.proxy.wire.deadline import Deadline
from penstock.proxy.wire.dial import Dialer, in_time
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.questions import Questions

IDLE_S: Final = 3.5
IDLE_MAX: Final = 256
# A server that writes more than its answer does so at once or in the next turn. At 1,000 requests/s
# to one backend this rest keeps 20 more connections open, each cold when it is used: 7 % of the CPU
# of a small request. A shorter rest lets more such bytes through.
REST_S: Final = 0.02
# How long each connection serves one request only, after bytes that nobody asked for.
DISTRUST_S: Final = 600.0


class NoDescriptors(Exception):
    """The process can open no more descriptors. That is not the backend's fault."""


class ConnectionPool(Dialer):
    """The connections to one backend. `connect_timeout_s` may change at any time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        *,
        connect_timeout_s: float,
        name: str = "",
        names: Names | None = None,
        threads: HandshakeThreads | None = None,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(loop, url, name=name, names=names, threads=threads, tls=tls, now=now)
        self.connect_timeout_s = connect_timeout_s
        # Both oldest first. All resting ones are younger than all idle ones.
        self._idle: deque[BackendConnection] = deque()
        self._resting: deque[BackendConnection] = deque()
        self._distrusted_until_s = 0.0
        self._deadline = Deadline(loop, self._expire, now)

    def questions(self, authorization: bytes | None = None) -> Questions:
        """A client for probes and the like, with this key, on a connection of its own."""
        return Questions(self, authorization)

    def trust(self, tls: ssl.SSLContext | None) -> None:
        """Verify certificates by `tls` from now on. Close idle connections, verified by another."""
        if self._secure and tls is not self.tls:
            self.tls = tls
            self._drop_idle()

    def take_idle(self, credentials: bytes = b"") -> BackendConnection | None:
        """The youngest rested connection with these credentials that is surely open."""
        now_s = self.now()
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
        """Open a new connection to the first address that accepts it.

        Raises ConnectionRefused if all refuse, NoDescriptors if the process has no descriptor or
        kernel memory left, NoPorts if it has no local port left for this backend, otherwise
        ConnectFailed.
        """
        try:
            return await in_time(self.loop, self.connect_timeout_s, self.open(self))
        except Lacking as error:
            lacks_port = error.errno == errno.EADDRNOTAVAIL
            raise NoPorts if lacks_port else NoDescriptors from None
        except ConnectionRefusedError:
            raise ConnectionRefused from None
        except OSError:  # also when no address is known, or the time is over
            raise ConnectFailed from None

    def put(self, connection: BackendConnection) -> None:
        if connection.epoch != self.host.epoch:
            connection.abort()
            return
        connection.idle_since_s = self.now()
        if connection.idle_since_s < self._distrusted_until_s:
            connection.abort()
            return
        self._resting.append(connection)
        if len(self._idle) + len(self._resting) > IDLE_MAX:
            (self._idle or self._resting).popleft().abort()
        if len(self._idle) + len(self._resting) == 1:
            self._deadline.set(connection.idle_since_s + IDLE_S)

    def distrust(self) -> None:
        self._distrusted_until_s = self.now() + DISTRUST_S
        self._drop_idle()

    def forget(self, connection: BackendConnection) -> None:
        for waiting in (self._idle, self._resting):
            if connection in waiting:
                waiting.remove(connection)

    def close(self) -> None:
        """Close idle connections. Those in use end with their answers."""
        self.host.close()
        self._deadline.close()
        self._drop_idle()

    def _drop_idle(self) -> None:
        for waiting in (self._idle, self._resting):
            while waiting:
                waiting.pop().abort()

    def _expire(self) -> None:
        limit_s = self.now() - IDLE_S
        for waiting in (self._idle, self._resting):
            while waiting and waiting[0].idle_since_s <= limit_s + 0.002:
                waiting.popleft().abort()
            if waiting:
                self._deadline.set(waiting[0].idle_since_s + IDLE_S)
                return
