"""Makes TLS contexts from the certificate files that a configuration names.

A file that cannot be used is a ConfigError at the line that names it. Files are read only when the
contexts are made. So a renewed certificate is used after a reload.
"""

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, NoReturn

from penstock.conf.files import read_regular
from penstock.conf.issues import ConfigError, Issue
from penstock.conf.keypath import KeyPath, spell
from penstock.conf.listen import ListenTlsSettings
from penstock.conf.load import Loaded
from penstock.conf.pools import PoolSettings, PoolTlsSettings
from penstock.conf.settings import Settings
from penstock.proxy.wire.certificates import Certificates

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


FILE_BYTES_MAX: Final = 4_194_304
# The only group for keys that every TLS 1.3 must know (RFC 8446, 9.1). OpenSSL also accepts
# ffdhe8192. A peer that offered nothing else made us calculate 240 ms for one hello (X25519: 0.5).
GROUP: Final = "prime256v1"
# TLS 1.2: fresh keys for each connection, by the group above. With DHE the peer chooses their size.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class _Unusable(ValueError):
    """A file that cannot be used: the key that names it, and the problem."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


def certificates_of(loaded: Loaded, config: Path | None) -> Certificates:
    """Read the configured certificates. Raises ConfigError with all problems."""
    issues: list[Issue] = []
    settings = loaded.settings
    listener: ssl.SSLContext | None = None
    tls = settings.listen.tls
    if tls is not None:
        required = not any(tenant.keys for tenant in settings.tenants)
        wrong = _wrong_with_pair(tls.cert_file, tls.key_file)
        wrong += _wrong_with_authorities("client_ca_file", tls.client_ca_file)
        try:
            listener = None if wrong else _of_listener(tls, required=required)
        except _Unusable as error:
            wrong = [error]
        issues += [_issue(loaded, config, ("listen", "tls", each.key), str(each)) for each in wrong]
    pools: dict[str, ssl.SSLContext] = {}
    system: ssl.SSLContext | None = None
    for index, pool in enumerate(settings.pools):
        if not _has_https(pool):
            continue
        if pool.tls is None:  # one context for all: reading the system's takes tens of ms
            system = system or _of_pool(PoolTlsSettings())
            pools[pool.name] = system
            continue
        wrong = _wrong_with_authorities("ca_file", pool.tls.ca_file)
        if pool.tls.cert_file is not None and pool.tls.key_file is not None:
            wrong += _wrong_with_pair(pool.tls.cert_file, pool.tls.key_file)
        try:
            if not wrong:
                pools[pool.name] = _of_pool(pool.tls)
        except _Unusable as error:
            wrong = [error]
        at = ("pools", index, "tls")
        issues += [_issue(loaded, config, (*at, each.key), str(each)) for each in wrong]
    if issues:
        raise ConfigError(issues)
    receiver = _by_the_system(settings.tracing.otlp_endpoint, system)
    asked = settings.classifier.url if settings.classifier is not None else None
    classifier = _by_the_system(asked, receiver or system)
    authority = _identity(tls.client_ca_file if tls else None)
    expiries = tuple(_expiries(settings))
    return Certificates(listener, pools, authority, expiries, receiver, classifier)


def _by_the_system(url: str | None, system: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """For a server with https, by the authorities of the system. `system`: for these, if made."""
    if not (url or "").startswith("https:"):
        return None
    return system or _of_pool(PoolTlsSettings())


def _expiries(settings: Settings) -> Iterator[tuple[tuple[str, str], float]]:
    """When our own certificates end: what each is for, its pool, and the time."""
    listen = settings.listen.tls
    shown = [(("listen", ""), listen.cert_file)] if listen is not None else []
    shown += [
        (("client", pool.name), pool.tls.cert_file)
        for pool in settings.pools
        if _has_https(pool) and pool.tls is not None and pool.tls.cert_file is not None
    ]
    for use, file in shown:
        ends_s = expiry_of(_read("cert_file", file))
        if ends_s is not None:
            yield use, ends_s


def _has_https(pool: PoolSettings) -> bool:
    urls = [url for each in pool.backends for url in (each.url, each.gpu_metrics_url) if url]
    return any(url.startswith("https:") for url in urls)


def _issue(loaded: Loaded, config: Path | None, path: KeyPath, problem: str) -> Issue:
    where = loaded.origins[spell(path)]
    if config is not None:
        where = where.replace("file:", f"{config}:", 1)
    return Issue(where, path, problem)


def _of_listener(settings: ListenTlsSettings, *, required: bool) -> ssl.SSLContext:
    """`required`: clients without a certificate are refused, if one is asked for at all.

    Each context has ticket keys of its own. So no session outlives a reload.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    _load_pair(context, settings.cert_file, settings.key_file)
    if settings.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        # What the file holds is believed, also an intermediate authority without its root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(settings.client_ca_file)
    return context


def _of_pool(settings: PoolTlsSettings) -> ssl.SSLContext:
    """A context for TLS 1.2 or newer that verifies the certificate and the host name of the URL."""
    context = ssl.create_default_context(cafile=settings.ca_file)
    _restrict(context)
    if settings.cert_file is not None and settings.key_file is not None:
        _load_pair(context, settings.cert_file, settings.key_file)
    return context


def _identity(ca_file: str | None) -> bytes:
    """Tells one file of authorities from another one. Empty without a file."""
    return b"" if ca_file is None else sha256(_read("client_ca_file", ca_file)).digest()


def _wrong_with_pair(cert_file: str, key_file: str) -> list[_Unusable]:
    """What is wrong with each of the two files by itself."""
    wrong = []
    certificate = ("cert_file", cert_file, b"-----BEGIN CERTIFICATE-----", "certificate")
    private_key = ("key_file", key_file, b"PRIVATE KEY-----", "private key")
    for key, file, mark, what in (certificate, private_key):
        try:
            content = _read(key, file)
        except _Unusable as error:
            wrong.append(error)
            continue
        if mark not in content:
            wrong.append(_Unusable(key, f"{_named(file)} holds no PEM {what}"))
        elif key == "key_file" and b"ENCRYPTED" in content:
            problem = "is encrypted: nobody is there to type a passphrase"
            wrong.append(_Unusable(key, f"{_named(file)} {problem}"))
    return wrong


def _wrong_with_authorities(key: str, file: str | None) -> list[_Unusable]:
    """What is wrong with a file of authorities."""
    if file is None:
        return []
    try:
        _read(key, file)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return [_Unusable(key, f"{_named(file)} holds no PEM certificate")]
    except _Unusable as error:
        return [error]
    return []


def _load_pair(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    try:
        context.load_cert_chain(cert_file, key_file, _no_passphrase)
    except (ssl.SSLError, OSError) as error:
        _refuse(cert_file, key_file, error)


def _refuse(cert_file: str, key_file: str, error: OSError) -> NoReturn:
    """Tell which of the two files is wrong, because OpenSSL does not."""
    reason = getattr(error, "reason", None) or error.strerror
    if reason == "KEY_VALUES_MISMATCH":
        raise _Unusable("key_file", f"{_named(key_file)} is not the key of cert_file") from None
    try:
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        alone.load_verify_locations(cadata=_read("cert_file", cert_file).decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise _Unusable(
            "cert_file", f"{_named(cert_file)} holds a certificate that cannot be read"
        ) from None
    raise _Unusable(
        "key_file", f"{_named(key_file)} cannot be used with cert_file ({reason})"
    ) from None


def _no_passphrase() -> str:
    raise ssl.SSLError("encrypted")  # otherwise OpenSSL would ask on the terminal


def _restrict(context: ssl.SSLContext) -> None:
    """Limit TLS on both legs, so that no peer can make us calculate for long."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A renegotiation makes us calculate, and nobody needs it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ecdh_curve(GROUP)
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])


def _read(key: str, name: str) -> bytes:
    try:
        content = read_regular(Path(name), FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _Unusable(key, f"{_named(name)} cannot be read: {error.strerror}") from None
    except ValueError:
        raise _Unusable(key, "is not the name of a file") from None
    if len(content) > FILE_BYTES_MAX:
        raise _Unusable(key, f"{_named(name)} is larger than {FILE_BYTES_MAX:,} bytes")
    return content


def _named(name: str) -> str:
    return Path(name).name
