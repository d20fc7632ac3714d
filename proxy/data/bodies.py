"""Room for the bodies of all requests, and who loses it when there is none left.

Half a body that has come for a second and more goes when another client needs the room: the holder
with most of them loses its largest. A body of a running request is never taken. A holder is a
tenant, or an address if there are no tenants.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.wire.ledger import STEPS, victims

# A client that has held something for a shorter time may still be about to use it.
HELD_S: Final = 1.0
# The least time between two looks at all clients, where there are many. One takes milliseconds.
LOOK_S: Final = 0.25
LOOK_S_PER_CLIENT: Final = LOOK_S / 10_000
MANY: Final = 1_000
# A holder may take more only if a quarter of what it would then hold stays free, so that others
# find room. If n holders each take as much as they can, each has 4 / (4n + 1) of the limit, and
# 1 / (4n + 1) stays free. A holder's only body needs no more than its own room.
LEFT: Final = 4


class Bodies:
    """The bodies of all requests together. `receiving`: clients still sending, oldest first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.held_bytes = 0
        self._held: dict[str, int] = {}  # by holder, of those who hold any
        self.receiving: dict[Client, None] = {}
        # As of the last look: how much is only held.
        self._looked_s = float("-inf")
        self._idle_bytes = 0

    def take(self, size_bytes: int, limit_bytes: int, client: Client) -> bool:
        """Count bytes. False when there is no room that `client` may have."""
        name = client.holder
        over_bytes = self._over_bytes(size_bytes, limit_bytes, client)
        if over_bytes > 0 and not self._make_room(over_bytes, size_bytes, limit_bytes, client):
            return False
        self.held_bytes += size_bytes
        self._held[name] = self._held.get(name, 0) + size_bytes
        return True

    def release(self, size_bytes: int, client: Client) -> None:
        if not size_bytes:
            return
        name = client.holder
        self.held_bytes -= size_bytes
        left_bytes = self._held[name] - size_bytes
        assert left_bytes >= 0
        if left_bytes:
            self._held[name] = left_bytes
        else:
            del self._held[name]

    def fits(self, size_bytes: int, limit_bytes: int, client: Client) -> bool:
        """Whether there would be room for `client` after closing those that only hold some."""
        over_bytes = self._over_bytes(size_bytes, limit_bytes, client)
        if over_bytes > 0 and self._clock() - self._looked_s >= LOOK_S:
            self._look()
        return over_bytes <= 0 or over_bytes <= self._idle_bytes

    def of(self, holder: str) -> int:
        return self._held.get(holder, 0)

    def _over_bytes(self, size_bytes: int, limit_bytes: int, client: Client) -> int:
        """How many bytes must be freed for so many more, with the rest that is left to others."""
        before_bytes = self._held.get(client.holder, 0)
        only = before_bytes == client.body_bytes  # one body is all that the holder has
        left_bytes = 0 if only else (before_bytes + size_bytes) // LEFT
        return self.held_bytes + size_bytes + left_bytes - limit_bytes

    def _make_room(
        self, over_bytes: int, size_bytes: int, limit_bytes: int, wanting: Client
    ) -> bool:
        """Close clients that only hold something, if that is enough. Otherwise close none.

        A holder gets no further room from a holder that has less than it would then have.
        """
        count, since_s = len(self.receiving), self._clock() - self._looked_s
        if count > MANY and since_s < LOOK_S_PER_CLIENT * count:
            return False
        name = wanting.holder
        own_bytes = self._held.get(name, 0)
        only = own_bytes == wanting.body_bytes
        own_bytes += size_bytes
        least_bytes = 0 if only else own_bytes
        held = [
            each
            for each in self._look()
            if each[0] == name or self._held.get(each[0], 0) >= least_bytes
        ]
        more_bytes = limit_bytes // STEPS if count > MANY else 0
        found, freed_bytes = victims(held, over_bytes + more_bytes)
        if not only:  # with less of its own it has to leave less
            own_freed_bytes = sum([each.body_bytes for each in found if each.holder == name])
            over_bytes += (own_bytes - own_freed_bytes) // LEFT - own_bytes // LEFT
        if freed_bytes < over_bytes or wanting in found:
            return False
        for each in found:
            self._idle_bytes -= each.body_bytes
            each.give_way()
        return True

    def _look(self) -> list[tuple[str, int, Client]]:
        """Find the clients that have held something for a moment and are still sending."""
        now_s = self._looked_s = self._clock()
        held = [
            (client.holder, client.body_bytes, client)
            for client in self.receiving
            if client.body_bytes and now_s - client.began_s >= HELD_S
        ]
        self._idle_bytes = sum([size_bytes for _, size_bytes, _ in held])
        return held
