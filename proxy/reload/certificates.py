"""Makes TLS contexts from the certificate files that a configuration names.

A file that cannot be used is a ConfigError at the line that names it. Files are read only when the
contexts are made. So a renewed certificate is used after a reload.
"""

import ssl
from pathlib import Path
from typing import Final, NoReturn

from penstock.conf.issues import ConfigError, Issue
from penstock.conf.keypath import KeyPath, spell
from penstock.conf.load import Loaded
from penstock.conf.pools import PoolSettings
from penstock.conf.regular_files import read_regular
from penstock.conf.settings import ListenTlsSettings
from penstock.proxy.wire.contexts import Certificates

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
    pools: dict[str, ssl.SSLContext] = {}
    if settings.listen.tls is not None:
        wrong = _wrong_with(settings.listen.tls)
        try:
            listener = None if wrong else _of_listener(settings.listen.tls)
        except _Unusable as error:
            wrong = [error]
        issues += [_issue(loaded, config, ("listen", "tls", each.key), str(each)) for each in wrong]
    system: ssl.SSLContext | None = None
    for index, pool in enumerate(settings.pools):
        if not _has_https(pool):
            continue
        if pool.tls is None:  # one context for all: reading the system's takes tens of ms
            system = system or _client_context(None)
            pools[pool.name] = system
            continue
        try:
            pools[pool.name] = _client_context(pool.tls.ca_file)
        except _Unusable as error:
            issues.append(_issue(loaded, config, ("pools", index, "tls", error.key), str(error)))
    if issues:
        raise ConfigError(issues)
    return Certificates(listener, pools)


def _has_https(pool: PoolSettings) -> bool:
    return any(backend.url.startswith("https:") for backend in pool.backends)


def _issue(loaded: Loaded, config: Path | None, path: KeyPath, problem: str) -> Issue:
    where = loaded.origins[spell(path)]
    if config is not None:
        where = where.replace("file:", f"{config}:", 1)
    return Issue(where, path, problem)


def _of_listener(settings: ListenTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, _no_passphrase)
    except (ssl.SSLError, OSError) as error:
        _refuse(settings, _read("cert_file", settings.cert_file), error)
    return context


def _wrong_with(settings: ListenTlsSettings) -> list[_Unusable]:
    """What is wrong with each of the two files by itself."""
    wrong = []
    for look in (_look_at_certificate, _look_at_key):
        try:
            look(settings)
        except _Unusable as error:
            wrong.append(error)
    return wrong


def _look_at_certificate(settings: ListenTlsSettings) -> None:
    if b"-----BEGIN CERTIFICATE-----" not in _read("cert_file", settings.cert_file):
        raise _Unusable("cert_file", f"{_named(settings.cert_file)} holds no PEM certificate")


def _look_at_key(settings: ListenTlsSettings) -> None:
    key = _read("key_file", settings.key_file)
    if b"PRIVATE KEY-----" not in key:
        raise _Unusable("key_file", f"{_named(settings.key_file)} holds no PEM private key")
    if b"ENCRYPTED" in key:
        raise _Unusable(
            "key_file",
            f"{_named(settings.key_file)} is encrypted: nobody is there to type a passphrase",
        )


def _refuse(settings: ListenTlsSettings, certificate: bytes, error: OSError) -> NoReturn:
    """Tell which of the two files is wrong, because OpenSSL does not."""
    reason = getattr(error, "reason", None) or error.strerror
    if reason == "KEY_VALUES_MISMATCH":
        raise _Unusable(
            "key_file", f"{_named(settings.key_file)} is not the key of cert_file"
        ) from None
    try:
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        alone.load_verify_locations(cadata=certificate.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise _Unusable(
            "cert_file", f"{_named(settings.cert_file)} holds a certificate that cannot be read"
        ) from None
    raise _Unusable(
        "key_file", f"{_named(settings.key_file)} cannot be used with cert_file ({reason})"
    ) from None


def _no_passphrase() -> str:
    raise ssl.SSLError("encrypted")  # otherwise OpenSSL would ask on the terminal


def _client_context(ca_file: str | None) -> ssl.SSLContext:
    """A context for TLS 1.2 or newer that verifies the certificate and the host name of the URL."""
    if ca_file is not None:
        _read("ca_file", ca_file)
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        assert ca_file is not None
        raise _Unusable("ca_file", f"{_named(ca_file)} holds no PEM certificate") from None
    _restrict(context)
    return context


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
