"""A request that has ended is let go at once: the collector comes seldom, and bodies are large."""

import gc
from typing import Any

import pytest

from penstock.proxy.data.exchange import Exchange
from tests.unit.proxy.data.playbook import Client, Play

MODEL = {"m": b'{"id":"m"}'}


def post(body: bytes) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def exchanges() -> list[Exchange]:
    return [each for each in gc.get_objects() if isinstance(each, Exchange)]


@pytest.fixture
def play() -> Any:
    play = Play()
    for backend in play.backends:
        backend.models = dict(MODEL)
    gc.collect()
    gc.disable()
    yield play
    gc.enable()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"m","prompt":"%b"' % (b"x" * 70_000), b"400"),
        (b'{"model":"m","prompt":["%b",{]}' % (b"x" * 2_000_000), b"400"),
        (b'{"model":"other","prompt":"x"}', b"404"),
    ],
    ids=["broken", "broken and long", "unknown model"],
)
def test_a_refused_request_is_let_go(play: Play, body: bytes, status: bytes) -> None:
    client: Client = play.client
    client.sends(post(body))
    assert client.written[9:12] == status
    assert exchanges() == []


def test_a_request_that_backends_failed_is_let_go(play: Play) -> None:
    play.client.sends(post(b'{"model":"m","prompt":"x"}'))
    for name in ("b1", "b2"):
        play[name].resets()
    assert play.client.written[9:12] == b"500"  # it has killed two engines
    assert exchanges() == []
