"""Finds the tenant of a request by the digest of its key, before anything else is believed.

Every digest is compared in constant time, whichever matches. A request without a usable
key is compared in the same way. So neither the answer nor its time tells how near a
guess was or whose key it is. Keys are kept as digests only.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from penstock.conf.tenants import TenantSettings
from penstock.proxy.errors.client import Unauthorized
from penstock.proxy.wire.header_fields import Headers

# Stands for "no usable key". No key equals it, because keys are visible ASCII.
_NO_KEY: Final = b""


class Tenants:
    """The tenants of a configuration. False when there are none, and no key is asked for."""

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
        """The name of the tenant whose key the request has. Raises Unauthorized."""
        given = sha256(_given_key(headers)).digest()
        found = 0
        number = 1
        compare = self._compare
        for digest in self._digests:  # compare all of them, with the same work for each
            found += number * compare(digest, given)
            number += 1
        if found == 0:
            raise Unauthorized
        return self._names[found]


def _given_key(headers: Headers) -> bytes:
    """The one key of a request, from either header. Empty without a usable one."""
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
            return _NO_KEY  # two keys: who is believed must not depend on the reader
        given = key
    return given or _NO_KEY
