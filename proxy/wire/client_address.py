"""From which address a request comes, where trusted proxies tell that in a header.

Each proxy adds the address that it got the request from at the end of a list. So the list is read
from the right, and the first address that is no trusted proxy is the client.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from penstock.proxy.wire.header_fields import Headers

# A list is read so far. Nobody has so many proxies.
HOPS_MAX: Final = 16
# An address, perhaps with a port and in quotes, and with the rest of an element of `Forwarded`.
_HOP: Final = re.compile(
    rb'[ \t"]*(?:\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?'
    rb'|([0-9a-fA-F:.]+))[ \t"]*'
)
_FOR: Final = re.compile(rb"(?:.*;)?[ \t]*for[ \t]*=([^;]*)(?:;.*)?", re.IGNORECASE)


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
