"""Where the handshakes of clients are done that are asked for a certificate: in threads.

OpenSSL reads the certificates of anybody before it verifies them, as it does a backend's
(`handshakes.py`). So a client's steps are done as a backend's are: one at a time for each party,
parties in turn, and what has proved to be cheap apart from what is unknown or dear. Backends have
threads of their own.
"""

import asyncio
from typing import Final

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
            found = self._remembered.pop(party, None) or Handshakes(self._loop, self._beside)
            known = found, 0
        self._parties[party] = known[0], known[1] + 1
        return known[0]

    def leave(self, party: str) -> None:
        """The handshake of one connection has ended, or the connection is lost."""
        handshakes, count = self._parties[party]
        if count > 1:
            self._parties[party] = handshakes, count - 1
            return
        del self._parties[party]
        if handshakes.memorable:
            self._remembered[party] = handshakes
            if len(self._remembered) > REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
