"""However fast clients send their bodies, little of them is read in one turn of the loop."""

from collections.abc import Callable

from penstock.proxy.data.body_reads import TURN_BYTES, BodyReads
from tests.unit.proxy.wire.transport import Transport

READ_BYTES = 262_144


class Turns:
    """A loop without a clock."""

    def __init__(self) -> None:
        self.next: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.next.append(call)

    def turn(self) -> None:
        calls, self.next = self.next, []
        for call in calls:
            call()


class Sender:
    """A client that fills every read."""

    def __init__(self, reads: BodyReads, holder: str) -> None:
        self.holder = holder
        self.wire = Transport()
        self.read_bytes = 0
        self._reads = reads

    def turn(self) -> None:
        """Be read as libuv does it: up to 32 times while the buffer is filled."""
        for _ in range(32):
            if not self.wire.reading:
                return
            self.read_bytes += READ_BYTES
            self._reads.count(self, self.wire, READ_BYTES)


def begun() -> tuple[Turns, BodyReads]:
    turns = Turns()
    return turns, BodyReads(turns, lambda: 0.0)  # type: ignore[arg-type]


def test_one_client_is_read_up_to_the_limit_in_each_turn() -> None:
    turns, reads = begun()
    sender = Sender(reads, "a")
    for turn in range(1, 10):
        sender.turn()
        assert sender.read_bytes == turn * TURN_BYTES
        assert not sender.wire.reading
        turns.turn()
        assert sender.wire.reading


def test_one_of_many_goes_on_in_each_turn() -> None:
    turns, reads = begun()
    senders = [Sender(reads, "a") for _ in range(50)]
    for sender in senders:
        sender.turn()
    for _ in range(100):
        before = sum(sender.read_bytes for sender in senders)
        turns.turn()
        assert sum(sender.wire.reading for sender in senders) == 1
        for sender in senders:
            sender.turn()
        assert sum(sender.read_bytes for sender in senders) - before <= TURN_BYTES


def test_a_holder_with_many_clients_delays_its_own() -> None:
    turns, reads = begun()
    greedy = [Sender(reads, "greedy") for _ in range(50)]
    victim = Sender(reads, "victim")
    senders = [*greedy, victim]
    for _ in range(40):
        for sender in senders:
            sender.turn()
        turns.turn()
    assert victim.read_bytes >= 19 * TURN_BYTES


def test_slow_clients_never_wait() -> None:
    turns, reads = begun()
    senders = [Sender(reads, str(number)) for number in range(500)]
    for _ in range(100):
        for sender in senders:
            reads.count(sender, sender.wire, 1_500)
            assert sender.wire.reading
        turns.turn()


def test_a_client_that_left_is_not_read_again() -> None:
    turns, reads = begun()
    sender = Sender(reads, "a")
    sender.turn()
    sender.wire.abort()
    turns.turn()
    assert not sender.wire.reading
