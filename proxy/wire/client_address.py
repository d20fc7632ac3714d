"""From which address a request comes, where trusted proxies tell that in a header.

Each proxy adds the address that it got the request from at the end of a list. So the list is read
from the right, and the first address that is no trusted proxy is the client. What a client has
written itself stands before that.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.remembered import Remembered

# A list is read so far. Nobody has so many proxies.
HOPS_MAX: Final = 16
# An address, perhaps with a port and in quotes.
_ENTRY: Final = re.compile(
    rb'[ \t"]*(?:\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?'
    rb'|([0-9a-fA-F:.]+))[ \t"]*'
)


class TrustedProxies:
    """The networks of proxies that are believed."""

    __slots__ = ("_hops", "_networks")

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(each) for each in networks]
        self._hops: Remembered[tuple[str, bool]] = Remembered(4_096)

    def client_of(self, address: str, headers: Headers) -> str:
        """The address of the client whose request came on a connection from `address`.

        A proxy writes one header and may pass on another that the client wrote. So if both
        headers are there and name different clients, none is believed.
        """
        if not self._hop(address.encode())[1]:
            return address
        lists = [_last_hops(headers, b"x-forwarded-for")]
        lists.append([_for_of(each) for each in _last_hops(headers, b"forwarded")])
        told = {self._client(address, hops) for hops in lists if hops}
        return told.pop() if len(told) == 1 else address

    def _client(self, address: str, hops: Sequence[bytes]) -> str:
        """Read hops from the right. An entry that is no address ends the reading."""
        for hop in reversed(hops):
            found, trusted = self._hop(hop)
            address = found or address
            if not trusted:
                break
        return address

    def _hop(self, text: bytes) -> tuple[str, bool]:
        """The address in an entry, empty if there is none, and whether it is a trusted proxy."""
        known = self._hops.get(text)
        if known is None:
            known = self._read(text)
            self._hops.put(text, known)
        return known

    def _read(self, text: bytes) -> tuple[str, bool]:
        match = _ENTRY.fullmatch(text)
        try:
            address = plain_address((match[1] or match[2] or match[3]).decode()) if match else ""
        except ValueError:
            address = ""
        known = ip_address(address) if address else None
        return address, any(known in each for each in self._networks if known is not None)


def plain_address(text: str | bytes) -> str:
    """An IP address in its usual form: IPv4 for one that is mapped. Raises ValueError.

    `text`: without a zone, or 4 or 16 bytes.
    """
    address = ip_address(text)
    return str((address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address)


def _last_hops(headers: Headers, name: bytes) -> list[bytes]:
    """The last entries of all lines of a header together."""
    lines = [value for key, value in headers if key == name]
    return b",".join(lines).rsplit(b",", HOPS_MAX)[-HOPS_MAX:] if lines else []


def _for_of(element: bytes) -> bytes:
    """The value of `for` in an element of `Forwarded`. Empty if there is none."""
    for pair in element.split(b";"):
        name, _, value = pair.partition(b"=")
        if name.strip(b" \t").lower() == b"for":
            return value
    return b""
