"""The TLS contexts of both legs."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


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
