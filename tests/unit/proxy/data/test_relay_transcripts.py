"""Streams of transcriptions and translations: their end and their errors."""

import pytest

from penstock.proxy.data.endpoints import Paths
from penstock.proxy.dialects import TRANSCRIPTS
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.errors.backend import AnswerCut, BackendBusy, InternalFault, StreamBroken
from tests.unit.proxy.data.relayed import DONE, JSON, Request

CHUNK = (
    b'data: {"id":"trsc-1","object":"transcription.chunk","created":1,"model":"w","choices":'
    b'[{"delta":{"content":"%b"}}]}\n\n'
)
LAST = CHUNK.replace(b'"%b"}', b'"%b"},"finish_reason":"stop","stop_reason":null')
USAGE = CHUNK.replace(b'[{"delta":{"content":"%b"}}]', b"[]").replace(
    b"}\n\n", b',"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}\n\n'
)
ERROR = b'data: {"error": {"message": "no", "type": "x", "param": null, "code": %d}}\n\n'
# Two pieces of audio: each has its own reason to finish.
WHOLE = CHUNK % b"a" + LAST % b"b" + CHUNK % b" c" + LAST % b"" + USAGE + DONE


def test_a_transcription_passes_as_it_came_with_the_usage_that_its_form_asked_for() -> None:
    for cut in range(len(WHOLE)):
        request = Request(TRANSCRIPTS, hide_usage=False).feed(WHOLE[:cut], WHOLE[cut:])
        request.relay.end()
        assert (request.ends, request.body) == ([None], WHOLE)
        assert request.relay.usage == Usage(9, 4, None)


@pytest.mark.parametrize("pieces", range(1, 5))
def test_a_transcription_without_its_end_is_broken(pieces: int) -> None:
    """Also one that was cut behind a piece of audio, which looks like an end."""
    events = [event + b"\n\n" for event in WHOLE.split(b"\n\n")[:pieces]]
    request = Request(TRANSCRIPTS).feed(*events)
    request.relay.end()
    assert isinstance(request.ends[0], StreamBroken)
    assert request.ends[0].reason == "unfinished"
    assert not request.complete
    cut = Request(TRANSCRIPTS).feed(*events)
    cut.relay.lost(AnswerCut())
    assert isinstance(cut.ends[0], StreamBroken)


def test_an_error_within_a_transcription_is_told() -> None:
    request = Request(TRANSCRIPTS).feed(CHUNK % b"a", ERROR % 500 + DONE)
    assert isinstance(request.ends[0], StreamBroken)
    assert request.ends[0].reason == "error_event"
    assert request.body == CHUNK % b"a"
    for status, kind in ((500, InternalFault), (503, BackendBusy)):
        first = Request(TRANSCRIPTS).feed(ERROR % status + DONE)
        assert type(first.ends[0]) is kind
        assert first.transport.sent == b""


def test_a_transcript_in_one_piece_has_no_token_counts() -> None:
    body = b'{"text":"\\"abort\\"","usage":{"type":"duration","seconds":3}}'
    request = Request(TRANSCRIPTS, head=JSON + b"\r\ncontent-length: %d" % len(body)).feed(body)
    request.relay.end()
    assert (request.ends, request.relay.usage) == ([None], None)


def test_what_may_be_a_stream_by_its_path() -> None:
    paths = Paths(["GET /extra"])
    streams = {
        path: endpoint.work.streams
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/audio/transcriptions",
            "/v1/audio/translations",
            "/v1/embeddings",
            "/v1/chat/completions/batch",
            "/generative_scoring",
            "/tokenize",
        )
        if (endpoint := paths.find(b"POST", path.encode())) is not None
    }
    assert [path for path, streaming in streams.items() if not streaming] == [
        "/v1/embeddings",
        "/v1/chat/completions/batch",
        "/generative_scoring",
        "/tokenize",
    ]
    for path in streams:
        endpoint = paths.find(b"POST", path.encode())
        assert endpoint is not None
        assert endpoint.dialect.has_end or not endpoint.work.streams
