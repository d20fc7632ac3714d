"""An answer that is held is in memory once, however long it waits, and not at all once given up."""

import contextlib
import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from penstock.balancing.backend import Backend
from penstock.balancing.outline import Steps
from penstock.proxy.data.attempt import Attempt
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.json_relay import JsonRelay
from penstock.proxy.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from tests.unit.proxy.data.playbook import STREAM, Play, chat, plain, token
from tests.unit.proxy.data.relayed import JSON, Request
from tests.unit.proxy.wire.transport import Transport

ANSWERS = 20
OBJECTS = b"[%b{}]" % (b"{}," * 300_000)
MIB = 1 << 20


class Drain(Transport):
    """Everything is taken at once, and nothing is kept."""

    def write(self, data: object) -> None:
        pass


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, b'{"choices":[{"text":"a","x":%b}]}'),
        (CHAT, b'{"choices":[{"text":"a","finish_reason":"abort","x":%b}]}'),
        (MESSAGES, b'{"type":"message","stop_reason":"end_turn","content":%b}'),
        (RESPONSES, b'{"object":"response","id":"resp_1","output":%b}'),
    ],
    ids=["chat", "given up", "messages", "responses"],
)
def test_answers_that_are_read_in_turns_are_held_once(dialect: Dialect, body: bytes) -> None:
    body %= OBJECTS
    waiting: list[Steps[None]] = []
    requests = []
    with no_collector():
        tracemalloc.start()
        try:
            for _ in range(ANSWERS):
                request = Request(dialect, head=JSON, to=Drain(), in_turns=waiting.append)
                requests.append(request)
                for at in range(0, len(body), 65_536):
                    request.relay.body(bytes(bytearray(body[at : at + 65_536])))
                request.relay.end()
            while waiting:
                waiting = [each for each in waiting if next(each, True) is None]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert all(request.ends for request in requests)
    assert peak_bytes < (ANSWERS + 4) * len(body)


def test_a_read_that_is_not_taken_whole_counts_too() -> None:
    backend = Backend("b0", "http://127.0.0.1:1")
    for head in (JSON, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream"):
        request = Request(head=head, backend=backend)
        request.source.behind_bytes = 200_000
        request.feed(b'data: {"x":"' + b"x" * 65_536)
        assert 265_536 < backend.kept.total_bytes < 266_000
        request.lease.end(1.0)


@pytest.mark.parametrize("whole", [True, False], ids=["in its turns", "amid it"])
def test_what_is_given_up_is_freed_at_once(whole: bool) -> None:
    with contextlib.closing(Play(backends=1)) as play, no_collector():
        play.client.sends(chat(stream=False))
        answer = plain("200 OK", b'{"choices":[{"text":"a"}],"pad":%b}' % OBJECTS)
        tracemalloc.start()
        try:
            for at in range(0, len(answer) if whole else len(answer) - 10_000, 2_000):
                play["b1"].protocol.data_received(answer[at : at + 2_000])
            play.client.connection.eof_received()
            left_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert left_bytes < MIB // 4


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_given_up_leaves_nothing_to_the_collector(stream: bool) -> None:
    with contextlib.closing(Play(backends=1)) as play, no_collector():
        play.client.sends(chat(stream=stream))
        answer = (
            STREAM + token("a") if stream else plain("200 OK", b'{"choices":[{"text":"a"}]}')[:-5]
        )
        play["b1"].sends(answer)
        play.client.closes()
        play.turns()
        kinds = JsonRelay | EventRelay | Attempt
        assert not [each for each in gc.get_objects() if isinstance(each, kinds)]
