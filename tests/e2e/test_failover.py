"""Backends that refuse, hang, die or talk nonsense, with clients on the other side.

Before the first token a failure is hidden; after it, it is said, and never looks like an end.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest

from bench.sim.server import SimServer
from bench.sim.text import expected, tokenize
from proxy.upstream import REST_S
from tests.e2e.process import Penstock, Serve, Simulate

MESSAGES = [{"role": "user", "content": "Tell me of rivers."}]
CHAT: dict[str, Any] = {"model": "sim-model", "messages": MESSAGES, "max_tokens": 12}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 12},
    "/v1/responses": {"model": "sim-model", "input": "Rivers?", "max_output_tokens": 12},
    "/v1/messages": CHAT,
}
ENDS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/responses": b'"type":"response.completed"}\n\n',
    "/v1/messages": b'data: {"type":"message_stop"}\n\n',
}
CHOICES = ("/v1/chat/completions", "/v1/completions")
every_dialect = pytest.mark.parametrize("path", BODIES)
COMPLETIONS = "/v1/completions"


class Got(NamedTuple):
    """A whole answer: `ended` when its framing says that it is complete."""

    head: bytes
    body: bytes
    ended: bool
    reset: bool = False

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: bytes) -> bytes:
        return self.head.partition(b"\r\n" + name + b": ")[2].partition(b"\r\n")[0]

    @property
    def last_event(self) -> Any:
        """The data of the last event."""
        return orjson.loads(self.body.rstrip().rpartition(b"data: ")[2])


async def ask(
    penstock: Penstock, path: str = COMPLETIONS, *, http: bytes = b"1.1", **fields: Any
) -> Got:
    """One request over a raw connection, read until penstock closes it."""
    body = orjson.dumps(BODIES[path] | fields)
    head = b"POST %b HTTP/%b\r\nHost: x\r\nConnection: close\r\n" % (path.encode(), http)
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    loop = asyncio.get_running_loop()
    raw, reset = b"", False
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", penstock.port))
        await loop.sock_sendall(sock, head + body)
        try:
            async with asyncio.timeout(10):
                while more := await loop.sock_recv(sock, 65_536):
                    raw += more
        except ConnectionResetError:
            reset = True
    head, _, rest = raw.partition(b"\r\n\r\n")
    got = Got(head, rest, not reset, reset)
    if length := got.header(b"content-length"):
        return got._replace(ended=len(rest) == int(length))
    if got.header(b"transfer-encoding"):
        whole, ended = dechunked(rest)
        return got._replace(body=whole, ended=ended)
    return got


def dechunked(raw: bytes) -> tuple[bytes, bool]:
    """The data in chunks, and whether the last one came."""
    body = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        if size == b"0":
            return body, rest == b"\r\n"
        body, raw = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body, False


def text_of(stream: bytes) -> str:
    events = [orjson.loads(line[6:]) for line in stream.split(b"\n") if line[:7] == b"data: {"]
    return "".join(event["choices"][0]["text"] for event in events if "choices" in event)


def told_by(got: Got) -> str:
    return str(orjson.loads(got.body)["choices"][0]["text"])


async def states(penstock: Penstock) -> list[str]:
    return [backend["state"] for backend in await penstock.backends()]


# Before the first token ------------------------------------------------------------------------

HIDDEN_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "cut_before_headers"},
    {"kind": "cut_before_headers", "rst": True},
    {"kind": "cut_after_headers"},
    {"kind": "cut_after_headers", "rst": True},
    {"kind": "error_event"},
    {"kind": "done_only"},
    {"kind": "busy"},
)
# By these a backend says of itself that it is ending, and is out at once.
ENDING_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "error_event", "status": 500},
    {"kind": "draining"},
    {"kind": "abort_empty"},
)


@every_dialect
async def test_what_fails_before_the_first_token_is_tried_elsewhere(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    plain: tuple[dict[str, Any], ...] = (
        *HIDDEN_FAULTS[:4],
        {"kind": "cut_mid_stream"},
        {"kind": "busy"},
    )
    for stream, faults in ((True, HIDDEN_FAULTS), (False, plain)):
        for fault in faults:
            attempts = []
            servers[0].drop_connections()  # a failure on a reused one is no attempt
            servers[0].faults.set(**fault, times=1)
            for _ in range(4):  # after the failure each has a success, or it would be ejected
                got = await ask(penstock, path, stream=stream)
                assert (got.status, got.ended) == (200, True), fault
                assert b"error" not in got.body.replace(b'"error":null', b""), fault
                if stream:
                    assert got.body.endswith(ENDS[path]), fault
                attempts.append(got.header(b"x-penstock-attempts"))
                if attempts[-1] == b"2":
                    assert got.header(b"x-penstock-backend") == b"b1"
            assert attempts.count(b"2") == 1, fault
    assert await states(penstock) == ["ready", "ready"]


@every_dialect
async def test_a_backend_that_says_it_is_ending_is_out_at_once(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(7)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    for number, (stream, fault) in enumerate(product((True, False), ENDING_FAULTS)):
        # As events these two are not told everywhere: the stream is empty, or just ends.
        untold = {"abort_empty"} if path in CHOICES else {"abort_empty", "error_event"}
        if stream and fault["kind"] in untold:
            continue
        servers[number].faults.set(**fault)
        attempts = []
        for _ in range(2 * len(servers)):
            got = await ask(penstock, path, stream=stream)
            assert (got.status, got.ended) == (200, True), fault
            assert b"error" not in got.body.replace(b'"error":null', b""), fault
            attempts.append(got.header(b"x-penstock-attempts"))
        assert attempts.count(b"2") == 1, fault
        assert (await states(penstock))[number] == "ejected", fault


async def test_each_kind_of_failure_is_counted(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    servers[0].faults.set("busy", times=1)
    for _ in range(4):
        await ask(penstock)
    assert [backend["failures_total"] for backend in await penstock.backends()] == [1, 0]
    metrics = await penstock.metrics()
    assert 'penstock_attempts_total{reason="busy"} 1.0' in metrics
    assert 'penstock_attempts_total{reason="ok"} 4.0' in metrics


async def test_a_draining_server_is_told_apart(simulate: Simulate, serve: Serve) -> None:
    """Text gets a 500, token ids an empty answer; nobody sees either, streamed or not."""
    servers = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    servers[0].faults.set("draining")
    text, ids = "Once upon a time", tokenize(b"Once upon a time")
    for prompt in (text, ids):
        for stream in (True, False):
            for _ in range(4):
                got = await ask(penstock, prompt=prompt, stream=stream)
                assert (got.status, got.ended) == (200, True)
                assert got.header(b"x-penstock-backend") == b"b1"
                said = text_of(got.body) if stream else told_by(got)
                assert said == expected(text, 12)
    assert 'penstock_attempts_total{reason="draining"}' in await penstock.metrics()


async def test_an_engine_that_died_is_told_apart(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    servers[0].faults.set("error_event", status=500)
    for stream in (True, False):
        for _ in range(2):
            assert (await ask(penstock, stream=stream)).status == 200
    assert 'penstock_attempts_total{reason="engine_dead"} 1.0' in await penstock.metrics()
    assert await states(penstock) == ["ejected", "ready"]


async def test_a_lone_backend_that_fails_is_told(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    for stream in (True, False):
        for fault in ("cut_before_headers", "cut_after_headers", "busy"):
            server.faults.clear()
            server.faults.set(fault)
            got = await ask(penstock, stream=stream)
            error = orjson.loads(got.body)["error"]
            assert (got.status, error["code"], got.ended) == (502, "backend_error", True)
            assert got.header(b"retry-after") == b"1"
            assert str(server.port) not in error["message"]
    server.faults.clear()
    server.faults.set("cut_before_headers")
    got = await ask(penstock, "/v1/messages")
    assert got.status == 502
    assert orjson.loads(got.body)["type"] == "error"


async def test_a_clients_fault_inside_a_stream_is_passed_on(
    simulate: Simulate, serve: Serve
) -> None:
    """A 4xx is the client's, also as the first event of a 200: nobody else is tried."""
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("error_event", status=400)
    got = await ask(penstock, stream=True)
    assert sum(len(server.seen) for server in servers) == 1
    assert (
        orjson.loads(got.body.partition(b"data: ")[2].partition(b"\n")[0])["error"]["code"] == 400
    )
    assert sum(each["failures_total"] for each in await penstock.backends()) == 0


async def test_no_more_than_three_engines_are_tried(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(5)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("cut_before_headers")
    got = await ask(penstock)
    assert got.status == 502
    assert sum(len(server.seen) for server in servers) == 3


async def test_hints_are_swallowed(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    server.faults.set("early_hints")
    for stream in (False, True):
        got = await ask(penstock, stream=stream)
        assert (got.status, got.ended) == (200, True)
        assert b"103" not in got.head.partition(b"\r\n")[0]
        assert not got.header(b"link")


# Whole servers ---------------------------------------------------------------------------------


async def test_a_refused_connection_ejects_at_once(simulate: Simulate, serve: Serve) -> None:
    """Probes are far apart here, so it is the request that finds out."""
    servers = await simulate(2)
    penstock = await serve(
        servers, pool={"policy": "round_robin"}, health={"interval_s": 60, "timeout_s": 5}
    )
    port = servers[0].port
    await servers[0].stop()
    attempts = []
    for _ in range(6):
        got = await ask(penstock, stream=True)
        assert (got.status, got.header(b"x-penstock-backend")) == (200, b"b1")
        attempts.append(got.header(b"x-penstock-attempts"))
        if attempts[-1] == b"2":
            assert await states(penstock) == ["ejected", "ready"]
    assert attempts.count(b"2") == 1
    first, second = await penstock.backends()
    assert (first["reason"], second["reason"]) == ("unreachable", "")
    await servers[0].start(port=port)


async def test_a_server_that_dies_under_load_and_comes_back(
    simulate: Simulate, serve: Serve
) -> None:
    """Nobody sees an error before the first token; who had one sees a broken stream."""
    servers = await simulate(2, profile="default")
    penstock = await serve(servers)
    port = servers[0].port
    over = asyncio.Event()
    answers: list[tuple[str, Got]] = []

    async def keep_asking(worker: int) -> None:
        count = 0
        while not over.is_set():
            prompt, count = f"{worker} {count}", count + 1
            got = await ask(penstock, prompt=prompt, stream=True, max_tokens=8)
            answers.append((prompt, got))

    workers = [asyncio.create_task(keep_asking(worker)) for worker in range(16)]
    await penstock.until(lambda listing: all(each["streams"] >= 4 for each in listing), 5)
    await servers[0].stop()
    await penstock.until(lambda listing: listing[0]["reason"] == "unreachable", 2)
    assert await states(penstock) == ["ejected", "ready"]
    await penstock.until(lambda listing: listing[1]["streams"] >= 12, 5)
    await servers[0].start(port=port)
    await penstock.until(lambda listing: listing[0]["state"] == "ready", 5)
    await penstock.until(lambda listing: listing[0]["streams"] >= 2, 5)
    over.set()
    await asyncio.gather(*workers)
    broken = 0
    for prompt, got in answers:
        whole = expected(prompt, 8)
        said = text_of(got.body)
        assert got.status == 200
        if got.ended:
            assert said == whole
            assert got.body.endswith(b"data: [DONE]\n\n")
        else:
            broken += 1
            assert said
            assert whole.startswith(said)
            assert got.last_event["error"]["code"] == "stream_broken"
    assert 1 <= broken <= 16


async def test_all_down_is_told_at_once(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("refuse")
    await penstock.until(lambda listing: all(b["state"] == "ejected" for b in listing), 5)
    took_s = []
    for path in list(BODIES) * 5:
        began_s = time.perf_counter()
        got = await ask(penstock, path, stream=True)
        took_s.append(time.perf_counter() - began_s)
        assert got.status == 503
        assert int(got.header(b"retry-after")) >= 1
        assert 0 < int(got.header(b"retry-after-ms")) <= 1000
        error = orjson.loads(got.body)["error"]
        if path == "/v1/messages":
            assert error["type"] == "overloaded_error"
        else:
            assert error["code"] == "no_backend"
    assert statistics.median(took_s) < 0.05
    for server in servers:
        server.faults.clear()
    await penstock.until_ready(2)
    assert (await ask(penstock)).status == 200


# After the first token -------------------------------------------------------------------------


def assert_broken(path: str, got: Got) -> None:
    """The dialect's error event is the last thing said, and nothing looks like an end."""
    assert got.status == 200
    assert not got.ended
    assert b"[DONE]" not in got.body
    assert got.body.endswith(b"}\n\n")
    event = got.body.rstrip().rpartition(b"\n\n")[2]
    told = got.last_event
    if path == "/v1/messages":
        assert event.startswith(b"event: error\ndata: ")
        assert told["type"] == "error"
        assert told["error"].keys() == {"type", "message"}
    elif path == "/v1/responses":
        assert event.startswith(b"event: error\ndata: ")
        assert (told["type"], told["code"]) == ("error", "stream_broken")
    else:
        assert event.startswith(b"data: ")
        assert told["error"]["code"] == "stream_broken"


@every_dialect
async def test_a_stream_cut_midway_is_said_to_be_broken(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("cut_mid_stream", tokens=3)
    got = await ask(penstock, path, stream=True)
    assert_broken(path, got)
    for server in servers:
        server.faults.set("cut_mid_stream", tokens=3, rst=True)
    assert_broken(path, await ask(penstock, path, stream=True))
    assert sum(len(server.seen) for server in servers) == 2
    got = await ask(penstock, path, stream=True, http=b"1.0")
    assert got.reset
    for server in servers:
        server.faults.clear()
    got = await ask(penstock, path, stream=True, http=b"1.0")
    assert not got.reset
    assert not got.header(b"transfer-encoding")
    assert got.body.endswith(ENDS[path])


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/v1/responses"])
async def test_a_stream_given_up_midway_is_said_to_be_broken(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    """Not responses: there vLLM calls it "completed"."""
    servers = await simulate(2, profile="steady-50")
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("abort_mid_stream", tokens=3)
    assert_broken(path, await ask(penstock, path, stream=True))
    got = await ask(penstock, path, stream=False)  # nothing was said yet: both were tried
    assert got.status == 502
    assert sum(len(server.seen) for server in servers) == 3
    assert 'penstock_stream_failures_total{reason="abort"} 1.0' in await penstock.metrics()


async def test_silence_after_the_first_token(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server], timeouts={"idle_s": 0.3})
    server.faults.set("hang_mid_stream", tokens=3)
    began_s = time.monotonic()
    got = await ask(penstock, stream=True)
    assert 0.25 < time.monotonic() - began_s < 1.0
    assert_broken(COMPLETIONS, got)
    assert text_of(got.body) == expected("Once upon a time", 3)
    async with asyncio.timeout(1):
        while not server.engine.idle:
            await asyncio.sleep(0.01)


# Waiting for the first token -------------------------------------------------------------------


async def test_a_backend_that_never_answers(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    limits = {"first_byte_s": 0.2, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits, pool={"policy": "round_robin"})
    for fault in ("hang_before_headers", "hang_after_headers"):
        for stream in (True, False):
            servers[0].faults.set(fault, times=1)
            attempts = []
            for _ in range(3):
                got = await ask(penstock, stream=stream, max_tokens=1)
                assert got.status == 200
                attempts.append(got.header(b"x-penstock-attempts"))
            assert attempts.count(b"2") == 1
    for server in servers:
        server.faults.set("hang_before_headers")
    for stream in (True, False):
        began_s = time.monotonic()
        got = await ask(penstock, stream=stream, max_tokens=1)
        assert 0.35 < time.monotonic() - began_s < 1.5
        assert (got.status, orjson.loads(got.body)["error"]["code"]) == (504, "backend_timeout")


@every_dialect
async def test_a_held_stream_still_fails_over(simulate: Simulate, serve: Serve, path: str) -> None:
    """The 200 and a ping go out after `hold_s`; the tokens are another backend's."""
    servers = await simulate(2)
    limits = {"hold_s": 0.2, "first_byte_s": 0.5, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits, pool={"policy": "round_robin"})
    servers[0].faults.set("hang_after_headers", times=1)
    url, body = penstock.url + path, BODIES[path] | {"stream": True}
    held = 0
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            began_s = time.monotonic()
            async with session.post(url, json=body) as answer:
                assert answer.status == 200
                assert answer.content_type == "text/event-stream"
                first = await answer.content.readline()
                first_s = time.monotonic() - began_s
                rest = await answer.content.read()
            if first.startswith(b":"):
                held += 1
                assert first == b": ping\n"
                assert 0.15 < first_s < 0.45
                assert 0.45 < time.monotonic() - began_s < 1.0
                first = rest.lstrip()
            assert first.startswith((b"data: {", b"event: "))
            assert rest.endswith(ENDS[path])
            assert b"error" not in rest.replace(b'"error":null', b"")
    assert held == 1


@every_dialect
async def test_a_held_stream_that_nobody_can_serve(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(2)
    limits = {"hold_s": 0.1, "first_byte_s": 0.2, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits)
    for server in servers:
        server.faults.set("hang_before_headers")
    got = await ask(penstock, path, stream=True)
    assert (got.status, got.ended) == (200, False)
    assert got.body.startswith(b": ping\n\n")
    told = got.last_event
    if path == "/v1/messages":
        assert told["error"]["type"] == "timeout_error"
    else:
        assert told.get("error", told)["code"] == "backend_timeout"


# Connections kept for reuse --------------------------------------------------------------------


@pytest.mark.parametrize("rst", [False, True])
async def test_a_reset_on_a_reused_connection_is_retried_once(
    simulate: Simulate, serve: Serve, rst: bool
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health={"interval_s": 60, "timeout_s": 5})
    assert (await ask(penstock)).status == 200
    dialled = server.connections_total
    await asyncio.sleep(2 * REST_S)
    server.faults.set("cut_before_headers", rst=rst, times=1)
    got = await ask(penstock)
    assert (got.status, got.header(b"x-penstock-attempts")) == (200, b"1")
    assert server.connections_total == dialled + 1
    assert (await penstock.backends())[0]["failures_total"] == 0
    server.seen.clear()
    await asyncio.sleep(2 * REST_S)
    server.faults.set("cut_before_headers", rst=rst)
    got = await ask(penstock)
    assert got.status == 502
    assert len(server.seen) == 2


async def test_connections_that_closed_while_idle_cost_nothing(
    simulate: Simulate, serve: Serve
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health={"interval_s": 60, "timeout_s": 5})
    for rst in (False, True):
        assert (await ask(penstock)).status == 200
        server.drop_connections(rst=rst)
        got = await ask(penstock)
        assert (got.status, got.header(b"x-penstock-attempts")) == (200, b"1")


@pytest.mark.parametrize("fault", ["unsolicited", "second_answer"])
async def test_an_answer_that_nobody_asked_for_reaches_nobody(
    simulate: Simulate, serve: Serve, fault: str
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health={"interval_s": 60, "timeout_s": 5})
    server.faults.set(fault)
    for stream in (False, True):
        for i in range(3):
            dialled = server.connections_total
            got = await ask(penstock, prompt=f"prompt {i}", max_tokens=3, stream=stream)
            assert (got.status, got.ended) == (200, True)
            said = text_of(got.body) if stream else orjson.loads(got.body)["choices"][0]["text"]
            assert said == expected(f"prompt {i}", 3)
            assert b"second answer" not in got.body
            await asyncio.sleep(0.03)
            assert i == 0 or server.connections_total == dialled + 1


# Answers that are not what they should be ------------------------------------------------------

Script = Callable[[str, bytes], Awaitable[str]]


@pytest.fixture
async def scripted() -> AsyncIterator[Script]:
    """Start a server of a model that answers every POST with the given bytes."""
    started: list[asyncio.Server] = []

    async def start(model: str, raw: bytes) -> str:
        listing = b'{"data":[{"id":"%b"}]}' % model.encode()
        models = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(listing), listing)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(raw if head.startswith(b"POST") else models)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        started.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in started:
        server.close()
        await server.wait_closed()


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
NONSENSE = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "half a head": OK[:30],
    "bad status": OK.replace(b"200", b"2000") + b"content-length: 2\r\n\r\n{}",
    "other version": OK.replace(b"1.1", b"2.0") + b"content-length: 2\r\n\r\n{}",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "bad length": OK + b"content-length: +2\r\n\r\n{}",
    "length and chunks": OK
    + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "other coding": OK + b"transfer-encoding: gzip\r\n\r\n{}",
    "bad chunk": OK + b"transfer-encoding: chunked\r\n\r\nxx\r\n{}\r\n0\r\n\r\n",
    "cut chunk": OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "short body": OK + b"content-length: 3\r\n\r\n{}",
    "bare line ends": OK.replace(b"\r\n", b"\n") + b"content-length: 2\n\n{}",
    "folded": OK + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}",
    "NUL": OK + b"x-a: b\x00\r\ncontent-length: 2\r\n\r\n{}",
    "switch": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    "endless head": OK + b"x-a: b\r\n" * 20_000,
}


async def test_answers_that_are_no_http(simulate: Simulate, serve: Serve, scripted: Script) -> None:
    """One address each, in one fleet; a request that meets only those is a 502."""
    urls = [await scripted(f"m{i}", raw) for i, raw in enumerate(NONSENSE.values())]
    penstock = await serve(urls)
    wrong = {}
    for i, name in enumerate(NONSENSE):
        got = await ask(penstock, model=f"m{i}")
        told = orjson.loads(got.body) if got.ended else {}
        if got.status != 502 or told["error"]["code"] != "backend_error":
            wrong[name] = got
    assert not wrong


async def test_odd_but_valid_answers_pass(serve: Serve, scripted: Script) -> None:
    until_end = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nuntil the end"
    old = b"HTTP/1.0 200 Fine\r\ncontent-type: application/json\r\n\r\n{}"
    zipped = OK + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00"
    # Compressed events never show a `data:`: held for one, they would be lost.
    zipped_events = zipped.replace(b"application/json", b"text/event-stream")
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    hop = OK + b"connection: x-a\r\nx-a: 1\r\nkeep-alive: 5\r\nx-penstock-backend: evil\r\n"
    cases = {
        until_end: (200, b"until the end"),
        old: (200, b"{}"),
        zipped: (200, b"\x1f\x8b\x08\x00"),
        zipped_events: (200, b"\x1f\x8b\x08\x00"),
        empty: (204, b""),
        hop + b"x-request-id: other\r\ncontent-length: 2\r\n\r\n{}": (200, b"{}"),
        OK.replace(b"200", b"418") + b"content-length: 2\r\n\r\n{}": (418, b"{}"),
    }
    urls = [await scripted(f"m{i}", raw) for i, raw in enumerate(cases)]
    penstock = await serve(urls)
    for i, wanted in enumerate(cases.values()):
        got = await ask(penstock, model=f"m{i}")
        assert (got.status, got.body, got.ended) == (*wanted, True)
        assert got.header(b"x-penstock-backend") == b"b%d" % i
        assert got.head.count(b"x-penstock-backend") == 1
        assert got.head.count(b"x-request-id") == 1
        assert not got.header(b"x-a")
        assert not got.header(b"keep-alive")


async def test_servers_keep_their_own(simulate: Simulate, serve: Serve) -> None:
    """Many streams at once over two servers, each with its own text, whole and unmixed."""
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers)
    servers[0].faults.set("multi_token", tokens=3)
    prompts = [f"{'x' * i} prompt {i}" for i in range(60)]
    answers = await asyncio.gather(
        *[ask(penstock, prompt=prompt, stream=True, max_tokens=40) for prompt in prompts]
    )
    for prompt, got in zip(prompts, answers, strict=True):
        assert got.ended
        assert text_of(got.body) == expected(prompt, 40)
