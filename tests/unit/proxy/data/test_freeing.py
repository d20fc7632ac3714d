"""Large bodies are freed one in a turn; small ones at once."""

import weakref

from penstock.proxy.data.freeing import LARGE_BYTES, Freeing
from tests.unit.proxy.turns import Turns


class Held:
    """Some bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


def test_large_bodies_that_end_together_go_one_in_a_turn() -> None:
    turns = Turns()
    freeing = Freeing(turns.loop)
    gone: list[int] = []
    for number in range(10):
        held = Held(LARGE_BYTES)
        weakref.finalize(held, gone.append, number)
        freeing.add(held)
        del held
    for count in range(1, 11):
        assert len(turns.next) == 1
        turns.turn()
        assert gone == list(range(count))
    assert not turns.next
    assert not len(freeing)


def test_small_ones_go_at_once() -> None:
    turns = Turns()
    freeing = Freeing(turns.loop)
    freeing.add(b"x" * (LARGE_BYTES - 1))
    freeing.add(b"")
    assert not turns.next
