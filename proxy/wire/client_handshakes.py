"""Where the handshakes of clients are done that are asked for a certificate: in threads.

OpenSSL reads the certificates of anybody before it verifies them, as it does a backend's
(`handshakes.py`). So a client's steps are done as a backend's are: one at a time for each party,
parties in turn, and what has proved to be cheap apart from what is unknown or dear. Backends have
threads of their own.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.proxy.wire.client_certificate import ClientCertificate, names_shown
from penstock.proxy.wire.handshake_threads import HandshakeThreads
from penstock.proxy.wire.handshakes import Beside, Handshakes

# How many parties are remembered that have nothing under way. Nobody gets in without a verified
# certificate, or without 50 ms of the one thread for strangers.
REMEMBERED_MAX: Final = 2_048
# Most bytes of all unfinished handshakes together. The first ones of each, its hello, do not count.
# OpenSSL takes 15 to 30 times as much to hold certificates, and everybody can show those
# of others and stop there.
UNFINISHED_BYTES_MAX: Final = 4_194_304
HELLO_BYTES: Final = 2_048


class ClientHandshakes:
    """The handshakes of each party. Those without a connection in its handshake are remembered."""

    __slots__ = ("_beside", "_loop", "_parties", "_remembered", "_unfinished", "_unfinished_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop, beside: Beside | None = None) -> None:
        """`beside`: as of `Handshakes`."""
        self._loop = loop
        self._beside = beside or HandshakeThreads(loop)
        self._parties: dict[str, tuple[Handshakes, int]] = {}  # with the number of connections
        self._remembered: dict[str, Handshakes] = {}  # the oldest first
        self._unfinished: dict[AskedClient, int] = {}  # what they have sent; the oldest first
        self._unfinished_bytes: Counter[str] = Counter()  # by party

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

    def hold(self, client: "AskedClient", size_bytes: int) -> None:
        """A client has sent so much by now. If it is too much together, the party with the most
        loses its largest connection."""
        more_bytes = size_bytes - HELLO_BYTES - self._unfinished.get(client, 0)
        if more_bytes <= 0:
            return
        self._unfinished[client] = size_bytes - HELLO_BYTES
        self._unfinished_bytes[client.party] += more_bytes
        while self._unfinished_bytes.total() > UNFINISHED_BYTES_MAX:
            ((party, _),) = self._unfinished_bytes.most_common(1)
            theirs = [each for each in self._unfinished if each.party == party]
            largest = max(theirs, key=self._unfinished.__getitem__)
            self.release(largest)
            largest.give_way()

    def release(self, client: "AskedClient") -> None:
        """Its handshake has ended."""
        size_bytes = self._unfinished.pop(client, 0)
        if size_bytes:
            self._unfinished_bytes[client.party] -= size_bytes
            if not self._unfinished_bytes[client.party]:
                del self._unfinished_bytes[client.party]

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

    __slots__ = ("_abort", "_certificate", "_connection", "_table", "party")

    def __init__(self, table: ClientHandshakes, certificate: ClientCertificate) -> None:
        """`certificate` gets what the client shows."""
        self._table = table
        self._certificate = certificate
        self.party = ""
        self._connection: ssl.SSLObject | None = None
        self._abort: Callable[[], None] | None = None

    def enter(self, party: str, connection: ssl.SSLObject, abort: Callable[[], None]) -> Handshakes:
        """The handshake begins. Returns where its steps are done."""
        self.party, self._connection, self._abort = party, connection, abort
        return self._table.enter(party)

    def move(self, party: str) -> Handshakes:
        """It is another party's than was thought. Returns where its first step is to be done."""
        self._table.leave(self.party)
        self.party = party
        return self._table.enter(party)

    def hold(self, size_bytes: int) -> None:
        """The client has sent so much of the handshake."""
        self._table.hold(self, size_bytes)

    def give_way(self) -> None:
        """End the connection: too much is held for unfinished handshakes."""
        if self._abort is not None:
            self._abort()

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
            self._connection = self._abort = None
            self._table.release(self)
            self._table.leave(self.party)
