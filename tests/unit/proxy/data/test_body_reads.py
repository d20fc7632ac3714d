"""However fast clients send their bodies, little of them is read in one turn of the loop."""

import pytest

from penstock.proxy.data.body_reads import TURN_BYTES, BodyReads
from tests.unit.proxy.turns import Turns
from tests.unit.proxy.wire.transport import Transport

READ_BYTES = 262_144


class Sender:
    """A client whose body comes."""

    sends = True

    def __init__(self, reads: BodyReads, holder: str) -> None:
        self.holder = holder
        self.wire = Transport()
        self.read_bytes = 0
        self._reads = reads
        reads.begin(self, self.wire)

    def turn(self, there_bytes: int = 32 * READ_BYTES) -> None:
        """Be read as libuv does it: up to 32 times while the buffer is filled."""
        while there_bytes and self.wire.reading:
            size = min(there_bytes, READ_BYTES)
            there_bytes -= size
            self.read_bytes += size
            self._reads.count(size)


def begun() -> tuple[Turns, BodyReads]:
    turns = Turns()
    return turns, BodyReads(turns.loop)


def test_one_client_is_read_up_to_the_limit_in_each_turn() -> None:
    turns, reads = begun()
    sender = Sender(reads, "a")
    for turn in range(1, 10):
        sender.turn()
        assert sender.read_bytes == turn * TURN_BYTES
        assert not sender.wire.reading
        turns.turn()
        assert sender.wire.reading


def test_however_many_send_together_all_are_read_up_to_the_limit_in_a_turn() -> None:
    """They announce a body, wait, and then send at the same moment."""
    turns, reads = begun()
    senders = [Sender(reads, "a") for _ in range(1_000)]
    for _ in range(300):
        before = sum(sender.read_bytes for sender in senders)
        for sender in senders:
            sender.turn()
        assert sum(sender.read_bytes for sender in senders) - before == TURN_BYTES
        turns.turn()
        assert sum(sender.wire.reading for sender in senders) == 1


@pytest.mark.parametrize("holders", [1, 500])
def test_silent_senders_hardly_delay_one_that_sends(holders: int) -> None:
    """Sixteen MiB beside five hundred that have announced a body and send nothing."""
    turns, reads = begun()
    for number in range(500):
        Sender(reads, str(number % holders))
    sender = Sender(reads, "0")
    count = 0
    while sender.read_bytes < 16 * TURN_BYTES:
        sender.turn()
        turns.turn()
        count += 1
    assert count < 16 * 12


def test_senders_that_have_closed_take_no_turn() -> None:
    turns, reads = begun()
    gone = [Sender(reads, str(number)) for number in range(100)]
    sender = Sender(reads, "a")
    sender.turn()
    for each in gone:
        each.wire.abort()
    turns.turn()
    assert sender.wire.reading
    assert len(reads) == 1


def test_those_who_went_on_and_sent_nothing_are_no_more_in_the_next_burst() -> None:
    turns, reads = begun()
    senders = [Sender(reads, "a") for _ in range(100)]
    senders[0].turn()
    for _ in range(10):
        turns.turn()
    assert all(sender.wire.reading for sender in senders)
    before = sum(sender.read_bytes for sender in senders)
    for sender in senders:
        sender.turn()
    assert sum(sender.read_bytes for sender in senders) - before <= TURN_BYTES


def test_a_holder_with_many_clients_delays_its_own() -> None:
    turns, reads = begun()
    greedy = [Sender(reads, "greedy") for _ in range(50)]
    victim = Sender(reads, "victim")
    senders = [*greedy, victim]
    for turn in range(40):
        for sender in senders[turn:] + senders[:turn]:
            sender.turn()
        turns.turn()
    assert victim.read_bytes >= 18 * TURN_BYTES


def test_clients_that_send_little_together_do_not_wait() -> None:
    turns, reads = begun()
    senders = [Sender(reads, str(number)) for number in range(500)]
    for _ in range(100):
        for sender in senders:
            sender.turn(1_500)
            assert sender.wire.reading
        turns.turn()


def test_a_client_that_left_is_not_read_again() -> None:
    turns, reads = begun()
    sender = Sender(reads, "a")
    sender.turn()
    sender.wire.abort()
    turns.turn()
    assert not sender.wire.reading
    assert not len(reads)


def test_a_client_whose_body_ended_while_it_waited_is_read_and_forgotten() -> None:
    """It was refused, or its time was over: what it still sends is read, and dropped."""
    turns, reads = begun()
    sender, other = Sender(reads, "a"), Sender(reads, "a")
    other.turn()
    sender.sends = False
    reads.end(sender)
    for _ in range(2):
        turns.turn()
    assert sender.wire.reading
    assert len(reads) == 1


def test_a_client_whose_read_is_taken_in_slices_is_left_to_others() -> None:
    """While slices wait nothing more is read of it."""
    turns, reads = begun()
    sliced, other = Sender(reads, "a"), Sender(reads, "a")
    reads.end(sliced)
    sliced.wire.pause_reading()
    other.turn()
    for _ in range(3):
        turns.turn()
    assert other.wire.reading
    assert not sliced.wire.reading
