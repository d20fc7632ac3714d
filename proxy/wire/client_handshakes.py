"""Where the handshakes of clients are done that are asked for a certificate: in threads.

OpenSSL reads the certificates of anybody before it verifies them, as it does a backend's
(`handshakes.py`). So a client's steps are done as a backend's are: one at a time for each party,
parties in turn, and what has proved to be cheap apart from what is unknown or dear. Backends have
threads of their own.
"""

import asyncio
import ssl
from functools import partial
from typing import Final

from penstock.proxy.wire.client_certificate import ClientCertificate, names_shown
from penstock.proxy.wire.handshake_threads import HandshakeThreads
from penstock.proxy.wire.handshakes import Beside, Handshakes

# How many parties are remembered that have nothing under way. Nobody gets in without a verified
# certificate, or without 50 ms of the one thread for strangers.
REMEMBERED_MAX: Final = 2_048


class ClientHandshakes:
    """The handshakes of each party. Those without a connection in its handshake are remembered."""

    __slots__ = ("_beside", "_loop", "_parties", "_remembered")

    def __init__(self, loop: asyncio.AbstractEventLoop, beside: Beside | None = None) -> None:
        """`beside`: as of `Handshakes`."""
        self._loop = loop
        self._beside = beside or HandshakeThreads(loop)
        self._parties: dict[str, tuple[Handshakes, int]] = {}  # with the number of connections
        self._remembered: dict[str, Handshakes] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._parties) + len(self._remembered)

    def enter(self, party: str) -> Handshakes:
        """Those of a party, for a connection that begins its handshake."""
        known = self._parties.get(party)
        if known is None:
            found = self._remembered.pop(party, None)
            if found is None:
                found = Handshakes(self._loop, self._beside, rested=partial(self._rest, party))
            known = found, 0
        self._parties[party] = known[0], known[1] + 1
        return known[0]

    def leave(self, party: str) -> None:
        """The handshake of one connection has ended, or the connection is lost."""
        handshakes, count = self._parties[party]
        self._parties[party] = handshakes, count - 1
        self._rest(party)

    def _rest(self, party: str) -> None:
        """Forget a party that has nothing under way, or remember what its steps have cost.

        A step may go on in a thread when its connection is lost. Until then no other one begins.
        """
        handshakes, count = self._parties.get(party, (None, 0))
        if handshakes is None or count or not handshakes.idle:
            return
        del self._parties[party]
        if handshakes.memorable:
            self._remembered[party] = handshakes
            if len(self._remembered) > REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]


class AskedClient:
    """The handshake of one client that is asked for a certificate."""

    __slots__ = ("_certificate", "_connection", "_party", "_table")

    def __init__(self, table: ClientHandshakes, certificate: ClientCertificate) -> None:
        """`certificate` gets what the client shows."""
        self._table = table
        self._certificate = certificate
        self._party = ""
        self._connection: ssl.SSLObject | None = None

    def enter(self, party: str, connection: ssl.SSLObject) -> Handshakes:
        """The handshake begins. Returns where its steps are done."""
        self._party, self._connection = party, connection
        return self._table.enter(party)

    def step(self) -> bool:
        """Go on with it, in a thread. False if it ends without a certificate. Raises OSError."""
        connection = self._connection
        if connection is None:  # lost at this moment
            return False
        connection.do_handshake()
        self._certificate.names = names = names_shown(connection)
        return names is not None

    def leave(self) -> None:
        """It has ended, or the connection is lost. May be called again."""
        if self._connection is not None:
            self._connection = None
            self._table.leave(self._party)
