"""Finds the tenant of a request by its key or its connection's certificate, before anything else
is believed.

Every digest is compared in constant time with each key that was sent, whichever matches. A request
without a usable key is compared in the same way. So neither the answer nor its time tells how near
a guess was or whose key it is. Keys are kept as digests only.

A certificate was verified in the handshake. Its tenant is found once a connection, and again after
a reload. It counts only while those authorities are configured by which it was verified.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from penstock.conf.tenants import TenantSettings
from penstock.proxy.errors.client import SEVERAL_KEYS, Unauthorized
from penstock.proxy.wire.certificates import ClientCertificate
from penstock.proxy.wire.header_fields import KEY_HEADERS, Headers

# Stands for "no usable key". No key equals it, because keys are visible ASCII.
_NO_KEY: Final = b""


class Tenants:
    """The tenants of a configuration. `asks`: for a key or a certificate."""

    def __init__(
        self,
        tenants: Sequence[TenantSettings],
        compare: Callable[[bytes, bytes], bool] = compare_digest,
        authority: bytes = b"",
    ) -> None:
        """`authority` identifies the authorities of certificates. Empty: none is asked for."""
        self._compare = compare
        self._listed = bool(tenants)
        self._digests: list[bytes] = []
        self._names: list[str] = [""]
        self._certified: dict[str, str] = {}  # the tenant of each name in certificates
        self.authority = authority
        self.asks = bool(tenants) or bool(authority)
        for tenant in tenants:
            for key in tenant.keys:
                self._digests.append(key.digest)
                self._names.append(tenant.name)
            for name in tenant.certificates:
                self._certified[name] = tenant.name

    def of(self, headers: Headers) -> str:
        """The name of the tenant whose key the request has. Raises Unauthorized."""
        tenant = self._of_keys(headers)
        if not tenant:
            raise Unauthorized
        return tenant

    def on(self, certificate: ClientCertificate | None, headers: Headers) -> str:
        """The same for a request on a connection with this certificate, or with none.

        A certificate needs no key, and a wrong key does it no harm: many clients always send one.
        But the key of another tenant is refused: who is believed must not depend on the reader.
        Without tenants it is "" for any certificate.
        """
        told = self._of_certificate(certificate)
        if not self._listed:
            if certificate is None or not self._counts(certificate):
                raise Unauthorized
            return ""
        tenant = self._of_keys(headers, certified=bool(told))
        if tenant != told and tenant and told:
            raise Unauthorized
        if not (told or tenant):
            raise Unauthorized
        return told or tenant

    def _of_certificate(self, certificate: ClientCertificate | None) -> str:
        """The one tenant that the certificate names. Empty if it is none, or several."""
        if certificate is None:
            return ""
        if certificate.told_by is not self:
            certificate.told_by = self
            names = certificate.names if self._counts(certificate) else None
            told = {self._certified.get(name, "") for name in names or ()} - {""}
            certificate.tenant = told.pop() if len(told) == 1 else ""
        return certificate.tenant

    def _counts(self, certificate: ClientCertificate) -> bool:
        """Whether there is one, verified by the present authorities."""
        return certificate.names is not None and certificate.authority == self.authority

    def _of_keys(self, headers: Headers, *, certified: bool = False) -> str:
        """The name of the one tenant whose keys the request has. Empty if they are nobody's.

        Clients may send two keys, of which one means nothing. `certified`: none is needed. Raises
        Unauthorized where two tenants are named, and for several keys that are nobody's.
        """
        keys = _given_keys(headers)
        tenants = {self._of_key(key) for key in keys or (_NO_KEY,)} - {""}
        if len(tenants) > 1 or (len(keys) > 1 and not (tenants or certified)):
            raise Unauthorized(SEVERAL_KEYS)
        return tenants.pop() if tenants else ""

    def _of_key(self, key: bytes) -> str:
        given = sha256(key).digest()
        found = 0
        number = 1
        compare = self._compare
        for digest in self._digests:  # compare all of them, with the same work for each
            found += number * compare(digest, given)
            number += 1
        return self._names[found]


def _given_keys(headers: Headers) -> list[bytes]:
    """The usable keys of a request, each once, from any of the headers for keys."""
    keys: list[bytes] = []
    for name, value in headers:
        if name not in KEY_HEADERS:
            continue
        key = value
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            key = key.strip(b" ") if scheme.lower() == b"bearer" else _NO_KEY
        if key and key not in keys:
            keys.append(key)
    return keys
