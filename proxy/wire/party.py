"""Who a client counts as when nothing but its address is known."""

from ipaddress import IPv6Address
from typing import Final

# One holder for all clients without an accepted request. No tenant and no address has this name.
STRANGERS: Final = "*"


def party_of(address: str) -> str:
    """The party of an address. With IPv6 it is the whole /64, which one owner has."""
    if ":" not in address:
        return address
    try:
        known = IPv6Address(address)
    except ValueError:
        return address
    return str(known.ipv4_mapped or IPv6Address(int(known) >> 64 << 64))
