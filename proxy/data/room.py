"""Room for bodies and for connections, and who loses them when there is no room left.

What a client holds without using it (half a body, a connection without a request) costs nobody
anything while there is room for all. When another client needs the room, the holder with the most
unused room loses some. Work under way is never taken. But near the limit a holder with more than an
even share can begin nothing more while there are other holders.
A holder is a tenant, or an address if there are no tenants. All clients behind one address are one
holder, so these rules do nothing between them. With tenants, all clients that have shown no key
are one holder of connections, and a client that has shown a key never loses its seat to them.
"""

from collections import Counter
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heapreplace
from itertools import islice
from operator import attrgetter, itemgetter
from time import monotonic
from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.wire.party import STRANGERS

# A client that has held something for a shorter time may still be about to use it.
HELD_S: Final = 1.0
# A client may still show a key within this time. Later another client without one may get its seat.
GRACE_S: Final = 0.25
# The most clients that lose their room at once: each is answered and logged.
CLEARED: Final = 64
# Above this share of the seats, one holder may have no more than an even share of them.
NEAR: Final = 0.9
# The least time between two scans of all connections. A scan of 10,000 takes some milliseconds.
LOOK_S: Final = 0.25
LOOK_S_PER_CLIENT: Final = LOOK_S / 10_000
# A client that got no seat is expected back within this time.
ASKED_S: Final = 2.0


# A holder may take more only if a quarter of what it would then hold stays free, so that others
# find room. If n holders each take as much as they can, each has 4 / (4n + 1) of the limit, and
# 1 / (4n + 1) stays free. A holder's only body needs no more than its own room.
LEFT: Final = 4


# A seat that may be taken: (without a key, how many its holder has, since when (negative), client).
Place = tuple[bool, int, float, Client]


class Bodies:
    """The bodies of all requests together. `receiving`: clients still sending, oldest first."""

    __slots__ = (
        "_clock",
        "_held",
        "_holders",
        "_idle_bytes",
        "_looked_s",
        "_slow",
        "held_bytes",
        "receiving",
    )

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.held_bytes = 0
        self._held: dict[str, int] = {}  # by holder, of those who hold any
        self.receiving: dict[Client, None] = {}
        # As of the last scan: the clients that only hold something, by holder, largest first.
        self._looked_s = float("-inf")
        self._slow: dict[str, list[Client]] = {}
        self._idle_bytes = 0
        # A heap of (-bytes, holder, how many of its clients have lost their room).
        self._holders: list[tuple[int, str, int]] = []

    def take(self, size_bytes: int, limit_bytes: int, client: Client) -> bool:
        """Count bytes. False when there is no room that `client` may have."""
        name = client.holder
        own_bytes = self._held.get(name, 0) + size_bytes
        over_bytes = self._over_bytes(size_bytes, own_bytes, limit_bytes, client)
        if over_bytes > 0:
            if not self._make_room(over_bytes, size_bytes, client):
                return False
            own_bytes = self._held.get(name, 0) + size_bytes
        self.held_bytes += size_bytes
        self._held[name] = own_bytes
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
        own_bytes = self._held.get(client.holder, 0) + size_bytes
        over_bytes = self._over_bytes(size_bytes, own_bytes, limit_bytes, client)
        if over_bytes > 0:
            self._look()
        return over_bytes <= 0 or over_bytes <= self._idle_bytes

    def of(self, holder: str) -> int:
        """How many bytes a holder has."""
        return self._held.get(holder, 0)

    def _over_bytes(self, size_bytes: int, own_bytes: int, limit_bytes: int, client: Client) -> int:
        """How many bytes must be freed, so that a holder can have `own_bytes` and leave a rest."""
        left_bytes = 0 if _only(client, own_bytes - size_bytes) else own_bytes // LEFT
        return self.held_bytes + size_bytes + left_bytes - limit_bytes

    def _make_room(self, over_bytes: int, size_bytes: int, wanting: Client) -> bool:
        """Close the clients that hold most, if a few are enough. Otherwise close none.

        A holder gets no further room from a holder that has less than it would then have.
        """
        self._look()
        own = wanting.holder
        own_bytes = self._held.get(own, 0)
        only = _only(wanting, own_bytes)
        own_bytes += size_bytes
        holders = self._holders.copy()
        victims: list[Client] = []
        for _ in range(CLEARED):
            if over_bytes <= 0 or not holders:
                break
            below_bytes, name, given = holders[0]
            victim = self._slow[name][given]
            smaller = name != own and not only and self._held.get(name, 0) < own_bytes
            if victim is wanting or smaller:
                return False
            if given + 1 < len(self._slow[name]):
                heapreplace(holders, (below_bytes + victim.body_bytes, name, given + 1))
            else:
                heappop(holders)
            if victim in self.receiving:
                victims.append(victim)
                over_bytes -= victim.body_bytes
                if name == own:  # its own body goes, so it has to leave less
                    over_bytes -= own_bytes // LEFT - (own_bytes - victim.body_bytes) // LEFT
                    own_bytes -= victim.body_bytes
        if over_bytes > 0:
            return False
        self._holders = holders
        for victim in victims:
            self._idle_bytes -= victim.body_bytes
            victim.give_way()
        return True

    def _look(self) -> None:
        """Find the clients that only hold something. At most every LOOK_S."""
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        slow: dict[str, list[Client]] = {}
        held: Counter[str] = Counter()
        for client in self.only_held(now_s):
            name = client.holder
            slow.setdefault(name, []).append(client)
            held[name] += client.body_bytes
        for clients in slow.values():
            clients.sort(key=attrgetter("body_bytes"), reverse=True)
        self._slow = slow
        self._idle_bytes = sum(held.values())
        self._holders = [(-held_bytes, name, 0) for name, held_bytes in held.items()]
        heapify(self._holders)

    def only_held(self, now_s: float) -> list[Client]:
        """The clients that have held something for a moment and are still sending."""
        return [
            client
            for client in self.receiving
            if client.body_bytes and now_s - client.began_s >= HELD_S
        ]


class Seats:
    """Who loses a seat when all are taken, and which holders have more than their share."""

    __slots__ = (
        "_asked_s",
        "_asking",
        "_cleared_s",
        "_clock",
        "_crowds",
        "_fills",
        "_looked_s",
        "_seated",
        "_strangers",
        "_waiting",
        "keyed",
    )

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

    def strangers(self, clients: Collection[Client], count: int) -> list[Client]:
        """The first clients without an accepted request to close when memory is short.

        Clients of the address with most of them go first. Each is spared for GRACE_S.
        """
        until_s = self._clock() - GRACE_S
        places = reversed(_in_turn(clients, Counter()))
        return list(islice((place[3] for place in places if place[3].made_s <= until_s), count))

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


def _only(client: Client, own_bytes: int) -> bool:
    """Whether one body is all that the client's holder has."""
    return own_bytes == client.body_bytes


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
