"""The PROXY protocol, versions 1 and 2: a load balancer tells of its client before the first byte.

With TLS the header comes before the handshake. A connection without a valid header is closed. The
protocols behind are told of the connection at once, so that it is counted and its time is limited.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, cast

from penstock.proxy.wire.client_address import plain_address

logger = logging.getLogger(__name__)

_V1: Final = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|TCP4 ([0-9.]+) [0-9.]+ [0-9]{1,5} [0-9]{1,5}"
    rb"|TCP6 ([0-9a-fA-F:.]*:[0-9a-fA-F:.]*) [0-9a-fA-F:.]+ [0-9]{1,5} [0-9]{1,5})\r\n"
)
_V1_BYTES_MAX: Final = 107
_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED_BYTES: Final = 16
# What follows the fixed part of version 2. Load balancers send at most some hundreds of bytes.
V2_BYTES_MAX: Final = 4_096
# By family: the bytes of one address, and of both with their ports. Unspecified ones and Unix
# sockets have none for us.
_ADDRESSES: Final = {0x0: (0, 0), 0x1: (4, 12), 0x2: (16, 36), 0x3: (0, 0)}


def read_header(data: bytes) -> tuple[str, int] | None:
    """The address of the client, and the length of the header in bytes. None: more is to come.

    The address is empty for connections of the load balancer's own. Raises ValueError.
    """
    if data.startswith(_V2):
        return _version_2(data)
    end = data.find(b"\n", 0, _V1_BYTES_MAX)
    begins = end < 0 and len(data) < _V1_BYTES_MAX and data[:6] == b"PROXY "[: len(data)]
    if begins or _V2.startswith(data):
        return None
    match = _V1.fullmatch(data[: end + 1])
    if match is None:
        raise ValueError("no valid PROXY header")
    address = match[1] or match[2]
    return plain_address(address.decode()) if address else "", end + 1


class ProxyHeader(asyncio.Protocol):
    """The protocol of a connection until its header is read. Then `behind` takes over."""

    def __init__(self, behind: asyncio.Protocol, come_from: Callable[[str], None]) -> None:
        """`come_from` is told the address of the client, before `behind` gets its first byte."""
        self._behind = behind
        self._come_from = come_from
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._behind.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._data += data
        try:
            found = read_header(self._data)
        except ValueError:
            logger.debug("connection closed: it has no valid PROXY header")
            self._transport.abort()
            return
        if found is None:
            return
        address, size_bytes = found
        rest, self._data = self._data[size_bytes:], b""
        if address:
            self._come_from(address)
        self._transport.set_protocol(self._behind)
        if rest:
            self._behind.data_received(rest)

    def eof_received(self) -> bool | None:
        return self._behind.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._behind.connection_lost(exc)

    def pause_writing(self) -> None:
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        self._behind.resume_writing()


def _version_2(data: bytes) -> tuple[str, int] | None:
    if len(data) < _FIXED_BYTES:
        return None
    command, length = data[12], int.from_bytes(data[14:16], "big")
    size_bytes, needed_bytes = _ADDRESSES.get(data[13] >> 4, (0, V2_BYTES_MAX + 1))
    if command not in (0x20, 0x21) or not needed_bytes <= length <= V2_BYTES_MAX:
        raise ValueError("no valid PROXY header")
    end = _FIXED_BYTES + length
    if len(data) < end:
        return None
    if command == 0x20 or not size_bytes:  # the load balancer's own
        return "", end
    return plain_address(data[_FIXED_BYTES : _FIXED_BYTES + size_bytes]), end
