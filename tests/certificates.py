"""Certificates of an authority that the tests alone believe, and the files that name them."""

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trustme

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


def issue(folder: Path, *names: str, by: trustme.CA | None = None, name: str = "tls") -> Files:
    """Write a certificate for `names` into a folder."""
    signer = by or authority()
    issued = signer.issue_cert(*(names or NAMES))
    files = Files(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.ca")
    files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(files.key))
    signer.cert_pem.write_to_path(str(files.ca))
    return files


@cache
def server_context(*names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*(names or NAMES)).configure_cert(context)
    return context


def client_context() -> ssl.SSLContext:
    """Verifies, and believes nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return context
