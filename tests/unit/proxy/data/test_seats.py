"""Who loses its seat to whom."""

import pytest

from penstock.proxy.data.bodies import HELD_S, LOOK_S_PER_CLIENT
from penstock.proxy.data.clients import CLEARED, GRACE_S, Seats
from penstock.proxy.wire.ledger import STRANGERS
from tests.unit.proxy.data.test_bodies import CLOCK, WANTING, Client


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
