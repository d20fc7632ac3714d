"""Certificates: the TLS contexts of both legs, and what a client has shown on its connection.

OpenSSL has verified a client's certificate by then. A name is told from others by its kind: a URI
holds `://`, a DNS name does not. What stands in a field of the other kind is no name here, because
the authority has checked it as something else.
"""

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any, Final

# A certificate with more names than these is for nobody: none of them is looked at. Each connection
# keeps its names, because a reload may give one of them to a tenant.
NAMES_MAX: Final = 64
# Reading takes Python a millisecond for one of this size with the shortest names. Usual are 0.5 to
# 2 KB.
CERTIFICATE_BYTES_MAX: Final = 8_192


@dataclass(frozen=True, slots=True)
class Certificates:
    """TLS contexts: of the data port (None: plain HTTP), and by name of pools with https.

    `client_authority` identifies the authorities of clients' certificates. Empty: none is asked
    for. `expiries`: what each own certificate is for (`listen`, `client`), its pool, and its end as
    Unix time. `receiver`: for the receiver of spans. `classifier`: for that.
    """

    listener: ssl.SSLContext | None
    pools: Mapping[str, ssl.SSLContext]
    client_authority: bytes = b""
    expiries: tuple[tuple[tuple[str, str], float], ...] = ()
    receiver: ssl.SSLContext | None = None
    classifier: ssl.SSLContext | None = None


PLAIN: Final = Certificates(None, {})


class ClientCertificate:
    """What a connection has shown. `names` is None without a certificate, which is verified."""

    def __init__(self, authority: bytes) -> None:
        """`authority`: identifies the certificates that the connection is verified by."""
        self.authority = authority
        self.names: tuple[str, ...] | None = None
        self.tenant = ""  # as told by `told_by`, which changes with each reload
        self.told_by: object = None


def names_shown(
    connection: ssl.SSLObject, now: Callable[[], float] = time
) -> tuple[str, ...] | None:
    """The DNS names and URIs of the client's certificate, after a handshake. None: there is none.

    Raises ConnectionAbortedError if the client may not have shown it today, or could fill the
    memory by showing it again and again.
    """
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        return None
    session = connection.session
    cached = session is not None and session.id and connection.version() == "TLSv1.2"
    if cached and not connection.session_reused:
        # OpenSSL keeps it, up to 20,480 of them with 100 KB each. Aborted, it is forgotten.
        raise ConnectionAbortedError("a client's certificate needs TLS 1.3 or session tickets")
    fields: dict[str, Any] = {}
    if len(certificate) <= CERTIFICATE_BYTES_MAX:
        with suppress(ValueError, ssl.SSLError):  # a name that is no text
            fields = connection.getpeercert() or {}
    if not fields:
        if connection.session_reused:
            raise ConnectionAbortedError("the certificate of a resumed session cannot be read")
        return ()
    if connection.session_reused and ssl.cert_time_to_seconds(fields["notAfter"]) < now():
        raise ConnectionAbortedError("the certificate of a resumed session has expired")
    return names_of(fields)


def names_of(fields: dict[str, Any]) -> tuple[str, ...]:
    """The names in a certificate as `getpeercert` gives it. Empty if there are too many."""
    names = []
    for kind, name in fields.get("subjectAltName", ()):
        if kind == ("URI" if "://" in name else "DNS"):
            names.append(name)
    return tuple(names) if len(names) <= NAMES_MAX else ()
