"""The clients connected to the data port, and which of them have a seat: only those are served.

Clients without a seat get an error in their API's own shape and are closed. A seat without a
request is taken from the holder with most of them when another client needs it. Near the limit a
holder with more than an even share can begin nothing more while there are others. A holder is a
tenant, or an address if there are no tenants. With tenants, all clients that have shown no key are
one holder, and a client that has shown a key never loses its seat to them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter, itemgetter
from time import monotonic
from typing import Final

from penstock.proxy.data.bodies import HELD_S, LOOK_S_PER_CLIENT
from penstock.proxy.data.client import Client
from penstock.proxy.wire.ledger import STRANGERS, victims

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
# The most clients that are closed in one turn of the loop: a few milliseconds.
CLEARED: Final = 64
# A client may still show a key within this time. Later another client without one may get its seat.
GRACE_S: Final = 0.25
# Above this share of the seats, one holder may have no more than an even share of them.
NEAR: Final = 0.9
# A client that got no seat is expected back within this time.
ASKED_S: Final = 2.0
# If all that clients keep is a smaller part of what is lacking, taking it would help nobody.
PART_MIN: Final = 1 / 8

# A seat that may be taken: (without a key, how many its holder has, since when (negative), client).
Place = tuple[bool, int, float, Client]


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

        `refusing`: requests are refused already, so half bodies may go, too. Returns whether
        anybody lost anything.
        """
        everybody = len(self._all)
        kept = [(each.holder, each.kept_bytes(refusing=refusing), each) for each in self._all]
        strangers = [each for each in kept if each[1] and not each[2].proven]
        found, freed_bytes = victims(strangers, over_bytes, everybody)
        if freed_bytes < over_bytes:
            others = [each for each in kept if each[1] and each[2].proven]
            more, more_bytes = victims(others, over_bytes - freed_bytes, everybody)
            found += more
            freed_bytes += more_bytes
        if freed_bytes < PART_MIN * over_bytes:
            return False
        for at in range(0, len(found), CLEARED):
            for client in found[at : at + CLEARED]:
                if client in self._all and client.kept_bytes(refusing=refusing):
                    client.give_way()
            await asyncio.sleep(0)  # the loop tells them that they are lost
        return bool(found)

    def slept(self) -> None:
        """The process did not run for a while."""
        for client in self._all:
            client.slept()

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


class Seats:
    """Who loses a seat when all are taken, and which holders have more than their share."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.keyed = False  # whether keys are asked for
        self._crowds: frozenset[str] = frozenset()
        self._fills: frozenset[str] = frozenset()
        self._seated: Counter[str] = Counter()
        # The holder that asked for a seat last, among those that had none.
        self._asking = ""
        self._asked_s = float("-inf")
        self._looked_s = float("-inf")
        # As of the last scan: who loses a seat first is last. Clients without a key, by address.
        self._waiting: list[Place] = []
        self._strangers: Counter[str] = Counter()
        self._cleared_s = float("-inf")

    def clear(self, clients: Collection[Client], limit: int, wanting: Client) -> None:
        """Close connections without a request, so that `wanting` finds a seat.

        Clients without a key go first. In each group the holder with the most seats loses first,
        then the client that waited longest. Its requests do not help a client without a key.
        """
        self._look_who_waits(clients, limit, wanting)
        for _ in range(min(CLEARED, len(self._waiting))):
            client = self._waiting.pop()[3]
            if client in clients and client.waits:
                client.give_way()

    def taken(self, clients: Collection[Client], limit: int, wanting: Client) -> Client | None:
        """The client that gives its seat to `wanting` at once, where keys are asked for.

        A client without a key takes a seat only from another one: the oldest of the address with
        most of them. It is spared for GRACE_S unless its address has more than the newcomer's.
        """
        now_s = self._look_who_waits(clients, limit, wanting)
        own = 0
        if not wanting.proven:
            self._strangers[wanting.holder] += 1
            own = self._strangers[wanting.holder]
        waiting = self._waiting
        at = len(waiting)
        for _ in range(min(at, 2 * CLEARED)):  # some have left or have no seat
            at -= 1
            stranger, count, _, client = waiting[at]
            if client not in clients or not client.waits or client.proven is stranger:
                del waiting[at]
                continue
            if wanting.proven and client.excess:
                continue
            young = count <= own and now_s - client.made_s < GRACE_S
            if not wanting.proven and (young or not stranger):
                return None
            del waiting[at]
            return client
        return None

    def name_of(self, client: Client) -> str:
        """The holder of a client's seat."""
        return client.holder if client.proven or not self.keyed else STRANGERS

    def _look_who_waits(self, clients: Collection[Client], limit: int, wanting: Client) -> float:
        now_s = self._clock()
        if now_s - self._cleared_s >= LOOK_S_PER_CLIENT * len(clients):
            self._cleared_s = now_s
            self._strangers.clear()
            if self.keyed:
                known = [client for client in clients if client.proven]
                self._waiting = _idle(known, limit, wanting, now_s)
                self._waiting += _in_turn(clients, self._strangers)
            else:
                self._waiting = _idle(clients, limit, wanting, now_s)
        return now_s

    def crowds(self, holder: str, clients: Collection[Client], limit: int) -> bool:
        """Whether the requests of a holder take more than an even share of all seats."""
        self._look(clients, limit)
        return holder in self._crowds

    def fills(self, holder: str, clients: Collection[Client], limit: int) -> bool:
        """Whether a holder's connections, idle or not, take more than an even share."""
        self._look(clients, limit)
        if not self._seated[holder]:
            self._asking, self._asked_s = holder, self._clock()
        return holder in self._fills

    def _look(self, clients: Collection[Client], limit: int) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S_PER_CLIENT * len(clients):
            return
        self._looked_s = now_s
        at_work: Counter[str] = Counter()
        seated: Counter[str] = Counter()
        for client in clients:
            name = self.name_of(client)
            seated[name] += not client.excess
            if not client.waits:
                at_work[name] += 1
        self._crowds = _uneven(at_work, limit)
        if now_s - self._asked_s < ASKED_S:
            seated[self._asking] += 0
        self._seated = seated
        self._fills = _uneven(seated, limit)


def _uneven(held: Counter[str], limit: int) -> frozenset[str]:
    """The holders that have more than an even share, if there are others.

    Clients without a key do not reduce the share of anybody else.
    """
    holders = len(held) - (STRANGERS in held)
    even = limit / max(1, holders)
    uneven = {name for name, count in held.items() if holders > 1 and count > even}
    if holders and held[STRANGERS] > limit / (holders + 1):
        uneven.add(STRANGERS)
    return frozenset(uneven)


def _in_turn(clients: Collection[Client], strangers: Counter[str]) -> list[Place]:
    """The clients without a key, in the order of losing seats; counts them by address.

    The one to go first is last: of the address that has most, then of the next one.
    """
    young_first = sorted(
        (client for client in clients if not client.proven), key=attrgetter("made_s"), reverse=True
    )
    places: list[Place] = []
    for client in young_first:
        name = client.holder
        strangers[name] += 1
        places.append((True, strangers[name], -client.made_s, client))
    places.sort(key=itemgetter(1, 2))
    return places


def _idle(clients: Collection[Client], limit: int, wanting: Client, now_s: float) -> list[Place]:
    """The clients whose seats may be taken. The one to go first is last."""
    held: Counter[str] = Counter({wanting.holder: 0})
    waiting: list[tuple[str, Client]] = []
    for client in clients:
        name = client.holder
        held[name] += 0
        if client.waits and not client.excess:
            held[name] += 1
            waiting.append((name, client))
    # A holder with more than an even share gives up idle connections at once, not after HELD_S.
    even = limit / len(held) if len(held) > 1 else limit
    idle: list[Place] = []
    for name, client in waiting:
        since_s = client.began_s if client.proven else client.made_s
        if held[name] > even or now_s - since_s >= HELD_S:
            idle.append((not client.proven, held[name], -since_s, client))
    idle.sort(key=itemgetter(0, 1, 2))
    return idle
