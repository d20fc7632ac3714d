"""From which address a request comes, where others before this proxy tell it.

Trusted proxies tell it in a header. Each proxy adds the address that it got the request from at the
end of a list. So the list is read from the right, and the first address that is no trusted proxy is
the client.

Load balancers tell it before the first byte: the PROXY protocol, versions 1 and 2. With TLS its
header comes before the handshake. A connection without a valid header is closed. The protocols
behind are told of the connection at once, so that it is counted and its time is limited.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, cast

from penstock.proxy.wire.header_fields import Headers

logger = logging.getLogger(__name__)

# A list is read so far. Nobody has so many proxies.
HOPS_MAX: Final = 16
# An address, perhaps with a port and in quotes, and with the rest of an element of `Forwarded`.
_HOP: Final = re.compile(
    rb'[ \t"]*(?:\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?'
    rb'|([0-9a-fA-F:.]+))[ \t"]*'
)
_FOR: Final = re.compile(rb"(?:.*;)?[ \t]*for[ \t]*=([^;]*)(?:;.*)?", re.IGNORECASE)
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


class TrustedProxies:
    """The networks of proxies that are believed."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(each) for each in networks]

    def client_of(self, address: str, headers: Headers) -> str:
        """The address of the client whose request came on a connection from `address`.

        A proxy may pass on the other header, which the client wrote. So if both are there and
        name different clients, neither is believed.
        """
        if not self._trusts(address):
            return address
        told = {
            self._client(address, hops)
            for name in (b"x-forwarded-for", b"forwarded")
            if (hops := _last_hops(headers, name))
        }
        return told.pop() if len(told) == 1 else address

    def _client(self, address: str, hops: Sequence[str]) -> str:
        for hop in reversed(hops):
            address = hop or address
            if not self._trusts(hop):
                break
        return address

    def _trusts(self, address: str) -> bool:
        known = ip_address(address) if address else None
        known = getattr(known, "ipv4_mapped", None) or known
        return known is not None and any(known in each for each in self._networks)


def plain_address(text: str | bytes) -> str:
    """An IP address in its usual form: IPv4 for one that is mapped. Raises ValueError."""
    address = ip_address(text)
    return str((address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address)


def party_of(address: str) -> str:
    """Who a client counts as when nothing but its address is known. With IPv6 it is the whole /64,
    which one owner has."""
    if ":" not in address:
        return address
    try:
        known = IPv6Address(address)
    except ValueError:
        return address
    return str(known.ipv4_mapped or IPv6Address(int(known) >> 64 << 64))


def _last_hops(headers: Headers, name: bytes) -> list[str]:
    """The last addresses of a header, all its lines together. Empty for what is no address."""
    hops = b",".join([value for key, value in headers if key == name]).rsplit(b",", HOPS_MAX)
    return [_address(hop, name) for hop in hops[-HOPS_MAX:]] if hops != [b""] else []


def _address(hop: bytes, name: bytes) -> str:
    if name == b"forwarded":
        told = _FOR.fullmatch(hop)
        hop = told[1] if told is not None else b""
    match = _HOP.fullmatch(hop)
    try:
        return plain_address((match[1] or match[2] or match[3]).decode()) if match else ""
    except ValueError:
        return ""


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
