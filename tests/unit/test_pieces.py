"""A large body goes to its backend by pieces: whole, one a turn, and none that it cannot take."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from proxy.edit import Edit, key_added, with_key
from proxy.pieces import PIECE_BYTES, Pieces
from tests.unit.transport import Transport

BODY = b'{"prompt":"' + bytes(range(97, 123)) * 40_000 + b'"} \n'


class Handle:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.next: list[Handle] = []

    def call_soon(self, call: Callable[[], None]) -> Handle:
        self.next.append(Handle(call))
        return self.next[-1]

    def turn(self) -> None:
        handles, self.next = self.next, []
        assert len(handles) <= 1
        for handle in handles:
            if handle.call is not None:
                handle.call()


def pieces(edit: Edit | None = None) -> tuple[Pieces, Loop, Transport]:
    loop, transport = Loop(), Transport()
    return Pieces(cast(asyncio.AbstractEventLoop, loop), transport, BODY, edit), loop, transport


@pytest.mark.parametrize("key", [None, b"stream_options"])
def test_all_of_it_a_piece_a_turn(key: bytes | None) -> None:
    edit = key_added(BODY, key, b"{}") if key else None
    it, loop, transport = pieces(edit)
    it.write_on()
    turns = 0
    while it.left:
        before = len(transport.sent)
        loop.turn()
        assert 0 < len(transport.sent) - before <= PIECE_BYTES + 100
        turns += 1
    assert turns == len(BODY) // PIECE_BYTES
    assert transport.sent == (with_key(BODY, key, b"{}") if key else BODY)
    loop.turn()
    assert not loop.next


def test_a_slow_backend_is_waited_for_and_is_sent_nothing_twice() -> None:
    it, loop, transport = pieces()
    it.write_on()
    it.pause()
    loop.turn()  # it was on its way already
    loop.turn()
    sent = len(transport.sent)
    loop.turn()
    assert len(transport.sent) == sent
    it.resume()
    it.pause()
    it.resume()
    while it.left:
        it.resume()
        loop.turn()
    assert transport.sent == BODY


def test_nothing_after_it_was_dropped_or_the_backend_left() -> None:
    it, loop, transport = pieces()
    it.write_on()
    it.drop()
    loop.turn()
    it.resume()
    assert len(transport.sent) == PIECE_BYTES
    assert not it.left
    it, loop, transport = pieces()
    it.write_on()
    transport.abort()
    loop.turn()
    it.resume()
    assert len(transport.sent) == PIECE_BYTES
