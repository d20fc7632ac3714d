"""A large body goes to its backend by pieces: whole, one a turn, and none that it cannot take."""

import pytest

from penstock.proxy.wire.edit import (
    PIECE_BYTES,
    SMALL_BYTES,
    Edits,
    Pieces,
    Splices,
    pieces_of,
    splices,
)
from penstock.proxy.wire.scheduler import Scheduler
from tests.unit.proxy.turns import Shared
from tests.unit.proxy.wire.transport import Transport

BODY = b'{"prompt":"' + bytes(range(97, 123)) * 40_000 + b'"} \n'
EDITS = ((b"stream_options", b"{}"), (b"model", b'"m"'))
EDITED = BODY[:-3] + b',"stream_options":{},"model":"m"} \n'


class Uvloop(Shared):
    """Its transports take several parts in one write."""

    __module__ = "uvloop"


class Ours(Uvloop):
    """The loop of the process is made of uvloop's."""


LOOPS = pytest.mark.parametrize("kind", [Shared, Uvloop, Ours])


def rota_of(loop: Shared) -> Scheduler:
    """Takes one step a turn."""
    return Scheduler(loop.loop, 0.0, lambda: 0.0)


def write(rota: Scheduler, party: str, transport: Transport, body: bytes, end: Splices) -> None:
    it = pieces_of(rota, party, transport, b"HEAD", body, end)
    if it is not None:
        it.begin()


def pieces(edits: Edits = (), kind: type[Shared] = Uvloop) -> tuple[Pieces, Shared, Transport]:
    loop, transport = kind(), Transport()
    end = splices(BODY, edits, ())
    it = Pieces(rota_of(loop), "a", transport, b"HEAD", BODY, end)
    return it, loop, transport


@LOOPS
@pytest.mark.parametrize("edits", [(), EDITS])
def test_all_of_it_a_piece_a_turn(edits: Edits, kind: type[Shared]) -> None:
    it, loop, transport = pieces(edits, kind)
    it.begin()
    turns = 0
    while it.left:
        before = len(transport.sent)
        loop.turn()
        assert 0 < len(transport.sent) - before <= PIECE_BYTES + 100
        turns += 1
    assert turns == len(BODY) // PIECE_BYTES
    assert transport.sent == b"HEAD" + (EDITED if edits else BODY)
    loop.turn()
    assert not loop.next


@LOOPS
def test_asyncio_is_given_one_part(kind: type[Shared], monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.12 on its `writelines` never ends with an empty part."""
    it, loop, transport = pieces(kind=kind)
    many: list[object] = []
    monkeypatch.setattr(transport, "writelines", many.append)
    it.begin()
    while it.left:
        loop.turn()
    assert bool(many) == (kind is not Shared)
    assert bool(transport.sent) == (kind is Shared)


def test_a_slow_backend_is_waited_for_and_is_sent_nothing_twice() -> None:
    it, loop, transport = pieces()
    it.begin()
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
    assert transport.sent == b"HEAD" + BODY


def test_nothing_after_it_was_dropped_or_the_backend_left() -> None:
    it, loop, transport = pieces()
    it.begin()
    it.drop()
    loop.turn()
    it.resume()
    assert len(transport.sent) == len(b"HEAD") + PIECE_BYTES
    assert not it.left
    it, loop, transport = pieces()
    it.begin()
    transport.abort()
    loop.turn()
    it.resume()
    assert len(transport.sent) == len(b"HEAD") + PIECE_BYTES
    assert not loop.next  # no turn is taken for it


@pytest.mark.parametrize("size", [100, SMALL_BYTES, SMALL_BYTES + 1, PIECE_BYTES, PIECE_BYTES + 1])
@pytest.mark.parametrize("edits", [(), EDITS])
@LOOPS
def test_a_body_of_any_size_has_its_edits_once(edits: Edits, size: int, kind: type[Shared]) -> None:
    body = BODY[: size - 2] + b'"}'
    for _ in range(2):  # each attempt applies them to the same bytes
        loop, transport = kind(), Transport()
        end = splices(body, edits, ())
        write(rota_of(loop), "a", transport, body, end)
        for _ in range(3):
            loop.turn()
        assert transport.sent == b"HEAD" + (
            body[:-1] + EDITED[len(BODY) - 3 :].rstrip() if edits else body
        )


def test_many_large_bodies_share_a_turn_and_their_senders_take_turns() -> None:
    """A hundred bodies of one sender, and one of another: it is sent as if there were two."""
    loop = Shared()
    rota = rota_of(loop)
    greedy = [Transport() for _ in range(100)]
    for transport in greedy:
        write(rota, "greedy", transport, BODY, ())
    victim = Transport()
    write(rota, "victim", victim, BODY, ())
    sent_at_once = sum(len(each.sent) for each in (*greedy, victim))
    turns = 0
    while len(victim.sent) < len(b"HEAD") + len(BODY):
        loop.turn()
        turns += 1
    assert turns <= 2 * (len(BODY) // PIECE_BYTES + 1)
    sent_in_turns = sum(len(each.sent) for each in (*greedy, victim)) - sent_at_once
    assert sent_at_once <= len(b"HEAD") + PIECE_BYTES
    assert sent_in_turns <= turns * (len(b"HEAD") + PIECE_BYTES)
