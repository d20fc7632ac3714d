"""The data port: makes the protocol of a new connection, with or without TLS."""

import asyncio

from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.tls import TlsConnection


def client_of(plane: DataPlane) -> asyncio.Protocol:
    """The protocol of a new connection to the data port."""
    client = ClientConnection(plane)
    context = plane.certificates.listener
    if context is None:
        return client
    return TlsConnection(
        plane.loop,
        context,
        client,
        handshake_s=plane.timeouts.client_head_s,
        on_failure=plane.metrics.handshake_failed,
        rota=plane.handshakes,
        reads=plane.record_reads,
        sender=client,
    )
