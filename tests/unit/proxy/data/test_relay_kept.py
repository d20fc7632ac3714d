"""How much of a backend's answers waits here: a wrong one may begin a great many and end none."""

import tracemalloc

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.kept_answers import KEPT_BYTES_MAX
from penstock.balancing.lease import Lease
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.relay import FREE_BYTES
from penstock.proxy.dialects import CHAT, RESPONSES, Dialect
from penstock.proxy.dialects.dialect import Sign
from penstock.proxy.errors.backend import AnswerAborted
from tests.unit.proxy.data.relayed import DONE, JSON, SSE, TOKENS, Request
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


def feed(request: Request, data: bytes) -> None:
    for at in range(0, len(data), READ_BYTES):
        request.feed(bytes(data[at : at + READ_BYTES]))


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
    tracemalloc.start()
    try:
        for request in requests:
            feed(request, before)
            feed(request, begun)
            feed(request, b"a")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < mib << 20
    assert wrong.kept.total_bytes <= KEPT_BYTES_MAX
    beside = Request(backend=Backend("sound", "http://127.0.0.1:1"))  # another's are held as ever
    feed(beside, b'data: {"x":"' + A)
    assert not beside.relay.committed
    for request in requests:
        request.lease.end(1.0)
    assert wrong.kept.total_bytes == 0


def test_where_there_is_no_room_a_first_event_passes_in_pieces() -> None:
    wrong = Backend("wrong", "http://127.0.0.1:1")
    wrong.kept.total_bytes = KEPT_BYTES_MAX
    event = TOKENS[0].replace(b'"content":""', b'"content":"%b"' % A)
    request = Request(backend=wrong)
    feed(request, event + TOKENS[1] + DONE)
    request.relay.end()
    assert request.ends == [None]
    assert request.body == event + TOKENS[1] + DONE
    plain = Request(head=JSON, backend=wrong)
    feed(plain, b'{"x":"%b"}' % A)
    plain.relay.end()
    assert plain.body == b'{"x":"%b"}' % A
    assert wrong.kept.total_bytes == KEPT_BYTES_MAX


@pytest.mark.parametrize("committed", [True, False])
def test_a_byte_at_a_time_copies_little(committed: bool) -> None:
    request = Request(to=Drain())
    feed(request, TOKENS[0] if committed else b"")
    feed(request, b'data: {"x":"' + A[: FREE_BYTES - READ_BYTES // 4])
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
    feed(request, MADE + LAST % A)
    request.relay.end()
    assert request.ends == [None]
    assert request.relay.usage is not None
    assert request.relay.usage.completion_tokens == 3
    assert request.backend.kept.total_bytes == 0


def test_a_large_error_of_the_requests_own_after_tokens_ends_it_as_ever() -> None:
    error = b'data: {"error":{"code":400,"message":"%b"}}\n\n' % A[:200_000]
    request = Request()
    feed(request, TOKENS[0] + TOKENS[1] + error + DONE)
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
            feed(request, CREATED % A[:size_bytes])
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
    feed(victim, body % 3)
    assert not victim.relay.committed
    victim.relay.end()
    assert (victim.ends, victim.made) == ([None], ["resp_2"])
    assert victim.relay.usage is not None
    aborted = Request(RESPONSES, ask=Ask("/", client="10.0.0.1"), head=head, backend=backend)
    feed(aborted, body % 0)
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
    feed(request, body % (space, A))
    assert request.relay.committed
    request.relay.end()
    assert (request.ends, request.made) == ([None], ["resp_2"])
    refused = b"HTTP/1.1 400 No\r\ncontent-type: application/json"
    request = Request(RESPONSES, head=refused, backend=backend)
    feed(request, body % (space, A))
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
    feed(request, b'{"error":{"message":"%b"}}' % (A[:70_000] if full else A + A))
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
    tracemalloc.start()
    try:
        for request in requests:
            for piece in pieces:
                request.relay.body(bytes(bytearray(piece)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes - wrong.kept.total_bytes < 20 * (32_768 + 4_096)
