"""Clients behind a trusted proxy: each request is its own client's, also what it holds."""

import pytest

from tests.unit.proxy.data.playbook import Play, chat, plain

PEER = "192.0.2.7"  # of every wire of a play


@pytest.fixture
def play() -> Play:
    return Play(1, listen={"trusted_proxies": [PEER]})


def of(address: str) -> bytes:
    return f"x-forwarded-for: {address}\r\n".encode()


def test_users_of_one_connection_are_apart(play: Play) -> None:
    holders = []
    for head in (of("203.0.113.1"), of("2001:db8::1"), b"", of("garbage")):
        play.client.sends(chat(head=head, stream=False))
        request = play.client.connection.request
        assert request is not None
        holders.append((play.client.connection.holder, request.peer.decode()))
        play["b1"].sends(plain("200 OK"))
    assert holders == [
        ("203.0.113.1", "203.0.113.1"),
        ("2001:db8::", "2001:db8::1"),
        (PEER, PEER),
        (PEER, PEER),
    ]


def test_what_each_holds_is_given_back_to_it(play: Play) -> None:
    """Bodies in pieces and long heads: both are counted before or while the client is told."""
    bodies = play.plane.bodies
    for address in ("203.0.113.1", "203.0.113.2"):
        pad = b"x-pad: " + b"x" * 20_000 + b"\r\n"
        request = chat(head=pad + of(address), stream=False, content="x" * 50_000)
        for at in range(0, len(request), 8_000):
            play.client.sends(request[at : at + 8_000])
        assert bodies.of(address) > 50_000
        assert bodies.held_bytes == bodies.of(address)
        play["b1"].sends(plain("200 OK"))
        assert not bodies.held_bytes
        assert not play.plane.ledger.held_bytes
