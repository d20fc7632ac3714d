"""Transcripts of requests: what a client sees of each way in which its backend fails."""

import errno
import gc
from typing import Any

import pytest

from penstock.balancing.backend import State
from penstock.proxy.data.exchange import Exchange
from penstock.proxy.data.relay import FREE_BYTES
from penstock.proxy.dialects import COMPLETIONS
from penstock.proxy.dialects.dialect import whole_of
from tests.unit.proxy.data.playbook import (
    COMMENT,
    DONE,
    END,
    ERROR,
    REFUSED,
    STREAM,
    Client,
    Play,
    chat,
    chunk,
    plain,
    post,
    text,
    token,
)

ELSEWHERE = ["b2 dialed", "b2 got POST"]
BROKEN = ["client got stream_broken", "client closed", "counted 200 b1"]
GONE = ["client got 502, backend_error", "counted 502 b2"]


def asked(play: Play, *fields: str, stream: bool = True) -> None:
    """Something is asked for, and b1 has the request."""
    play.client.sends(chat(*fields, stream=stream))
    assert play.happened() == ["b1 dialed", "b1 got POST"]


def begun(play: Play) -> None:
    """A stream has its first token."""
    asked(play)
    play.streams("b1", "a")
    assert play.happened() == ["client got 200, a"]


def test_who_leaves_at_the_end_of_its_stream_has_all_of_it(play: Play) -> None:
    """Some clients close at `[DONE]`, and read no end of the framing (OpenAI's, synchronous)."""
    begun(play)
    play["b1"].sends(token("b"), DONE)
    play.client.closes()
    said = ["client got b [DONE]", "client dropped", "b1 dropped", "counted 200 b1"]
    assert play.happened() == said
    assert play.plane.recent.failed() == []
    assert play.metrics.client_aborts["decode",] == 0


# Before the first token a failure is hidden: another backend is asked -------------------------

# What b1 sends, how it ends its connection (or we end it), and by what name that is counted.
HIDDEN = {
    "no head, closed": ((), "closes", "reset"),
    "no head, reset": ((), "resets", "reset"),
    "a head, closed": ((STREAM,), "closes", "cut"),
    "a head, reset": ((STREAM,), "resets", "cut"),
    "a comment, closed": ((STREAM, COMMENT), "closes", "cut"),
    "half a token, closed": ((STREAM, token("a")[:30]), "closes", "cut"),
    "no HTTP": ((b"SSH-2.0-x\r\n\r\n",), "is dropped", "malformed"),
    "an error event": ((STREAM, ERROR), "is dropped", "internal"),
    "nothing but its end": ((STREAM, DONE, END), "is dropped", "empty"),
    "no event at all": ((STREAM, END), "", "empty"),
    "502": ((plain("502 Bad"),), "is dropped", "status"),
    "a redirect": ((plain("302 Found"),), "is dropped", "status"),
}


def fails(play: Play, sent: tuple[bytes, ...], ends: str, reason: str) -> list[str]:
    """b1 does that; the lines that tell it."""
    if sent:
        play["b1"].sends(*sent)
    if ends == "closes":
        play["b1"].closes()
    elif ends == "resets":
        play["b1"].resets()
    return [*["b1 dropped"] * (ends == "is dropped"), f"b1 failed: {reason}"]


@pytest.mark.parametrize("kind", HIDDEN)
def test_what_fails_before_its_first_token_is_asked_of_another(play: Play, kind: str) -> None:
    asked(play)
    lines = fails(play, *HIDDEN[kind])
    assert play.happened() == [*lines, *ELSEWHERE]
    play.answers("b2")
    assert play.happened() == ["client got 200, a [DONE]", "client got end", "counted 200 b2"]


@pytest.mark.parametrize("size", [1, 100_000, 600_000], ids=["small", "larger", "in pieces"])
def test_each_backend_gets_the_body_with_its_edits_once(play: Play, size: int) -> None:
    asked(play, '"user":"%s"' % ("u" * size))
    play["b1"].resets()
    assert play.happened() == ["b1 failed: reset", *ELSEWHERE]
    sent = play["b1"].body
    assert sent.endswith(b'u","stream":true,"stream_options":{"include_usage":true}}')
    assert play["b2"].body == sent


def test_a_stored_response_is_searched_for_at_one_after_the_other(play: Play) -> None:
    play.client.sends(b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert play.happened() == ["b1 dialed", "b1 got GET"]
    play["b1"].sends(plain("404 Not Found"))
    assert play.happened() == ["b1 dropped", "b2 dialed", "b2 got GET"]
    assert play.backends[0].own.idle
    play["b2"].sends(text("a"))
    assert play.happened() == ["client got 200, a", "counted 200 b2"]


def test_another_backend_takes_what_has_no_port_toward_the_first(play: Play) -> None:
    """Nobody is to blame."""
    play.down = {"b1": errno.EADDRNOTAVAIL}
    for _ in range(20):
        play.client.sends(chat())
        play.answers("b2")
        assert play.happened()[-1] == "counted 200 b2"
    first = play.backends[0]
    assert (first.penalty.until_s, first.failures_total) == (0.0, 0)
    told = play.metrics.of("p").backend("b1")
    assert (told.lately.failures, list(told.attempts)) == (0, ["ports"])


def test_without_a_port_toward_any_the_request_is_shed(play: Play) -> None:
    play.down = dict.fromkeys(("b1", "b2"), errno.EADDRNOTAVAIL)
    play.client.sends(chat())
    assert "client got 429, overloaded" in play.happened()


def test_three_engines_at_most_work_on_a_request() -> None:
    play = Play(5)
    play.down["b1"] = REFUSED  # no engine had it
    play.client.sends(chat())
    for name in ("b2", "b3", "b4"):
        play[name].sends(STREAM, ERROR)
    lines = play.happened()
    assert [line for line in lines if "dialed" in line] == [f"b{n} dialed" for n in range(1, 5)]
    assert lines[-2:] == ["client got 502, backend_error", "counted 502 b4"]


@pytest.mark.parametrize("back", [True, False])
def test_only_a_backend_that_is_back_may_be_tried_again(play: Play, back: bool) -> None:
    asked(play)
    play["b1"].resets()
    assert play.after(4.5) == ["b1 failed: reset", *ELSEWHERE]
    if back:
        play.backends[0].back_since_s = play.loop.now_s
    play["b2"].resets()
    again = ["b1 dialed", "b1 got POST"] if back else GONE
    assert play.happened() == ["b2 failed: reset", *again]
    if back:
        play.answers("b1")
        assert play.happened()[-1] == "counted 200 b1"


@pytest.mark.parametrize("age_s", [1, 4.5, 30])
def test_a_rolling_restart_is_not_called_poison(age_s: float) -> None:
    play = Play(3)
    asked(play, stream=False)
    play.passes(age_s)
    for name in ("b1", "b2"):
        play[name].resets()
        play.passes(4.5)
    play["b3"].resets()
    assert play.happened()[-1] == "counted 502 b3"  # it has had its three attempts
    play.client.sends(chat(stream=False))
    assert any(line.endswith("got POST") for line in play.happened())


def test_a_request_that_kills_two_engines_at_once_is_poison() -> None:
    play = Play(3)
    asked(play)
    for name in ("b1", "b2"):
        play[name].resets()
    assert play.happened()[-2:] == ["client got 500, poison_request", "counted 500 b2"]


def test_no_backend_is_ready(play: Play) -> None:
    for backend in play.backends:
        backend.state = State.STARTING
    play.client.sends(chat())
    assert play.happened() == ["client got 503, no_backend", "counted 503 nobody"]


# From its first token on a failure is told, and nothing is tried again ------------------------

TOLD = {
    "closed": ((), "closes", "cut"),
    "reset": ((), "resets", "cut"),
    "ends without its own end": ((END,), "", "unfinished"),
    "no chunk": ((b"zz\r\n",), "is dropped", "malformed"),
    "an error event": ((ERROR, END), "is dropped", "internal"),
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_fails_after_its_first_token_is_told(play: Play, kind: str) -> None:
    begun(play)
    lines = fails(play, *TOLD[kind])
    assert play.happened() == [*lines, *BROKEN]


# What speaks of the request is passed on -----------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refusal_is_passed_on(play: Play, status: int) -> None:
    asked(play)
    play["b1"].sends(plain(f"{status} No", b'{"error":{"code":"theirs"}}'))
    assert play.happened() == [f"client got {status}, theirs", f"counted {status} b1"]


THEIRS = b'{"error":{"code":"theirs"}}'
BARE_500 = b"HTTP/1.1 500 No\r\ncontent-type: text/plain\r\n\r\nInternal Server Error"
# How a backend may answer 500, and how its connection ends.
FAULTS = {
    "JSON": (plain("500 No", THEIRS), ""),
    "JSON in a chunk": (
        b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(THEIRS)
        + END,
        "",
    ),
    "text": (BARE_500.replace(b"\r\n\r\n", b"\r\ncontent-length: 21\r\n\r\n"), ""),
    "text until the connection ends": (BARE_500, "closes"),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", FAULTS)
def test_the_first_500_is_tried_once_elsewhere(play: Play, kind: str, stream: bool) -> None:
    asked(play, stream=stream)
    fails(play, (FAULTS[kind][0],), FAULTS[kind][1], "")
    assert play.happened() == ["b1 failed: internal", *ELSEWHERE]
    play.answers("b2") if stream else play["b2"].sends(text("a"))
    assert play.happened()[-1] == "counted 200 b2"


@pytest.mark.parametrize("backends", [3, 1])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_500_of_two_backends_or_of_the_only_one_is_the_answer(kind: str, backends: int) -> None:
    play = Play(backends)
    asked(play)
    tried = ["b1", "b2"][:backends]
    for name in tried:
        play[name].sends(FAULTS[kind][0])
        if FAULTS[kind][1]:
            play[name].closes()
    lines = play.happened()
    assert "b3 dialed" not in lines
    assert f"counted 500 {tried[-1]}" in lines
    assert [line for line in lines if "failed" in line] == [
        f"{name} failed: internal" for name in tried
    ]
    assert play.client.written.startswith(b"HTTP/1.1 500 No\r\n")
    assert (THEIRS if "JSON" in kind else b"Internal Server Error") in play.client.written
    assert [each.failures_total for each in play.backends] == [1, 1, 0][:backends]


def test_a_500_is_the_answer_if_the_next_backend_fails_otherwise(play: Play) -> None:
    asked(play)
    play["b1"].sends(plain("500 No", THEIRS))
    play["b2"].resets()
    assert play.happened()[-2:] == ["client got 500, theirs", "counted 500 b2"]


def test_a_500_behind_a_comment_is_an_event() -> None:
    play = Play(1, timeouts={"hold_s": 5})
    asked(play)
    play.passes(5.1)
    play["b1"].sends(plain("500 No", THEIRS))
    assert "client got theirs" in play.happened()
    assert b"theirs" in play.client.written


def test_a_long_500_is_not_kept_but_passed_on(play: Play) -> None:
    asked(play)
    play["b1"].sends(
        plain("500 No", b'{"error":{"message":"%b","code":"theirs"}}' % (b"x" * FREE_BYTES))
    )
    assert "counted 500 b1" in play.happened()


def test_a_request_that_gets_500_everywhere_counts_against_its_client() -> None:
    play = Play(2)
    for number in range(12):
        play.client.sends(chat())
        for _ in range(2):
            name = "b1" if play["b1"].head else "b2"
            play[name].head = b""
            play[name].sends(plain("500 No", THEIRS))
        assert any(line.startswith("counted 500") for line in play.happened()), number
    assert [each.failures_in_row for each in play.backends] <= [1, 1]
    assert all(not each.penalty.read(play.loop.now_s, "others") for each in play.backends)


# Clients that leave --------------------------------------------------------------------------


def test_a_client_leaves_in_the_turn_in_which_its_backend_is_dialed(play: Play) -> None:
    play.client.protocol.data_received(chat())
    play.leaves_once_open("b1")
    assert play.happened() == ["b1 dialed", "client dropped", "b1 dropped", "counted 499 b1"]


def test_an_engine_is_free_in_the_turn_in_which_its_client_leaves(play: Play) -> None:
    asked(play)
    play.client.connection.eof_received()
    assert play.happened() == ["client dropped", "b1 dropped", "counted 499 b1"]


# vLLM's path of token ids: its answers have ids and no text ------------------------------------

TOKEN = (
    b'data: {"request_id":"r","choices":[{"index":0,"logprobs":null,"finish_reason":%b,'
    b'"token_ids":[5]}],"usage":null}\n\n'
)
USAGE = (
    b'data: {"request_id":"r","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
)


@pytest.mark.parametrize(("ids", "serves"), [(b"[5,6]", True), (b"[]", False)])
def test_an_answer_serves_if_it_has_ids(ids: bytes, serves: bool) -> None:
    answer = b'{"request_id":"r","choices":[{"index":0,"token_ids":%b}]}' % ids
    whole = whole_of(answer)
    assert whole is not None
    assert COMPLETIONS.serves(whole) is serves


def test_a_stream_of_ids_is_one_of_tokens() -> None:
    play = Play(2)
    body = b'{"model":"m","token_ids":[1,2,3],"sampling_params":{},"stream":true}'
    play.client.sends(post("/inference/v1/generate", body))
    assert b'"stream_options":{"include_usage":true}' in play["b1"].body
    load = play.backends[0].own
    play["b1"].sends(STREAM, chunk(TOKEN % b"null"), chunk(TOKEN % b'"length"'))
    assert (load.streams, load.queued_prefill_tokens) == (1, 0)
    play["b1"].sends(chunk(USAGE), DONE, END)
    assert play.client.written.count(b'"token_ids":[5]') == 2
    assert b'"completion_tokens"' not in play.client.written
    assert b"[DONE]" in play.client.written


# A request that has ended is let go at once: the collector comes seldom, and bodies are large ---

MODEL = {"m": b'{"id":"m"}'}


def exchanges() -> list[Exchange]:
    return [each for each in gc.get_objects() if isinstance(each, Exchange)]


@pytest.fixture
def uncollected() -> Any:
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
def test_a_refused_request_is_let_go(uncollected: Play, body: bytes, status: bytes) -> None:
    client: Client = uncollected.client
    client.sends(post("/v1/completions", body))
    assert client.written[9:12] == status
    assert exchanges() == []


def test_a_request_that_backends_failed_is_let_go(uncollected: Play) -> None:
    play = uncollected
    play.client.sends(post("/v1/completions", b'{"model":"m","prompt":"x"}'))
    for name in ("b1", "b2"):
        play[name].resets()
    assert play.client.written[9:12] == b"500"  # it has killed two engines
    assert exchanges() == []
