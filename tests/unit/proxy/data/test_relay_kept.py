"""How much of a backend's answers waits here: a wrong one may begin a great many and end none."""

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.load import KEPT_BYTES_MAX
from penstock.balancing.outline import Steps, finished
from penstock.proxy.data.attempt import Attempt
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.json_relay import JsonRelay
from penstock.proxy.data.relay import FREE_BYTES
from penstock.proxy.dialects import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    POOLING,
    RESPONSES,
    TRANSCRIPTS,
    Dialect,
)
from penstock.proxy.dialects.dialect import Sign, reading_whole
from penstock.proxy.dialects.members import Whole
from penstock.proxy.errors.backend import AnswerAborted
from penstock.proxy.wire.json_object import JsonEnd
from tests.unit.proxy.data import playbook
from tests.unit.proxy.data.playbook import STREAM, Play, plain, token
from tests.unit.proxy.data.relayed import DONE, JSON, SSE, TOKENS, Request, chat, in_pieces
from tests.unit.proxy.wire.transport import Transport

READ_BYTES = 65_536
STREAMS = 100
SIZE_BYTES = 960_000
A = b"a" * SIZE_BYTES
MADE = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'
)
CREATED = (
    b'event: response.created\ndata: {"response":{"id":"resp_1","instructions":"%b"},'
    b'"type":"response.created"}\n\n'
)
LAST = (
    b'event: response.completed\ndata: {"response":{"id":"resp_1","output":"%b","usage":'
    b'{"input_tokens":7,"output_tokens":3}},"type":"response.completed"}\n\n'
)


class Drain(Transport):
    """Everything is taken at once, and nothing is kept."""

    def write(self, data: object) -> None:
        pass


def held_bytes(call: Callable[[], object], *, peak: bool = False) -> int:
    """How much more memory is taken when this is done, or at most meanwhile."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[peak]
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("dialect", "head", "before", "begun", "mib"),
    [
        (CHAT, SSE, TOKENS[0], b'data: {"x":"' + A, 10),
        (RESPONSES, SSE, MADE, LAST[:60] + A, 40),
        (CHAT, SSE, TOKENS[0], b": ping\n" * (SIZE_BYTES // 7), 40),
        (CHAT, SSE, b"", b'data: {"x":"' + A, 40),
        (RESPONSES, SSE, b"", CREATED % A, 40),
        (CHAT, JSON, b"", b'{"x":"' + A, 40),
    ],
    ids=["event", "last event", "comments", "first event", "preamble", "plain answer"],
)
def test_answers_that_do_not_end_take_a_bounded_share_of_memory(
    dialect: Dialect, head: bytes, before: bytes, begun: bytes, mib: int
) -> None:
    wrong = Backend("wrong", "http://127.0.0.1:1")
    requests = [Request(dialect, head=head, backend=wrong, to=Drain()) for _ in range(STREAMS)]

    def feed() -> None:
        for request in requests:
            for data in (before, begun, b"a"):
                in_pieces(request, data)

    assert held_bytes(feed) < mib << 20
    assert wrong.kept.total_bytes <= KEPT_BYTES_MAX
    beside = Request(backend=Backend("sound", "http://127.0.0.1:1"))  # another's are held as ever
    in_pieces(beside, b'data: {"x":"' + A)
    assert not beside.relay.committed
    for request in requests:
        request.lease.end(1.0)
    assert wrong.kept.total_bytes == 0


def test_where_there_is_no_room_a_first_event_passes_in_pieces() -> None:
    wrong = Backend("wrong", "http://127.0.0.1:1")
    wrong.kept.total_bytes = KEPT_BYTES_MAX
    event = TOKENS[0].replace(b'"content":""', b'"content":"%b"' % A)
    request = Request(backend=wrong)
    in_pieces(request, event + TOKENS[1] + DONE)
    request.relay.end()
    assert request.ends == [None]
    assert request.body == event + TOKENS[1] + DONE
    plain = Request(head=JSON, backend=wrong)
    in_pieces(plain, b'{"x":"%b"}' % A)
    plain.relay.end()
    assert plain.body == b'{"x":"%b"}' % A
    assert wrong.kept.total_bytes == KEPT_BYTES_MAX


@pytest.mark.parametrize("committed", [True, False])
def test_a_byte_at_a_time_copies_little(committed: bool) -> None:
    request = Request(to=Drain())
    in_pieces(request, TOKENS[0] if committed else b"")
    in_pieces(request, b'data: {"x":"' + A[: FREE_BYTES - READ_BYTES // 4])
    assert isinstance(request.relay, EventRelay)
    for _ in range(2 * READ_BYTES):
        request.relay.body(b"a")
        assert len(request.relay._tail) <= FREE_BYTES


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "cr lf", "cr"])
@pytest.mark.parametrize("size_bytes", [1, 4_093, 16_384, 65_537])
def test_an_event_in_reads_of_any_size_passes_as_it_is(line_end: bytes, size_bytes: int) -> None:
    long = TOKENS[0].replace(b'"content":""', b'"content":"%b"' % A[:40_000])
    data = (TOKENS[0] + long + TOKENS[1] + long + DONE).replace(b"\n", line_end)
    request = Request()
    request.feed(*[data[at : at + size_bytes] for at in range(0, len(data), size_bytes)])
    request.relay.end()
    assert request.ends == [None]
    assert request.body == data
    assert request.lease.generated_tokens == 4


def test_the_last_event_of_a_responses_stream_tells_its_usage_though_it_is_large() -> None:
    request = Request(RESPONSES)
    in_pieces(request, MADE + LAST % A)
    request.relay.end()
    assert request.ends == [None]
    assert request.relay.usage is not None
    assert request.relay.usage.completion_tokens == 3
    assert request.backend.kept.total_bytes == 0


def test_a_large_error_of_the_requests_own_after_tokens_ends_it_as_ever() -> None:
    error = b'data: {"error":{"code":400,"message":"%b"}}\n\n' % A[:200_000]
    request = Request()
    in_pieces(request, TOKENS[0] + TOKENS[1] + error + DONE)
    request.relay.end()
    assert request.ends == [None]
    assert request.relay.refused_midway


def attacked(clients: int) -> Backend:
    """A backend whose streams' preambles wait for a first token, as many as there is room for."""
    backend = Backend("b0", "http://127.0.0.1:1")
    for size_bytes in (SIZE_BYTES, 100_000, 66_000):
        for number in range(80):
            ask = Ask("/", prompt_tokens=7, stream=True, client=f"6.6.6.{number % clients}")
            request = Request(RESPONSES, ask=ask, backend=backend, to=Drain())
            in_pieces(request, CREATED % A[:size_bytes])
    return backend


@pytest.mark.parametrize("clients", [1, 20])
def test_one_client_leaves_room_for_answers_of_others(clients: int) -> None:
    backend = attacked(clients)
    body = (
        b'{"id":"resp_2","object":"response","output":"%b","status":"completed","usage":'
        % A[:70_000]
    )
    body += b'{"input_tokens":7,"output_tokens":%d}}'
    head = JSON + b"\r\ncontent-length: %d" % len(body % 0)
    victim = Request(RESPONSES, ask=Ask("/", client="10.0.0.1"), head=head, backend=backend)
    in_pieces(victim, body % 3)
    assert not victim.relay.committed
    victim.relay.end()
    assert (victim.ends, victim.made) == ([None], ["resp_2"])
    assert victim.relay.usage is not None
    aborted = Request(RESPONSES, ask=Ask("/", client="10.0.0.1"), head=head, backend=backend)
    in_pieces(aborted, body % 0)
    aborted.relay.end()
    assert isinstance(aborted.ends[0], AnswerAborted)
    assert aborted.transport.sent == b""


def test_who_holds_some_of_an_answer_is_forgotten_with_the_last_of_it() -> None:
    backend = Backend("b0", "http://127.0.0.1:1")
    leases = [Lease(backend, Ask("/", client=client), 0.0) for client in ("a", "a", "b")]
    assert all(lease.keep(100_000) for lease in leases)
    assert backend.kept.by_client == {"a": 200_000, "b": 100_000}
    assert leases[0].keep(1_000)
    leases[2].end(1.0)
    assert backend.kept.by_client == {"a": 101_000}
    assert not leases[0].keep(KEPT_BYTES_MAX * 4 // 5)
    assert leases[0].keep(KEPT_BYTES_MAX * 4 // 5 - 100_000)
    assert leases[0].keep(0)
    leases[1].end(1.0)
    assert (backend.kept.total_bytes, backend.kept.by_client) == (0, {})


@pytest.mark.parametrize("space", [b"", b" "])
def test_a_stored_response_that_is_passed_before_it_is_whole_has_an_owner(space: bytes) -> None:
    backend = Backend("b0", "http://127.0.0.1:1")
    backend.kept.total_bytes = KEPT_BYTES_MAX
    body = b'{"id":%b"resp_2","created_at":1,"instructions":"%b","object":"response"}'
    request = Request(RESPONSES, head=JSON, backend=backend)
    in_pieces(request, body % (space, A))
    assert request.relay.committed
    request.relay.end()
    assert (request.ends, request.made) == ([None], ["resp_2"])
    refused = b"HTTP/1.1 400 No\r\ncontent-type: application/json"
    request = Request(RESPONSES, head=refused, backend=backend)
    in_pieces(request, body % (space, A))
    request.relay.end()
    assert request.made == []


@pytest.mark.parametrize("status", [b"200 OK", b"400 No", b"500 Oops"])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
def test_a_large_error_after_a_hold_never_enters_the_stream_raw(
    status: bytes, full: bool, dialect: Dialect
) -> None:
    backend = Backend("b0", "http://127.0.0.1:1")
    backend.kept.total_bytes = KEPT_BYTES_MAX if full else 0
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json" % status
    request = Request(dialect, head=head, backend=backend)
    request.answer.hold()
    in_pieces(request, b'{"error":{"message":"%b"}}' % (A[:70_000] if full else A + A))
    if not request.ends:
        request.relay.end()
    assert request.ends == [None]
    assert not request.relay.committed
    assert not request.relay.served
    assert request.body.startswith(b": ping\n\n")
    event = request.body.removeprefix(b": ping\n\n")
    assert dialect.read(event).sign is Sign.ERROR
    assert A[:1_000] not in event
    assert not request.complete
    assert request.transport.closed


@pytest.mark.parametrize(
    ("dialect", "head", "pieces"),
    [
        (RESPONSES, SSE, [CREATED % A[:60_000], LAST[:60] + A[:60_000]]),
        (CHAT, SSE, [b": ping %b\n\n" % A[:15_000], b": pong " + A[:15_000]]),
        (CHAT, SSE, [b": %d\n\n" % number for number in range(2_000)]),
        (CHAT, JSON, [b'{"x":"' + A[:60_000]]),
        (CHAT, JSON, [b'{"x":"', *[b"%x" % (17 + number) for number in range(8_000)]]),
    ],
    ids=["two events", "comments", "small comments", "plain answer", "plain answer by drops"],
)
def test_what_is_held_is_counted_but_for_a_little_of_each(
    dialect: Dialect, head: bytes, pieces: list[bytes]
) -> None:
    wrong = Backend("wrong", "http://127.0.0.1:1")
    requests = [Request(dialect, head=head, backend=wrong, to=Drain()) for _ in range(20)]

    def feed() -> None:
        for request in requests:
            for piece in pieces:
                request.relay.body(bytes(bytearray(piece)))

    assert held_bytes(feed) - wrong.kept.total_bytes < 20 * (32_768 + 4_096)


# Read in turns, and given up ---------------------------------------------------------------------

ANSWERS = 20
OBJECTS = b"[%b{}]" % (b"{}," * 300_000)
MIB = 1 << 20


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

    def read() -> None:
        for _ in range(ANSWERS):
            request = Request(dialect, head=JSON, to=Drain(), in_turns=waiting.append)
            requests.append(request)
            for at in range(0, len(body), READ_BYTES):
                request.relay.body(bytes(bytearray(body[at : at + READ_BYTES])))
            request.relay.end()
        while waiting:
            waiting[:] = [each for each in waiting if next(each, True) is None]

    with no_collector():
        assert held_bytes(read, peak=True) < (ANSWERS + 4) * len(body)
    assert all(request.ends for request in requests)


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
    play = Play(backends=1)
    answer = plain("200 OK", b'{"choices":[{"text":"a"}],"pad":%b}' % OBJECTS)

    def give_up() -> None:
        for at in range(0, len(answer) if whole else len(answer) - 10_000, 2_000):
            play["b1"].protocol.data_received(answer[at : at + 2_000])
        play.client.connection.eof_received()

    with no_collector():
        play.client.sends(playbook.chat(stream=False))
        assert held_bytes(give_up) < MIB // 4


PLAIN = plain("200 OK", b'{"choices":[{"text":"a"}]}')


@pytest.mark.parametrize(
    ("answer", "stream", "whole"),
    [
        (STREAM + token("a"), True, False),
        (PLAIN[:-5], False, False),
        (PLAIN, False, True),
        (plain("200 OK", b'{"choices":[{"text":"a"}],"pad":%b}' % OBJECTS), False, True),
    ],
    ids=["a stream given up", "a plain answer given up", "whole", "large"],
)
def test_an_answer_leaves_nothing_to_the_collector(
    answer: bytes, stream: bool, whole: bool
) -> None:
    play = Play(backends=1)
    with no_collector():
        play.client.sends(playbook.chat(stream=stream))
        for at in range(0, len(answer), 2_000):
            play["b1"].protocol.data_received(answer[at : at + 2_000])
        play.turns()
        if not whole:
            play.client.closes()
        play.passes(1)
        assert ("counted 200 b1" in play.happened()) is (whole or stream)
        kinds = JsonRelay | EventRelay | Attempt
        assert not [each for each in gc.get_objects() if isinstance(each, kinds)]


# A great many members ---------------------------------------------------------------------------

EVERY = (CHAT, COMPLETIONS, MESSAGES, POOLING, RESPONSES, TRANSCRIPTS)


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[' + b"{}," * (MIB // 3) + b'{"finish_reason":"abort"}]}',
        b'{"choices":[{"message":{' + b'"a":0,' * (MIB // 6) + b'"b":0},"delta":{"role":0}}]}',
        b'{"choices":[{"delta":{"role":0,' + b'"a":"",' * (MIB // 7) + b'"b":""}}]}',
        b'{"content":[' + b"{}," * (MIB // 3) + b"{}]}",
        b"{" + b'"a":0,' * (MIB // 6) + b'"error":null}',
        b"[" + b"0," * (MIB // 2) + b"0]",
        b"data:\n" * (MIB // 6),
    ],
    ids=["choices", "message", "delta", "content", "keys", "list", "lines"],
)
def test_a_great_many_members_are_not_taken_apart(dialect: Dialect, body: bytes) -> None:
    event = body + b"\n" if body.startswith(b"data:") else b"data: " + body + b"\n\n"

    def read_whole() -> None:
        whole = finished(reading_whole(body))
        if whole is not None:
            for read in (dialect.aborted, dialect.usage, dialect.serves, dialect.response_id):
                read(whole)

    for call in (lambda: dialect.read(event), read_whole):
        assert held_bytes(call, peak=True) < 3.5 * MIB  # copies, and no objects


def told(answer: object) -> Whole:
    whole = finished(reading_whole(orjson.dumps(answer)))
    assert whole is not None
    return whole


def test_what_is_large_is_told_all_the_same() -> None:
    large = "x" * 100_000
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    choice = {"index": 2, "delta": {"content": large}, "finish_reason": None}
    event = CHAT.read(b"data: " + orjson.dumps({"choices": [choice], "usage": usage}) + b"\n\n")
    assert (event.sign, event.choice) == (Sign.TOKEN, 2)
    many = {"content": large, "logprobs": [{}] * 1_000}
    event = CHAT.read(b"data: " + orjson.dumps({"choices": [many], "usage": usage}) + b"\n\n")
    assert (event.sign, event.usage and event.usage.completion_tokens) == (Sign.TOKEN, 5)
    event = CHAT.read(b"data: " + orjson.dumps({"pad": large, "usage": usage}) + b"\n\n")
    assert event.sign is Sign.USAGE
    error = {"pad": large, "error": {"code": 503}}
    event = CHAT.read(b"data: " + orjson.dumps(error) + b"\n\n")
    assert (event.sign, event.status) == (Sign.ERROR, 503)
    assert CHAT.read(chat(large.encode(), b'"abort"')).sign is Sign.ABORT
    aborted = {"choices": [{"message": {"content": large}, "finish_reason": "abort"}]}
    assert CHAT.aborted(told(aborted))
    for dialect, said, nothing in (
        (CHAT, {"choices": [{"message": {"content": large}}]}, {"choices": [], "pad": large}),
        (MESSAGES, {"content": [{"text": large}]}, {"content": [], "pad": large}),
        (POOLING, {"data": [large]}, {"error": large}),
        (POOLING, [large], {"object": "error", "message": large}),
    ):
        assert dialect.serves(told(said))
        assert not dialect.serves(told(nothing))


@pytest.mark.parametrize("piece", [b"[]", b'\\"', b"\\\\", b"{["])
def test_the_end_of_json_is_counted_not_taken_apart(piece: bytes) -> None:
    end = JsonEnd()
    body = piece * (4 * MIB // len(piece))
    assert held_bytes(lambda: end.feed(body), peak=True) < 2.5 * len(body)
