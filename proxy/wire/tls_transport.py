"""What the protocol behind TLS sees: a transport whose bytes are encrypted at once.

Every byte is on the socket's transport as soon as it is encrypted. So flow control, timeouts and
closing are those of a plain connection.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable
from typing import Any, cast

from penstock.proxy.wire.sockets import WRITE_BYTES

logger = logging.getLogger(__name__)


class TlsTransport(asyncio.Protocol):
    """The sending half of a TLS connection. `TlsConnection` shakes hands and deciphers."""

    __slots__ = (
        "_aborted",
        "_early",
        "_error",
        "_held",
        "_open",
        "_outgoing",
        "_server_name",
        "_shut",
        "_ssl",
        "_stopped",
        "_transport",
    )

    def __init__(self, server_name: str | None) -> None:
        self._server_name = server_name
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject = cast(ssl.SSLObject, None)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._early: list[bytes] = []  # written before the end of the handshake
        self._error: OSError | None = None
        self._open = False  # the handshake is done
        self._shut = False  # close_notify was sent: no more writes
        self._stopped = False  # reading is stopped, because bytes wait here
        self._held = False  # reading is stopped by the protocol behind
        self._aborted = False

    def _go_on(self) -> None:
        """A reason to stop reading is gone."""

    def write(self, data: bytes) -> None:
        if not data or self._shut or self.is_closing():
            return
        if not self._open:
            self._early.append(data)
            return
        try:
            written = self._ssl.write(data)
            while written < len(data):  # a record is full
                written += self._ssl.write(memoryview(data)[written:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def writelines(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return self._open

    def write_eof(self) -> None:
        """End our direction. Bytes that still come are passed on undeciphered."""
        self._notify()
        self._transport.write_eof()

    def close(self) -> None:
        if self._open and not self.is_closing():
            self._notify()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._aborted or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._held = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._held = False
        if self._stopped:
            self._go_on()
        else:
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Whether everything that the loop has read was passed on, and it reads on."""
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self._ssl if name == "ssl_object" else self._transport.get_extra_info(name, default)

    # Inside -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        while self._outgoing.pending and not self.is_closing():
            self._transport.write(self._outgoing.read(WRITE_BYTES))

    def _notify(self) -> None:
        """Send close_notify once. Do not wait for the peer's."""
        if not self._shut:
            self._shut = True
            with contextlib.suppress(ssl.SSLError):  # the peer's has not come
                self._ssl.unwrap()
            self._flush()

    @property
    def _side(self) -> str:
        return "client" if self._server_name is None else "backend"

    def _fail(self, error: ssl.SSLError) -> None:
        """The peer's TLS is not acceptable: send the alert, then close."""
        logger.debug("tls failed with=%s reason=%s", self._side, error.reason)
        self._error = error
        self._shut = True
        self._flush()
        self._transport.close()
