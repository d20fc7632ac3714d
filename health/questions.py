"""Questions to one backend over HTTP, on connections that nothing else uses.

A client for the few GETs and POSTs of probes and scrapes: a general one costs 1.5 to 2 ms for each,
and of a thousand backends fifty are asked a second. `hang_up` ends the connection, so that the next
question opens a fresh one: an old one says nothing of whether new ones are taken.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

from health.line import Answer, Line, Unheard
from health.shortage import OWN_ERRORS, Lacking

BODY_BYTES_MAX: Final = 1_048_576
# An address that takes no connection within this time leaves the rest of the time to those after
# it: RFC 8305's delay between two attempts.
NEXT_ADDRESS_S: Final = 0.25


class Addresses(Protocol):
    """Where a backend's host is now; `proxy.host.Host`."""

    async def addresses(self) -> Sequence[str]: ...


class Unresolved(OSError):
    """The backend's host has no address."""


class Questions:
    """Asks the backend at `url`. Whoever asks bounds the time: a question may be cancelled."""

    def __init__(
        self,
        url: str,
        host: Addresses,
        authorization: bytes | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = host
        self._name = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._line: Line | None = None
        # Compressing 60 kB of metrics would cost vLLM's loop another millisecond.
        self._fields = (
            b"host: %b\r\naccept: */*\r\naccept-encoding: identity\r\nuser-agent: penstock\r\n"
            % parts.netloc.encode()
        )
        if authorization is not None:
            self._fields += b"authorization: %b\r\n" % authorization

    async def get(self, path: bytes, limit_bytes: int = BODY_BYTES_MAX) -> Answer:
        """What is there. Raises OSError."""
        return await self._ask(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, self._fields), limit_bytes)

    async def post(
        self, path: bytes, body: bytes, fields: bytes = b"", limit_bytes: int = BODY_BYTES_MAX
    ) -> Answer:
        """What is said to a JSON body; `fields` are more lines of the head. Raises OSError."""
        head = b"POST %b HTTP/1.1\r\n%b%b" % (path, self._fields, fields)
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        return await self._ask(head + kind + body, limit_bytes)

    def hang_up(self) -> None:
        """The next question comes on a fresh connection."""
        if self._line is not None:
            self._line.close()
            self._line = None

    async def _ask(self, request: bytes, limit_bytes: int) -> Answer:
        line = self._line
        if line is not None and line.open:
            # One that closes just then says nothing: the question is asked again.
            try:
                return await line.ask(request, limit_bytes)
            except Unheard:
                if line.heard:
                    raise
        self.hang_up()
        self._line = line = await self._connect()
        return await line.ask(request, limit_bytes)

    async def _connect(self) -> Line:
        """A connection to the first address that takes it, each tried in turn."""
        try:
            addresses = await self._host.addresses()
        except OSError as error:
            raise Unresolved from error
        failures: list[OSError] = []
        for number, address in enumerate(addresses, 1):
            try:
                async with asyncio.timeout(NEXT_ADDRESS_S if number < len(addresses) else None):
                    return await self._open(address)
            except ssl.SSLError:
                raise
            except OSError as error:  # too late, too
                failures.append(error)
        if all(error.errno in OWN_ERRORS for error in failures):
            raise Lacking(failures[-1].errno, failures[-1].strerror)
        refused = all(isinstance(error, ConnectionRefusedError) for error in failures)
        raise ConnectionRefusedError if refused else Unheard

    async def _open(self, address: str) -> Line:
        name = self._name if self._tls is not None else None
        _, line = await asyncio.get_running_loop().create_connection(
            Line, address, self._port, ssl=self._tls, server_hostname=name
        )
        return line
