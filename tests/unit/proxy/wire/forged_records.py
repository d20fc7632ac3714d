"""Records of TLS 1.3 that no library sends: written with the keys of a client that logs them,
which are those of its server too."""

from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

HANDSHAKE, DATA = b"\x16", b"\x17"


class Forger:
    """Goes on where one side stopped, which has sent `sent` records under its last keys."""

    def __init__(self, log: Path, sent: int = 0, side: str = "CLIENT") -> None:
        lines = log.read_text().splitlines()
        logged = [line.split() for line in lines if line.startswith(f"{side}_TRAFFIC_SECRET_0 ")]
        self._secret = bytes.fromhex(logged[-1][2])
        self._sequence = sent

    def data(self, text: bytes) -> bytes:
        return self._seal(text + DATA)

    def key_update(self, *, asks: bool) -> bytes:
        """New keys from the next record on; whether it asks for new ones of the other side."""
        record = self._seal(b"\x18\x00\x00\x01" + bytes([asks]) + HANDSHAKE)
        self._secret, self._sequence = self._derive(b"traffic upd", 48), 0
        return record

    def key_updates(self, count: int, *, asks: bool = False) -> bytes:
        return b"".join(self.key_update(asks=asks) for _ in range(count))

    def _derive(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)

    def _seal(self, inner: bytes) -> bytes:
        head = DATA + b"\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        number = int.from_bytes(self._derive(b"iv", 12), "big") ^ self._sequence
        self._sequence += 1
        return head + AESGCM(self._derive(b"key", 32)).encrypt(
            number.to_bytes(12, "big"), inner, head
        )
