"""Long bodies that are read straight into their buffers. An interpreted build copies them."""

import gc
from typing import Any

import pytest

from penstock.proxy.data.body import LANDED_BYTES_MIN, SPILL_BYTES, Body, Landing
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.wire import native
from tests.unit.proxy.data.playbook import Client, Play

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason="needs the compiled build")

LENGTH = 5 * 2**20 + 1  # of more than the buffer has room for at first


class Socket(Client):
    """A client's end whose protocol may change, as on a real loop."""

    reads = True
    protocol: Any  # the connection, or its landing

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def set_protocol(self, protocol: object) -> None:
        assert not self.reads, "a loop would read on as before"
        self.protocol = protocol

    def lands(self) -> bool:
        return isinstance(self.protocol, Landing)

    def comes(self, data: bytes) -> None:
        """What it has sent is read in as many reads as that takes."""
        while data:
            if isinstance(self.protocol, Landing):
                self.protocol.get_buffer(-1)  # a read that finds nothing
                room = self.protocol.get_buffer(-1)
                size = min(len(room), len(data))
                room[:size] = data[:size]
                del room
                self.protocol.buffer_updated(size)
            else:
                size = 65_536
                self.protocol.data_received(data[:size])
            data = data[size:]
        self._play.turns()


def socket_of(play: Play) -> Socket:
    connection = ClientConnection(play.plane, direct=True)
    client = Socket(play, connection)
    connection.connection_made(client)
    return client


def request(body: bytes, length: int) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length
    return head + body


BODY = b'{"prompt":"%b"}' % bytes(97 + at % 23 for at in range(LENGTH - 13))


def test_a_long_body_lands_whole_and_then_the_connection_reads_again() -> None:
    play = Play()
    client = socket_of(play)
    for _ in range(2):
        client.comes(request(BODY[:1], LENGTH))
        assert client.lands()
        client.comes(BODY[1:])
        assert not client.lands()
        assert client.reads
        upstream = play["b1"]
        assert upstream.body == BODY
        upstream.sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        assert client.written.endswith(b"\r\n\r\n{}")
    client.resets()


def test_what_follows_a_body_is_for_the_next_request() -> None:
    play = Play()
    client = socket_of(play)
    client.comes(request(BODY, LENGTH) + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert play["b1"].body == BODY
    play["b1"].sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert client.written.count(b"HTTP/1.1 200") == 2
    client.resets()


def test_a_short_body_and_the_rest_of_one_are_read_as_usual() -> None:
    play = Play()
    client = socket_of(play)
    client.comes(request(BODY[:1], LANDED_BYTES_MIN))
    assert not client.lands()
    client.resets()
    client = socket_of(play)
    client.comes(request(BODY[:1], LANDED_BYTES_MIN + 1))
    assert client.lands()
    client.resets()


def test_a_refused_body_lands_no_more() -> None:
    """Its time is over. What still comes is read for a moment and dropped."""
    play = Play(timeouts={"client_body_s": 1.0})
    client = socket_of(play)
    client.comes(request(BODY[:1], LENGTH))
    landing = client.protocol  # uvloop keeps it
    play.passes(1.5)
    assert client.written.startswith(b"HTTP/1.1 408 ")
    assert not client.lands()
    assert landing is not client.protocol
    assert not [each for each in gc.get_objects() if isinstance(each, Body)]
    client.comes(BODY[1:SPILL_BYTES])
    client.resets()


def test_a_client_that_leaves_while_its_body_lands_holds_nothing() -> None:
    play = Play()
    client = socket_of(play)
    client.comes(request(BODY[:1_000_000], LENGTH))
    assert play.plane.bodies.held_bytes == 1_000_000
    client.resets()
    assert not play.plane.bodies.held_bytes
    assert not client.lands()
