"""Who gives way when there is no room, and who does not pay for it."""

from dataclasses import dataclass, field

import pytest

from penstock.proxy.data.bodies import HELD_S, Bodies
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.wire.certificates import ClientCertificate
from penstock.proxy.wire.ledger import CLEARED

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
    source: str = ""
    peer: bytes = b""
    certificate: ClientCertificate | None = None
    stream: EventRelay | None = None
    untaken_bytes: int = 0
    pool: str = ""
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

    def slept(self) -> None: ...
    def asks_from(self, address: str) -> None: ...
    def announce_close(self) -> None: ...
    def outdate(self) -> None: ...
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
    slow = [Client("attacker", bodies=bodies) for _ in range(300)]
    assert all(client.sends(1) for client in slow)
    whole = Client("a", bodies=bodies)
    assert whole.sends(LIMIT - 300)
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


WANTING = Client("new", age_s=0.0, proven=False, idle=True, excess=True)
