"""Asks one backend over HTTP, on connections of its own.

A small client for the GETs and POSTs of probes and scrapes. A general one costs 1.5 to 2 ms for
each, and in a fleet of a thousand backends fifty are asked a second. `hang_up` ends the connection,
so that the next question opens a new one: an old one does not show whether new ones are accepted.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

from penstock.health.line import Answer, Line, Unheard
from penstock.health.shortage import explained, judge

BODY_BYTES_MAX: Final = 1_048_576
# After this time without a connection the next address is tried: RFC 8305's delay between two
# attempts.
NEXT_ADDRESS_S: Final = 0.25


class Addresses(Protocol):
    """The present addresses of a backend's host. `proxy.wire.host.Host` implements it."""

    async def addresses(self) -> Sequence[str]: ...
    def has_way(self, address: str) -> bool: ...


class Connections(Protocol):
    """How a backend is reached. `proxy.wire.pool.ConnectionPool` implements it."""

    @property
    def host(self) -> Addresses: ...

    @property
    def tls(self) -> object:
        """What verifies the certificate of an https backend."""

    async def connect(self, address: str, protocol: asyncio.Protocol) -> None:
        """Connect `protocol` to this address, through TLS if the backend has it.

        Raises OSError. The caller limits the time: a cancelled call leaves nothing open.
        """


class Unresolved(OSError):
    """The backend's host has no address."""


class Questions:
    """Asks the backend at `url`, below the path of that.

    The caller limits the time: a question may be cancelled.
    """

    def __init__(
        self, url: str, connections: Connections, authorization: bytes | None = None
    ) -> None:
        self._connections = connections
        self._line: Line | None = None
        self._slow = ""  # the address that is tried last
        # Without compression: of 60 kB of metrics it would cost vLLM's loop another millisecond.
        parts = urlsplit(url)
        self._prefix = parts.path.encode()
        self._fields = (
            b"host: %b\r\naccept: */*\r\naccept-encoding: identity\r\nuser-agent: penstock\r\n"
            % parts.netloc.encode()
        )
        if authorization is not None:
            self._fields += b"authorization: %b\r\n" % authorization

    async def get(self, path: bytes, limit_bytes: int = BODY_BYTES_MAX) -> Answer:
        """The answer to a GET. Raises OSError."""
        line = b"GET %b%b HTTP/1.1\r\n" % (self._prefix, path)
        return await self._ask(b"%b%b\r\n" % (line, self._fields), limit_bytes)

    async def post(
        self, path: bytes, body: bytes, fields: bytes = b"", limit_bytes: int = BODY_BYTES_MAX
    ) -> Answer:
        """The answer to a JSON body. `fields` are more header lines. Raises OSError."""
        head = b"POST %b%b HTTP/1.1\r\n%b%b" % (self._prefix, path, self._fields, fields)
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        return await self._ask(head + kind + body, limit_bytes)

    def hang_up(self) -> None:
        """End the connection. The next question opens a new one."""
        if self._line is not None:
            self._line.close()
            self._line = None

    async def _ask(self, request: bytes, limit_bytes: int) -> Answer:
        line = self._line
        if line is not None and line.open:
            # A connection that closes at this moment says nothing: ask again on a new one.
            try:
                return await line.ask(request, limit_bytes)
            except Unheard:
                if line.heard:
                    raise
        self.hang_up()
        self._line = line = await self._connect()
        return await line.ask(request, limit_bytes)

    async def _connect(self) -> Line:
        """Connect to the first address that accepts. Each is tried in turn.

        If none accepts, the first that was too slow comes last the next time. The last one has
        all the time that is left, so a slow handshake succeeds beside a dead address.
        """
        host = self._connections.host
        try:
            addresses = sorted(await host.addresses(), key=self._slow.__eq__)
        except OSError as error:
            raise Unresolved from error
        failures: list[OSError] = []
        slow = ""
        try:
            for number, address in enumerate(addresses, 1):
                line = Line()
                try:
                    async with asyncio.timeout(NEXT_ADDRESS_S if number < len(addresses) else None):
                        await self._connections.connect(address, line)
                    slow = ""
                    return line
                except ssl.SSLError:
                    raise
                except OSError as error:
                    failures.append(explained(error, address, host.has_way))
                    if isinstance(error, TimeoutError):
                        slow = slow or address
            raise judge(failures)
        finally:
            self._slow = slow or self._slow
