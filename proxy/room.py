"""Room for bodies and for connections, and who gives way when there is none left.

What a client only holds (half a body, a connection without a request) costs nobody
while there is room for all. When another needs it, it is taken from whoever holds
most of it without using it. What is under way is never taken; but near the limit
whoever has more than an even share begins nothing more, as long as others are there.
A holder is a tenant, or an address where there are no tenants: behind one address
everybody is one holder, whom this leaves alone. Where there are tenants, all who have
shown no key are one holder of connections, and nobody who has shown one gives way to them.
"""

from collections import Counter
from collections.abc import Collection
from heapq import heapify, heappop, heapreplace, nlargest
from operator import attrgetter, itemgetter
from time import monotonic
from typing import Final, Protocol

# Whoever has held something for less than this may still be about to use it.
HELD_S: Final = 1.0
# A client that has shown no key may still be about to; by then another like it may have its place.
GRACE_S: Final = 0.25
# The holder of all places of those who have shown no key, where keys are asked for.
STRANGERS: Final = "*"
# So many give way at a time: each is answered, and logged.
CLEARED: Final = 64
# Above this share of the seats, one holder may have no more than an even share of them.
NEAR: Final = 0.9
# Between two looks at all connections, some milliseconds each at 10,000.
LOOK_S: Final = 0.25
LOOK_S_PER_GUEST: Final = LOOK_S / 10_000
# Whoever was told that there is no place is back by then.
ASKED_S: Final = 2.0


# A holder may take more only if a quarter of what it would then hold stays free, so that the next
# finds room: n holders who take all they can get 4 / (4n + 1) of the limit each, and 1 / (4n + 1)
# of it is free. A holder's only body needs no more than its own room.
LEFT: Final = 4


class Guest(Protocol):
    """What is looked at of a client's connection."""

    made_s: float  # when it connected
    began_s: float  # its request, or the wait for one
    body_bytes: int
    proven: bool  # it has asked for something that is not open to all
    excess: bool  # it has no place among those that are served

    @property
    def holder(self) -> str: ...
    @property
    def waits(self) -> bool:
        """Whether no request of it is under way."""

    def give_way(self) -> None: ...


# One that may be taken: whether a stranger's, how many its holder has, since when (negative).
Place = tuple[bool, int, float, Guest]


class Bodies:
    """The bodies of all requests together. `receiving`: who is still sending, oldest first."""

    __slots__ = (
        "_held",
        "_holders",
        "_idle_bytes",
        "_looked_s",
        "_slow",
        "held_bytes",
        "receiving",
    )

    def __init__(self) -> None:
        self.held_bytes = 0
        self._held: dict[str, int] = {}  # by holder, of those who hold any
        self.receiving: dict[Guest, None] = {}
        # As of the last look: who only holds something, by holder, the largest first.
        self._looked_s = float("-inf")
        self._slow: dict[str, list[Guest]] = {}
        self._idle_bytes = 0
        # A heap of (-bytes, holder, how many of its have given way).
        self._holders: list[tuple[int, str, int]] = []

    def take(self, size_bytes: int, limit_bytes: int, guest: Guest) -> bool:
        """Count bytes in; False when there is no room that `guest` may have."""
        name = guest.holder
        own_bytes = self._held.get(name, 0) + size_bytes
        over_bytes = self._over_bytes(size_bytes, own_bytes, limit_bytes, guest)
        if over_bytes > 0:
            if not self._make_room(over_bytes, size_bytes, guest):
                return False
            own_bytes = self._held.get(name, 0) + size_bytes
        self.held_bytes += size_bytes
        self._held[name] = own_bytes
        return True

    def release(self, size_bytes: int, guest: Guest) -> None:
        if not size_bytes:
            return
        name = guest.holder
        self.held_bytes -= size_bytes
        left_bytes = self._held[name] - size_bytes
        assert left_bytes >= 0
        if left_bytes:
            self._held[name] = left_bytes
        else:
            del self._held[name]

    def fits(self, size_bytes: int, limit_bytes: int, guest: Guest) -> bool:
        """Whether there would be room for `guest` once those who only hold it gave way."""
        own_bytes = self._held.get(guest.holder, 0) + size_bytes
        over_bytes = self._over_bytes(size_bytes, own_bytes, limit_bytes, guest)
        if over_bytes > 0:
            self._look()
        return over_bytes <= 0 or over_bytes <= self._idle_bytes

    def clear(self) -> None:
        """Those who hold most of what is only held give way: memory is short."""
        slow = self._only_held(monotonic())
        for guest in nlargest(CLEARED, slow, key=attrgetter("body_bytes")):
            guest.give_way()

    def _over_bytes(self, size_bytes: int, own_bytes: int, limit_bytes: int, guest: Guest) -> int:
        """How much must go, so that a holder can have `own_bytes` and leave something."""
        left_bytes = 0 if _only(guest, own_bytes - size_bytes) else own_bytes // LEFT
        return self.held_bytes + size_bytes + left_bytes - limit_bytes

    def _make_room(self, over_bytes: int, size_bytes: int, wanting: Guest) -> bool:
        """Whoever holds most gives way, if a few who do are enough; else nobody does.

        Nor does anybody for more bodies of one who would hold more than they.
        """
        self._look()
        own = wanting.holder
        own_bytes = self._held.get(own, 0)
        only = _only(wanting, own_bytes)
        own_bytes += size_bytes
        holders = self._holders.copy()
        victims: list[Guest] = []
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
                if name == own:  # and it has to leave less
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
        """Find those who only hold something, in one pass; not again for a moment."""
        now_s = monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        slow: dict[str, list[Guest]] = {}
        held: Counter[str] = Counter()
        for guest in self._only_held(now_s):
            name = guest.holder
            slow.setdefault(name, []).append(guest)
            held[name] += guest.body_bytes
        for guests in slow.values():
            guests.sort(key=attrgetter("body_bytes"), reverse=True)
        self._slow = slow
        self._idle_bytes = sum(held.values())
        self._holders = [(-held_bytes, name, 0) for name, held_bytes in held.items()]
        heapify(self._holders)

    def _only_held(self, now_s: float) -> list[Guest]:
        return [
            guest
            for guest in self.receiving
            if guest.body_bytes and now_s - guest.began_s >= HELD_S
        ]


class Seats:
    """Who gives way when all connections are taken, and who has more than its share of them."""

    __slots__ = (
        "_asked_s",
        "_asking",
        "_cleared_s",
        "_crowds",
        "_fills",
        "_looked_s",
        "_seated",
        "_strangers",
        "_waiting",
        "keyed",
    )

    def __init__(self) -> None:
        self.keyed = False  # whether keys are asked for
        self._crowds: frozenset[str] = frozenset()
        self._fills: frozenset[str] = frozenset()
        self._seated: Counter[str] = Counter()
        # Who asked last for a place of those that had none.
        self._asking = ""
        self._asked_s = float("-inf")
        self._looked_s = float("-inf")
        # As of the last look: who goes first is last; and how many strangers an address has.
        self._waiting: list[Place] = []
        self._strangers: Counter[str] = Counter()
        self._cleared_s = float("-inf")

    def clear(self, guests: Collection[Guest], limit: int, wanting: Guest) -> None:
        """Close connections without a request, so that `wanting` finds a place.

        Strangers' first; of these, and then of the others, those of who has most, and those
        that waited longest. What a stranger asked for meanwhile buys it no time.
        """
        self._look_who_waits(guests, limit, wanting)
        for _ in range(min(CLEARED, len(self._waiting))):
            guest = self._waiting.pop()[3]
            if guest in guests and guest.waits:
                guest.give_way()

    def taken(self, guests: Collection[Guest], limit: int, wanting: Guest) -> Guest | None:
        """Who gives its place to `wanting` at once, where keys are asked for.

        To a stranger only another: the oldest of the address that has most of them, and not
        within its grace unless that address has more of them than the newcomer's.
        """
        now_s = self._look_who_waits(guests, limit, wanting)
        own = 0
        if not wanting.proven:
            self._strangers[wanting.holder] += 1
            own = self._strangers[wanting.holder]
        waiting = self._waiting
        at = len(waiting)
        for _ in range(min(at, 2 * CLEARED)):  # some are gone, or have no seat to give
            at -= 1
            stranger, count, _, guest = waiting[at]
            if guest not in guests or not guest.waits or guest.proven is stranger:
                del waiting[at]
                continue
            if wanting.proven and guest.excess:
                continue
            young = count <= own and now_s - guest.made_s < GRACE_S
            if not wanting.proven and (young or not stranger):
                return None
            del waiting[at]
            return guest
        return None

    def name_of(self, guest: Guest) -> str:
        """Whose place it is."""
        return guest.holder if guest.proven or not self.keyed else STRANGERS

    def _look_who_waits(self, guests: Collection[Guest], limit: int, wanting: Guest) -> float:
        now_s = monotonic()
        if now_s - self._cleared_s >= LOOK_S_PER_GUEST * len(guests):
            self._cleared_s = now_s
            self._strangers.clear()
            if self.keyed:
                known = [guest for guest in guests if guest.proven]
                self._waiting = _idle(known, limit, wanting, now_s)
                self._waiting += _in_turn(guests, self._strangers)
            else:
                self._waiting = _idle(guests, limit, wanting, now_s)
        return now_s

    def crowds(self, holder: str, guests: Collection[Guest], limit: int) -> bool:
        """Whether the requests of one holder take more than an even share of all seats."""
        self._look(guests, limit)
        return holder in self._crowds

    def fills(self, holder: str, guests: Collection[Guest], limit: int) -> bool:
        """Whether its connections do, with a request or without, while others ask for one."""
        self._look(guests, limit)
        if not self._seated[holder]:
            self._asking, self._asked_s = holder, monotonic()
        return holder in self._fills

    def _look(self, guests: Collection[Guest], limit: int) -> None:
        now_s = monotonic()
        if now_s - self._looked_s < LOOK_S_PER_GUEST * len(guests):
            return
        self._looked_s = now_s
        at_work: Counter[str] = Counter()
        seated: Counter[str] = Counter()
        for guest in guests:
            name = self.name_of(guest)
            seated[name] += not guest.excess
            if not guest.waits:
                at_work[name] += 1
        self._crowds = _uneven(at_work, limit)
        if now_s - self._asked_s < ASKED_S:
            seated[self._asking] += 0
        self._seated = seated
        self._fills = _uneven(seated, limit)


def _uneven(held: Counter[str], limit: int) -> frozenset[str]:
    """Who has more than an even share, as long as others are there.

    Strangers make nobody's share smaller.
    """
    holders = len(held) - (STRANGERS in held)
    even = limit / max(1, holders)
    uneven = {name for name, count in held.items() if holders > 1 and count > even}
    if holders and held[STRANGERS] > limit / (holders + 1):
        uneven.add(STRANGERS)
    return frozenset(uneven)


def _only(guest: Guest, own_bytes: int) -> bool:
    """Whether all that its holder has is of one body."""
    return own_bytes == guest.body_bytes


def _in_turn(guests: Collection[Guest], strangers: Counter[str]) -> list[Place]:
    """Those who have shown no key; they are counted by address.

    Who goes first is last: of the address that has most, then of those that then have most.
    """
    young_first = sorted(
        (guest for guest in guests if not guest.proven), key=attrgetter("made_s"), reverse=True
    )
    places: list[Place] = []
    for guest in young_first:
        name = guest.holder
        strangers[name] += 1
        places.append((True, strangers[name], -guest.made_s, guest))
    places.sort(key=itemgetter(1, 2))
    return places


def _idle(guests: Collection[Guest], limit: int, wanting: Guest, now_s: float) -> list[Place]:
    """Whose places may be taken for another; who goes first is last."""
    held: Counter[str] = Counter({wanting.holder: 0})
    waiting: list[tuple[str, Guest]] = []
    for guest in guests:
        name = guest.holder
        held[name] += 0
        if guest.waits and not guest.excess:
            held[name] += 1
            waiting.append((name, guest))
    # Whoever has more than an even share of all may not even hold them for a moment.
    even = limit / len(held) if len(held) > 1 else limit
    idle: list[Place] = []
    for name, guest in waiting:
        since_s = guest.began_s if guest.proven else guest.made_s
        if held[name] > even or now_s - since_s >= HELD_S:
            idle.append((not guest.proven, held[name], -since_s, guest))
    idle.sort(key=itemgetter(0, 1, 2))
    return idle
