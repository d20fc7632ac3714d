"""A response whose engine says that it failed: its client gets the API's own last event."""

from collections.abc import Iterator

import orjson
import pytest

from tests.unit.proxy.data.playbook import END, STREAM, Play, chunk

CREATED = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
)
TOKEN = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'
FAILED = (
    b'event: response.failed\ndata: {"type":"response.failed","response":{"id":"resp_1","status":'
    b'"failed","error":{"code":"server_error","message":"out of memory"}}}\n\n'
)
BODY = orjson.dumps({"model": "m", "input": "x", "stream": True})
HEAD = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)


@pytest.fixture
def play() -> Iterator[Play]:
    playing = Play(2)
    playing.client.sends(HEAD + BODY)
    yield playing
    playing.close()


def test_after_the_first_token_its_own_event_ends_the_answer(play: Play) -> None:
    play["b1"].sends(STREAM, chunk(CREATED), chunk(TOKEN))
    play["b1"].sends(chunk(FAILED), END)
    assert play.client.written.endswith(TOKEN + b"\r\n" + chunk(FAILED) + END)
    assert not play.client.closed
    assert play.metrics.stream_failures["error_event",] == 1
    assert play.backends[0].failures_total == 1


def test_an_event_in_many_reads_is_passed_whole(play: Play) -> None:
    play["b1"].sends(STREAM, chunk(CREATED), chunk(TOKEN))
    for at in range(len(FAILED)):
        play["b1"].sends(chunk(FAILED[at : at + 1]))
    assert play.client.written.endswith(TOKEN + b"\r\n" + chunk(FAILED) + END)


def test_before_the_first_token_another_backend_answers(play: Play) -> None:
    play["b1"].sends(STREAM, chunk(CREATED), chunk(FAILED), END)
    assert b"failed" not in play.client.written
    assert b"POST" in play["b2"].head
