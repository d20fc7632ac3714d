"""Mutated requests on the data path's play: a client's bytes in, two wires' bytes out.

Backends echo what is canonical, and every byte to them is kept.
"""

import asyncio

from tests.e2e.raw_backend import answer
from tests.http.case import echo
from tests.unit.proxy.data.playbook import Play, Upstream


class Rig(Play):
    """One data plane for all requests of a run."""

    def __init__(self) -> None:
        self._upstreams: list[Upstream] = []
        self._requests: list[bytes] = []
        super().__init__(1, paths=["GET /raw", "POST /raw"])

    def opened(self, protocol: asyncio.Protocol) -> tuple[Upstream, asyncio.Protocol]:
        """Keep the connection: it may get half a request."""
        opened = super().opened(protocol)
        self._upstreams.append(opened[0])
        return opened

    def asked(self, name: str, upstream: Upstream) -> None:
        """Answer each whole request with an echo."""
        super().asked(name, upstream)
        self._requests.append(upstream.head + upstream.body)
        self.loop.call_soon(upstream.protocol.data_received, answer(echo(upstream.body)))

    def play(self, pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
        """What the client got, and what arrived at the backend."""
        self._upstreams.clear()
        self._requests.clear()
        for connections in self.plane.connections.values():
            connections.distrust()  # so that none of before is used
        client = self.connects()
        for piece in pieces:
            if not client.closed:
                client.sends(piece)
        upstream = [*self._requests, *(each.written for each in self._upstreams if each.written)]
        if not client.closed:
            client.closes()
        self._clients.remove(client)
        self.lines.clear()
        assert all(backend.own.idle for backend in self.backends), "a lease was not given back"
        return client.written, upstream
