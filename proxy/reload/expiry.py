"""When certificates end. Python's ssl tells that only of certificates that it has verified."""

import re
import ssl
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----"
)
_CERTIFICATES_MAX: Final = 64
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
# Where the validity stands among the fields behind the version: serial, algorithm, issuer.
_BEFORE_VALIDITY: Final = 3


def expiry_of(pem: bytes) -> float | None:
    """The earliest end of all certificates in a PEM file, in Unix time. None: it cannot be read."""
    ends = []
    for number, block in enumerate(_PEM.finditer(pem)):
        if number < _CERTIFICATES_MAX:
            try:
                ends.append(_not_after(ssl.PEM_cert_to_DER_cert(block[0].decode("ascii"))))
            except (ValueError, IndexError):
                continue
    return min(ends, default=None)


def _not_after(der: bytes) -> float:
    """RFC 5280: Certificate { TBSCertificate { [version], serial, algorithm, issuer, validity …"""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    kind, _, end = _element(der, at)
    if kind == _VERSION:
        at = end
    for _ in range(_BEFORE_VALIDITY):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    _, _, at = _element(der, at)  # not before
    kind, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag at this place, and where its content begins and ends."""
    length, begin = der[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    return der[at], begin, begin + length
