"""Certificates of an authority that the tests alone believe, and the files that name them."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = ("localhost", "127.0.0.1")


@cache
def authority() -> trustme.CA:
    return trustme.CA()


@dataclass(frozen=True)
class Files:
    """A certificate for names, its key, and the authority that signed it."""

    cert: Path
    key: Path
    ca: Path

    @property
    def settings(self) -> dict[str, str]:
        return {"cert_file": str(self.cert), "key_file": str(self.key)}


def general_name(name: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(name) if "://" in name else x509.DNSName(name)


def issue(folder: Path, *names: str, by: trustme.CA | None = None, name: str = "tls") -> Files:
    """Write a certificate for `names` into a folder."""
    signer = by or authority()
    issued = signer.issue_cert(*(names or NAMES))
    files = Files(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.ca")
    files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(files.key))
    signer.cert_pem.write_to_path(str(files.ca))
    return files


def client_certificate(
    folder: Path,
    *names: str,
    by: trustme.CA | None = None,
    name: str = "client",
    usage: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.CLIENT_AUTH,
    valid_for: timedelta = timedelta(days=1),
    self_signed: bool = False,
    kinds: Callable[[str], x509.GeneralName] = general_name,
    more: bytes = b"",
) -> Files:
    """Write a client's certificate for DNS names and URIs. `more`: PEM that follows it."""
    signer = by or authority()
    key = ec.generate_private_key(ec.SECP256R1())
    signing: Any = load_pem_private_key(signer.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(signer.cert_pem.bytes()).subject
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tenant-one.example")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if self_signed else issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + valid_for)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([kinds(each) for each in names]), critical=False
        )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
    made = builder.sign(key if self_signed else signing, SHA256())
    files = Files(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.ca")
    files.cert.write_bytes(made.public_bytes(Encoding.PEM) + more)
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    signer.cert_pem.write_to_path(str(files.ca))
    return files


@cache
def server_context(*names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*(names or NAMES)).configure_cert(context)
    return context


def client_context(shows: Files | None = None) -> ssl.SSLContext:
    """Verifies, and believes nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    if shows is not None:
        context.load_cert_chain(shows.cert, shows.key)
    return context
