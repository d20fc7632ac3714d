"""Who gives way when there is no room, and who does not pay for it."""

from dataclasses import dataclass, field

import pytest

from penstock.proxy.data.long_heads import LongHeads
from penstock.proxy.data.room import (
    CLEARED,
    GRACE_S,
    HELD_S,
    LOOK_S_PER_CLIENT,
    Bodies,
    Seats,
)
from penstock.proxy.wire.party import STRANGERS

LIMIT = 1_000


class Clock:
    """It stands still until somebody moves it."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


CLOCK = Clock()


@dataclass(eq=False)
class Client:
    """A connection whose request, or wait for one, began `age_s` ago."""

    whose: str
    age_s: float = 10.0
    made_before_s: float = 0.0
    body_bytes: int = 0
    proven: bool = True
    idle: bool = False
    excess: bool = False
    bodies: Bodies | None = None
    tenant: str = ""
    pace: float = 0.0
    stopped: bool = False
    gone: bool = False
    looked_at: int = 0
    began_s: float = field(init=False)
    made_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = CLOCK() - self.age_s
        self.made_s = self.began_s - self.made_before_s

    @property
    def holder(self) -> str:
        self.looked_at += 1
        return self.whose

    def kept_bytes(self, *, refusing: bool) -> int:
        return 0

    @property
    def waits(self) -> bool:
        self.looked_at += 1
        return self.idle

    def slept(self, time_s: float) -> None:
        self.began_s += time_s

    def announce_close(self) -> None: ...
    def close_if_idle(self) -> None: ...
    def break_off(self) -> None: ...

    def sends(self, size_bytes: int) -> bool:
        assert self.bodies is not None
        self.bodies.receiving.setdefault(self, None)
        taken = self.bodies.take(size_bytes, LIMIT, self)
        self.body_bytes += size_bytes * taken
        return taken

    def complete(self) -> "Client":
        assert self.bodies is not None
        del self.bodies.receiving[self]
        return self

    def ends(self) -> None:
        assert self.bodies is not None
        self.bodies.release(self.body_bytes, self)

    def give_way(self) -> None:
        self.gone = True
        if self.bodies is not None:
            self.bodies.receiving.pop(self, None)
            self.bodies.release(self.body_bytes, self)


def test_half_bodies_make_room_for_whoever_sends() -> None:
    bodies = Bodies(CLOCK)
    slow = [Client("attacker", bodies=bodies) for _ in range(4)]
    assert all(client.sends(200) for client in slow)
    victim = Client("victim", age_s=0.0, bodies=bodies)
    assert bodies.fits(500, LIMIT, victim)
    assert victim.sends(500)
    assert [client.gone for client in slow] == [True, True, False, False]  # no more than needed
    assert bodies.held_bytes == 900


def test_the_largest_holder_gives_way_and_not_who_sends_little() -> None:
    bodies = Bodies(CLOCK)
    honest = Client("honest", age_s=30.0, bodies=bodies)
    assert honest.sends(200)
    slow = [Client("attacker", bodies=bodies) for _ in range(2)]
    assert all(client.sends(300) for client in slow)
    assert not any(client.gone for client in slow)
    assert honest.sends(300)
    assert not honest.gone
    assert slow[0].gone
    # Nor does the attacker's next one cost anybody but itself.
    assert Client("attacker", age_s=0.0, bodies=bodies).sends(400)
    assert slow[1].gone
    assert not honest.gone


def test_whoever_holds_most_takes_nothing_from_others() -> None:
    bodies = Bodies(CLOCK)
    honest = Client("honest", bodies=bodies)
    assert honest.sends(300)
    greedy = Client("attacker", age_s=20.0, bodies=bodies)
    assert greedy.sends(700)
    assert not greedy.sends(1)
    assert not honest.gone


def test_bodies_in_use_and_those_just_begun_stay() -> None:
    bodies = Bodies(CLOCK)
    whole = Client("a", bodies=bodies)
    assert whole.sends(600)
    whole.complete()
    young = Client("b", age_s=HELD_S / 10, bodies=bodies)
    assert young.sends(400)
    assert not bodies.fits(1, LIMIT, Client("c", bodies=bodies))
    assert not Client("c", bodies=bodies).sends(1)
    assert not whole.gone
    assert not young.gone


@pytest.mark.parametrize("attackers", [1, 2, 5, 20])
@pytest.mark.parametrize("size_bytes", [1, 7, 33, 200])
def test_whole_bodies_of_some_leave_room_for_whoever_comes(attackers: int, size_bytes: int) -> None:
    """They wait at backends for as long as these take: nobody who holds one can give way."""
    bodies = Bodies(CLOCK)
    refused: set[str] = set()
    while len(refused) < attackers:
        for name in {f"attacker {number}" for number in range(attackers)} - refused:
            client = Client(name, bodies=bodies)
            if client.sends(size_bytes):
                client.complete()
            else:
                refused.add(name)
    held_bytes = bodies.held_bytes
    if held_bytes > attackers * size_bytes:  # more than one each
        share_bytes = LIMIT / (4 * attackers + 1)
        assert held_bytes / attackers <= 4 * share_bytes + size_bytes
        assert LIMIT - held_bytes >= int(share_bytes)
    victim = Client("victim", age_s=0.0, bodies=bodies)
    assert victim.sends(LIMIT - held_bytes)
    victim.ends()
    assert bodies.held_bytes == held_bytes


def test_a_body_that_is_alone_may_be_as_large_as_all() -> None:
    bodies = Bodies(CLOCK)
    alone = Client("a", bodies=bodies)
    assert all(alone.sends(LIMIT // 10) for _ in range(10))
    alone.complete()
    assert not Client("a", age_s=0.0, bodies=bodies).sends(1)
    alone.ends()
    assert Client("a", bodies=bodies).sends(LIMIT)


def test_who_holds_more_takes_nothing_from_who_sends_slowly() -> None:
    bodies = Bodies(CLOCK)
    slow = Client("victim", age_s=30.0, bodies=bodies)
    assert slow.sends(100)
    for _ in range(7):
        assert Client("attacker", bodies=bodies).sends(100)
    for guest in list(bodies.receiving):
        if guest is not slow:
            del bodies.receiving[guest]  # whole, and waiting
    assert not Client("attacker", age_s=0.0, bodies=bodies).sends(100)
    assert not slow.gone
    assert slow.sends(100)


def test_a_crowd_of_tiny_bodies_is_looked_at_once_and_left_alone() -> None:
    """Each of them would bring the room that is wanted one byte nearer."""
    bodies = Bodies(CLOCK)
    tiny = [Client("attacker", bodies=bodies) for _ in range(5_000)]
    limit_bytes = 1_000_000
    for client in tiny:
        bodies.receiving[client] = None
        bodies.held_bytes += 1
        client.body_bytes = 1
    large = Client("attacker", bodies=bodies)
    bodies.receiving[large] = None
    assert bodies.take(limit_bytes - len(tiny), limit_bytes, large)
    large.body_bytes = limit_bytes - len(tiny)
    assert bodies.take(65_536, limit_bytes, Client("victim", age_s=0.0))
    assert large.gone
    assert not any(client.gone for client in tiny)
    assert sum(client.looked_at for client in tiny) <= len(tiny)


def test_nobody_gives_way_when_that_is_not_enough() -> None:
    bodies = Bodies(CLOCK)
    slow = [Client("attacker", bodies=bodies) for _ in range(100)]
    assert all(client.sends(1) for client in slow)
    whole = Client("a", bodies=bodies)
    assert whole.sends(LIMIT - 100)
    whole.complete()
    victim = Client("victim", age_s=0.0, bodies=bodies)
    assert not victim.sends(CLEARED + 1)  # more than one call ends
    assert not any(client.gone for client in slow)
    assert victim.sends(CLEARED)
    assert sum(client.gone for client in slow) == CLEARED


def test_who_is_no_longer_the_largest_holder_keeps_the_rest() -> None:
    bodies = Bodies(CLOCK)
    larger = [Client("a", bodies=bodies) for _ in range(5)]
    smaller = [Client("b", bodies=bodies) for _ in range(3)]
    assert all(client.sends(100) for client in (*larger, *smaller))
    assert Client("victim", age_s=0.0, bodies=bodies).sends(600)
    assert sum(client.gone for client in larger) == 3
    assert sum(client.gone for client in smaller) == 1


def test_when_memory_is_short_a_few_give_way_at_a_time_the_largest_first() -> None:
    bodies = LongHeads(CLOCK)
    tiny = [Client("a", bodies=bodies) for _ in range(2 * CLEARED)]
    large = Client("a", bodies=bodies)
    assert all(client.sends(1) for client in tiny)
    assert large.sends(500)
    bodies.clear()
    assert large.gone
    assert sum(client.gone for client in tiny) == CLEARED - 1


def test_memory_that_is_short_is_taken_from_half_heads() -> None:
    bodies = LongHeads(CLOCK)
    slow, young = Client("a", bodies=bodies), Client("b", age_s=0.0, bodies=bodies)
    assert slow.sends(10)
    assert young.sends(10)
    bodies.clear()
    assert slow.gone
    assert not young.gone


WANTING = Client("new", age_s=0.0, proven=False, idle=True, excess=True)


def test_connections_without_a_request_make_seats_strangers_first() -> None:
    strangers = [Client("", age_s=5.0 + i, proven=False, idle=True) for i in range(CLEARED - 1)]
    idle = [Client("a", age_s=60.0, idle=True), Client("a", age_s=70.0, idle=True)]
    busy, fresh = Client("a"), Client("", age_s=0.0, proven=False, idle=True)
    Seats(CLOCK).clear([busy, *idle, fresh, *strangers], 1_000, WANTING)
    assert all(client.gone for client in strangers)
    assert [client.gone for client in (*idle, busy, fresh)] == [False, True, False, False]


def test_what_a_stranger_asks_meanwhile_buys_it_no_time() -> None:
    """It asks for `/health`, or with a wrong key, more often than once a second."""
    strangers = [
        Client("ingress", age_s=0.01 * i, made_before_s=HELD_S, proven=False, idle=True)
        for i in range(CLEARED)
    ]
    known = Client("ingress", age_s=HELD_S / 2, made_before_s=60.0, idle=True)
    fresh = Client("ingress", age_s=HELD_S / 2, proven=False, idle=True)
    guests = [*strangers, known, fresh]
    Seats(CLOCK).clear(guests, len(guests), Client("ingress", excess=True))
    assert all(client.gone for client in strangers)
    assert not known.gone
    assert not fresh.gone


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize("addresses", [1, 4])
def test_whoever_has_more_than_its_share_may_not_even_hold_them_for_a_moment(
    proven: bool, addresses: int
) -> None:
    """It connects anew, or where nobody needs a key asks for nonsense, twice a second."""
    crowd = [
        Client(f"attacker {i % addresses}", age_s=0.1, proven=proven, idle=True)
        for i in range(CLEARED)
    ]
    others = [Client("other", age_s=0.1, proven=proven, idle=True) for _ in range(5)]
    waits = Client("attacker 0", age_s=0.0, proven=False, idle=True, excess=True)
    guests = [*crowd, *others, waits]
    Seats(CLOCK).clear(guests, len(crowd) + len(others), WANTING)
    assert all(client.gone for client in crowd)
    assert not any(client.gone for client in others)
    assert not waits.gone  # it has no seat to give


def test_a_crowd_at_work_is_looked_at_once_in_a_while() -> None:
    """Somebody keeps all seats busy, and newcomers ask for one every 20 ms."""
    busy = {Client("attacker") for _ in range(5_000)}
    seats = Seats(CLOCK)
    for _ in range(20):
        seats.clear(busy, len(busy), Client("attacker", excess=True))
    assert sum(client.looked_at for client in busy) <= 3 * len(busy)


def test_a_crowd_that_waits_goes_a_few_at_a_time_and_whoever_began_a_request_stays() -> None:
    waiting = [Client("attacker", age_s=5.0 + i, idle=True) for i in range(5 * CLEARED)]
    seats = Seats(CLOCK)
    seats.clear(waiting, 500, WANTING)
    assert [client.gone for client in waiting] == [False] * (4 * CLEARED) + [True] * CLEARED
    for client in waiting[3 * CLEARED : 4 * CLEARED]:
        client.idle = False
    for _ in range(2):
        seats.clear([client for client in waiting if not client.gone], 500, WANTING)
    assert CLEARED < sum(client.gone for client in waiting) <= 3 * CLEARED
    assert not any(client.gone for client in waiting[3 * CLEARED : 4 * CLEARED])


def test_only_the_larger_of_several_holders_crowds() -> None:
    tenants = [Client("attacker") for _ in range(80)] + [Client("victim") for _ in range(10)]
    seats = Seats(CLOCK)
    assert seats.crowds("attacker", tenants, 100)
    assert not seats.crowds("victim", tenants, 100)
    assert not seats.crowds("new", tenants, 100)


def test_who_has_most_of_the_places_leaves_the_last_to_whoever_asked() -> None:
    places = [Client("attacker", idle=True) for _ in range(95)]
    seats = Seats(CLOCK)
    for _ in range(3):
        assert not seats.fills("attacker", places, 100)  # nobody else is there
    assert not seats.fills("victim", places, 100)
    CLOCK.now_s += LOOK_S_PER_CLIENT * len(places)
    for _ in range(3):
        assert seats.fills("attacker", places, 100)
    assert not seats.fills("victim", places, 100)


def test_one_address_alone_crowds_nobody() -> None:
    idle = [Client("other", idle=True) for _ in range(5)]
    assert not Seats(CLOCK).crowds("ingress", [Client("ingress") for _ in range(95)] + idle, 100)


def keyed_seats() -> Seats:
    seats = Seats(CLOCK)
    seats.keyed = True
    return seats


def strangers_of(addresses: int, each: int, age_s: float) -> list[Client]:
    return [
        Client(f"stranger {i % addresses}", age_s=age_s, proven=False, idle=True)
        for i in range(addresses * each)
    ]


def test_who_has_shown_a_key_never_gives_way_to_strangers() -> None:
    """However many addresses they have, and however much of its own share it has."""
    strangers = strangers_of(40, 4, age_s=0.1)
    kept = [Client("victim", age_s=60.0, idle=True) for _ in range(40)]
    newcomer = Client("stranger 40", age_s=0.0, proven=False, idle=True, excess=True)
    assert keyed_seats().taken([*strangers, *kept], 200, newcomer) in strangers
    assert keyed_seats().taken(kept, 40, newcomer) is None


def test_who_shows_a_key_takes_the_place_of_a_stranger_that_has_just_come() -> None:
    strangers = strangers_of(40, 4, age_s=0.0)
    kept = [Client("victim", age_s=60.0, idle=True) for _ in range(40)]
    reading = Client("victim", age_s=0.0, proven=False, idle=True, excess=True)
    wanting = Client("victim", age_s=0.0, excess=True)
    guests = [*strangers, *kept, reading, wanting]
    seats = keyed_seats()
    for _ in range(160):
        taken = seats.taken(guests, 200, wanting)
        assert taken in strangers
        guests.remove(taken)
        strangers.remove(taken)
    assert seats.taken(guests, 200, wanting) not in (reading, wanting)


def test_of_strangers_whoever_has_most_goes_first_and_one_alone_has_a_grace() -> None:
    several, alone = strangers_of(1, 3, age_s=0.1), strangers_of(40, 1, age_s=0.1)
    guests = several + alone[1:]
    seats = keyed_seats()
    for left in (2, 1):
        taken = seats.taken(guests, 200, Client(f"new {left}", proven=False, idle=True))
        assert taken in several
        guests.remove(taken)
    assert seats.taken(guests, 200, Client("new", proven=False, idle=True)) is None
    for client in guests:
        client.made_s -= GRACE_S
    assert seats.taken(guests, 200, Client("new too", proven=False, idle=True)) in guests


def test_an_address_with_most_strangers_makes_no_other_go() -> None:
    guests = [*strangers_of(1, 50, age_s=0.1), *strangers_of(2, 1, age_s=0.2)[1:]]
    seats = keyed_seats()
    for _ in range(5):
        again = Client("stranger 0", age_s=0.0, proven=False, idle=True)
        assert seats.taken(guests, 200, again) is None


def test_a_stranger_that_has_shown_a_key_since_the_last_look_stays() -> None:
    guests = strangers_of(1, 2, age_s=1.0)
    guests[0].made_s -= 1.0
    seats = keyed_seats()
    assert seats.taken(guests * 100, 200, Client("victim", excess=True)) is guests[0]
    guests[1].proven = True
    assert seats.taken(guests[1:] * 200, 200, Client("victim", excess=True)) is None


def test_strangers_make_nobodys_share_smaller_and_have_one_together() -> None:
    guests = [Client("victim", idle=True) for _ in range(60)]
    guests += [Client("other", idle=True) for _ in range(10)]
    guests += strangers_of(130, 1, age_s=0.1)
    seats = keyed_seats()
    assert not seats.fills("victim", guests, 200)
    assert seats.fills(STRANGERS, guests, 200)
    assert seats.name_of(guests[-1]) == STRANGERS
    assert seats.name_of(guests[0]) == "victim"
    assert not keyed_seats().fills(STRANGERS, guests[70:], 100)  # nobody else is there


def test_when_memory_is_short_strangers_of_the_address_with_most_go_first() -> None:
    several, alone = strangers_of(1, 3, age_s=0.1), strangers_of(40, 1, age_s=0.1)[1:]
    kept = [Client("victim", age_s=60.0, idle=True) for _ in range(100)]
    guests = several + alone + kept
    assert not keyed_seats().strangers(guests, 1_000)  # they have just come
    for client in guests:
        client.made_s -= GRACE_S
    for seats in (Seats(CLOCK), keyed_seats()):
        assert all(client in several for client in seats.strangers(guests, 2))
        first = seats.strangers(guests, 1_000)
        assert len(first) == len(several + alone)
        assert not any(client.proven for client in first)
