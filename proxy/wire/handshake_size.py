"""How much a peer may send for a handshake. OpenSSL reads it all, before it knows who sent it."""

from typing import Final

# A client's hello of 65 KB, with keys of very many groups, took 155 ms; one of 8 KB takes 1.4 ms.
# One for post-quantum keys has 1.8 KB and may come twice.
HELLO_BYTES_MAX: Final = 8_192
# A client that is asked for a certificate: 2 to 5 KB are usual. OpenSSL keeps what it shows.
SHOWN_BYTES_MAX: Final = 16_384
# The server's part of a handshake: 190 certificates of 128 bytes took 200 ms of a thread.
CHAIN_BYTES_MAX: Final = 24_576


class HandshakeSize:
    """What one peer has sent so far."""

    __slots__ = ("_declared", "_limit_bytes", "bytes")

    def __init__(self, *, server: bool, asks: bool) -> None:
        """`server`: the peer is a client. `asks`: it is asked for a certificate."""
        self.bytes = 0
        self._declared = server
        if server:
            self._limit_bytes = SHOWN_BYTES_MAX if asks else HELLO_BYTES_MAX
        else:
            self._limit_bytes = CHAIN_BYTES_MAX

    def takes(self, data_bytes: int, declared_bytes: int) -> bool:
        """Whether the peer's part is short enough with this slice of it.

        `declared_bytes`: by the handshake's records that begin in it. A client's first data may
        come with the end of its part. A server waits for the request.
        """
        self.bytes += declared_bytes if self._declared else data_bytes
        return self.bytes <= self._limit_bytes
