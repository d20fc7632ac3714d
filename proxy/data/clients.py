"""The clients connected to the data port, and which of them have a seat: only those are served.

Clients without a seat get an error in their API's own shape and are closed. A client that has a
seat but no request may lose it to others, by the rules of `room.Seats`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.data.kept import losers
from penstock.proxy.data.room import NEAR, Seats

# This many clients without a seat still have their heads read. They get `/health`, or a 429 in
# their API's shape. Any more get a 429 unread.
EXCESS_MAX: Final = 64
# A client without a seat gets its error after this time, whether it has asked anything or not.
EXCESS_S: Final = 1.0
# During a drain a request may be on its way on a connection that its client takes for open.
LAST_REQUEST_S: Final = 1.0
EVERYBODY: Final = 2**31
# The least time between two attempts to free seats: closing clients need a turn of the loop.
MAKE_SEATS_S: Final = 0.02
# What closing a stranger's TLS connection frees: some 26 KB, and 16 KB if a part of a record waits.
STRANGER_BYTES: Final = 32_768
STRANGER_BYTES_MAX: Final = 65_536
# How many clients are closed in one turn of the loop: a few milliseconds.
AT_ONCE_MAX: Final = 64


class Clients:
    """All connections of the data port. `fit`: how many clients the descriptors are enough for."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._all: set[Client] = set()
        self._seats = Seats(clock)
        self._seated = 0
        self._cleared_s = 0.0
        self._limit = EVERYBODY
        self.fit = EVERYBODY

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._all)

    def use(self, limit: int, *, keyed: bool) -> None:
        """Set the number of seats. `keyed`: whether clients must show a key."""
        self._limit = limit
        self._seats.keyed = keyed

    @property
    def seats(self) -> int:
        """How many clients are served at the same time."""
        return min(self._limit, self.fit)

    def enter(self, client: Client) -> bool:
        """Count a new client. False when not even its head may be read."""
        full = len(self._all) - self._seated >= EXCESS_MAX
        if full and not self._may_sit(client) and not self._takes_place(client):
            self._make_seats(client)
            return False
        self._all.add(client)
        return True

    def seat(self, client: Client) -> bool:
        """Give a seat to a client that has entered. False when there is none for it."""
        if not self._may_sit(client) and not (client.proven and self._takes_place(client)):
            self._make_seats(client)
            return False
        self._seated += 1
        return True

    def leave(self, client: Client, *, seated: bool) -> None:
        self._all.discard(client)
        self._seated -= seated
        assert 0 <= self._seated <= len(self._all)

    def name_of(self, client: Client) -> str:
        """Who holds a client's seat: a tenant, an address, or all clients without a key."""
        return self._seats.name_of(client)

    def crowds(self, holder: str) -> bool:
        """Whether nearly all seats are taken and `holder`'s requests take too many of them."""
        seats = self.seats
        return self._seated > NEAR * seats and self._seats.crowds(holder, self._all, seats)

    async def make_room(self, over_bytes: int, *, refusing: bool) -> bool:
        """Free this much memory: close strangers first, then take what other clients only keep.

        `refusing`: requests are refused already. Then strangers are closed only if that, with what
        others keep, is enough. Returns whether anybody lost anything.
        """
        strangers = self._seats.strangers(self._all, -(-over_bytes // STRANGER_BYTES))
        lacking_bytes = over_bytes - len(strangers) * STRANGER_BYTES
        others, kept_bytes = losers(self._all, lacking_bytes, refusing=refusing)
        if refusing and len(strangers) * STRANGER_BYTES_MAX + kept_bytes < over_bytes:
            strangers = []
        for at in range(0, len(strangers), AT_ONCE_MAX):
            self._close_strangers(strangers[at : at + AT_ONCE_MAX])
            await asyncio.sleep(0)  # the loop tells them that they are lost
        for at in range(0, len(others), AT_ONCE_MAX):
            for client in others[at : at + AT_ONCE_MAX]:
                if client in self._all and client.kept_bytes(refusing=refusing):
                    client.give_way()
            await asyncio.sleep(0)
        return bool(strangers or others)

    def slept(self) -> None:
        """The process did not run for a while."""
        for client in self._all:
            client.slept()

    def _close_strangers(self, strangers: Iterable[Client]) -> None:
        """Close those that are still here and still have no accepted request.

        `Waiting` decides about those whose bytes wait for their turn.
        """
        for client in strangers:
            if client in self._all and not (client.proven or client.stopped):
                client.give_way()

    def _takes_place(self, client: Client) -> bool:
        """Only where keys are asked for: take a seat from another client at once."""
        if not self._seats.keyed or (client.proven and self._fills(client)):
            return False
        victim = self._seats.taken(self._all, self.seats, client)
        if victim is None:
            return False
        self._all.discard(victim)
        self._seated -= not victim.excess
        victim.excess = True
        victim.give_way()
        return True

    def _make_seats(self, wanting: Client) -> None:
        """Close idle clients to free seats. It scans all clients: at most every MAKE_SEATS_S."""
        if self._seats.keyed and not wanting.proven:
            return
        now_s = self._clock()
        if now_s - self._cleared_s >= MAKE_SEATS_S:
            self._cleared_s = now_s
            self._seats.clear(self._all, self.seats, wanting)

    def _may_sit(self, client: Client) -> bool:
        """Whether a seat is free. The last ones are for holders with less than an even share."""
        seats = self.seats
        if self._seated <= NEAR * seats:
            return True
        return self._seated < seats and not self._fills(client)

    def _fills(self, client: Client) -> bool:
        return self._seats.fills(self.name_of(client), self._all, self.seats)
