"""The data port: accepts connections and makes their protocols, with or without TLS."""

import asyncio
import socket
import ssl
from typing import Final

from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.certificates import ClientCertificate
from penstock.proxy.wire.client_address import ProxyHeader
from penstock.proxy.wire.sockets import BACKLOG, Accepting
from penstock.proxy.wire.tls import TlsConnection

# Where the loop accepts one connection so soon after the other, its turns are short.
LONG_TURN_S: Final = 0.005
# How many may be accepted and not known to their protocols yet, which takes some turns.
ACCEPTED_MAX: Final = 64
# The same when no seats are left. They are refused, and their descriptors are in nobody's count.
SEATLESS_MAX: Final = 16


class Port:
    """Accepts the connections of a listening socket."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._server: asyncio.Server | None = None
        self._listening: socket.socket | None = None
        self._accepted_s = 0.0  # when the loop accepted one
        self._others = Accepting(plane.loop, lambda: client_of(plane))

    async def open(self, sock: socket.socket) -> None:
        """Listen and accept. The socket belongs to the port from now on."""
        sock.setblocking(False)
        self._listening = sock
        self._server = await self._plane.loop.create_server(
            self._client, sock=sock, backlog=BACKLOG
        )

    async def close(self) -> None:
        """Accept no more. Who was accepted here becomes known first."""
        self._listening = None
        if self._server is not None:
            self._server.close()
        await self._others.known()

    def _client(self) -> asyncio.Protocol:
        self._accept_others()
        return client_of(self._plane)

    def _accept_others(self) -> None:
        plane, listening = self._plane, self._listening
        before_s, self._accepted_s = self._accepted_s, plane.now()
        if listening is None or self._accepted_s - before_s < LONG_TURN_S:
            return
        seats = plane.clients.seats - len(plane.clients)
        self._others.accept(listening, min(ACCEPTED_MAX, max(SEATLESS_MAX, seats)))


def client_of(plane: DataPlane) -> asyncio.Protocol:
    """The protocol of a new connection to the data port."""
    certificates = plane.certificates
    client = ClientConnection(plane, direct=certificates.listener is None)
    tls = _tls_of(plane, client, certificates.listener) if certificates.listener else None
    if not plane.listen.proxy_protocol:
        return tls or client

    def come_from(address: str) -> None:
        client.come_from(address)
        if tls is not None:
            tls.come_from(address)

    return ProxyHeader(tls or client, come_from)


def _tls_of(plane: DataPlane, client: ClientConnection, context: ssl.SSLContext) -> TlsConnection:
    authority = plane.certificates.client_authority
    if authority:
        client.certificate = ClientCertificate(authority)
    return TlsConnection(
        plane.loop,
        context,
        client,
        handshake_s=plane.timeouts.client_head_s,
        on_failure=plane.metrics.handshake_failed,
        rota=None if authority else plane.handshakes,
        parties=plane.client_handshakes if authority else None,
        certificate=client.certificate,
        reads=plane.record_reads,
        sender=client,
    )
