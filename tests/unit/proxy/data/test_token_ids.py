"""vLLM's path of token ids: its answers have ids and no text."""

import orjson
import pytest

from penstock.proxy.dialects import COMPLETIONS
from penstock.proxy.dialects.whole import whole_of
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chunk

TOKEN = (
    b'data: {"request_id":"r","choices":[{"index":0,"logprobs":null,"finish_reason":%b,'
    b'"token_ids":[5]}],"usage":null}\n\n'
)
USAGE = (
    b'data: {"request_id":"r","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
)


def sends(play: Play, **members: object) -> None:
    body = orjson.dumps({"model": "m", "token_ids": [1, 2, 3], "sampling_params": {}} | members)
    line = b"POST /inference/v1/generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    play.client.sends(line % len(body) + body)


@pytest.mark.parametrize(("ids", "serves"), [(b"[5,6]", True), (b"[]", False)])
def test_an_answer_serves_if_it_has_ids(ids: bytes, serves: bool) -> None:
    answer = b'{"request_id":"r","choices":[{"index":0,"token_ids":%b}]}' % ids
    whole = whole_of(answer)
    assert whole is not None
    assert COMPLETIONS.serves(whole) is serves


def test_a_stream_of_ids_is_one_of_tokens() -> None:
    play = Play(2)
    sends(play, stream=True)
    assert b'"stream_options":{"include_usage":true}' in play["b1"].body
    load = play.backends[0].own
    play["b1"].sends(STREAM, chunk(TOKEN % b"null"), chunk(TOKEN % b'"length"'))
    assert (load.streams, load.queued_prefill_tokens) == (1, 0)
    play["b1"].sends(chunk(USAGE), DONE, END)
    assert play.client.written.count(b'"token_ids":[5]') == 2
    assert b'"completion_tokens"' not in play.client.written
    assert b"[DONE]" in play.client.written
