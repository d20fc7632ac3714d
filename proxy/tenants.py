"""Who asks: a request's key told apart by its digest, before anything else is believed.

Every digest is compared, whichever matches, each in constant time, and a request
without a usable key is compared like any other: neither the answer nor its time
tells how near a guess was, or whose key is which. Keys are kept as digests only.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv6Address
from typing import Final

from conf.settings import TenantSettings
from proxy.errors import Unauthorized
from proxy.heads import Headers

# What no key can be: they are visible ASCII.
_NO_KEY: Final = b""


class Tenants:
    """The tenants of a configuration; falsy when there are none and nobody is asked."""

    __slots__ = ("_compare", "_digests", "_names")

    def __init__(
        self,
        tenants: Sequence[TenantSettings],
        compare: Callable[[bytes, bytes], bool] = compare_digest,
    ) -> None:
        self._compare = compare
        self._digests: list[bytes] = []
        self._names: list[str] = [""]
        for tenant in tenants:
            for key in tenant.keys:
                self._digests.append(key.digest)
                self._names.append(tenant.name)

    def __len__(self) -> int:
        return len(self._digests)

    def of(self, headers: Headers) -> str:
        """The name of the tenant whose key a request brings. Raises Unauthorized."""
        given = sha256(_given_key(headers)).digest()
        found = 0
        number = 1
        compare = self._compare
        for digest in self._digests:  # all of them, and the same work for each
            found += number * compare(digest, given)
            number += 1
        if found == 0:
            raise Unauthorized
        return self._names[found]


def party_of(address: str) -> str:
    """Whom an address stands for: whoever has one of IPv6 has all of its /64."""
    if ":" not in address:
        return address
    try:
        known = IPv6Address(address)
    except ValueError:
        return address
    return str(known.ipv4_mapped or IPv6Address(int(known) >> 64 << 64))


def _given_key(headers: Headers) -> bytes:
    """The one key that a request brings, in either header; nothing without a usable one."""
    given: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            key = key.strip(b" ") if scheme.lower() == b"bearer" else _NO_KEY
        elif name == b"x-api-key":
            key = value
        else:
            continue
        if given is not None and given != key:
            return _NO_KEY  # two keys: which one is believed must not depend on who reads them
        given = key
    return given or _NO_KEY
