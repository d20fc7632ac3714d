"""Backends that refuse, hang or die before the first token: another one serves, unseen."""

import asyncio
import statistics
import time
from itertools import product
from typing import Any

import orjson
import pytest

from penstock.bench.sim.text import expected, tokenize
from tests.e2e.answers import BODIES, ENDS, Got, ask, text_of, told_by
from tests.e2e.process import Penstock, Serve, Simulate

CHOICES = ("/v1/chat/completions", "/v1/completions")
every_dialect = pytest.mark.parametrize("path", BODIES)


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
        {"kind": "abort_empty"},  # one request given up is no end of its backend
    )
    for stream, faults in ((True, HIDDEN_FAULTS), (False, plain)):
        for fault in faults:
            async with asyncio.timeout(20):  # it may be left alone, or suspect
                while (await ask(penstock, path)).header(b"x-penstock-backend") != b"b0":
                    await asyncio.sleep(0.05)
            attempts: list[bytes] = []
            servers[0].drop_connections()  # a failure on a reused one is no attempt
            servers[0].faults.set(**fault, times=1, path=path)  # not for a deep probe
            for _ in range(200):
                got = await ask(penstock, path, stream=stream)
                assert (got.status, got.ended) == (200, True), fault
                assert b"error" not in got.body.replace(b'"error":null', b""), fault
                if stream:
                    assert got.body.endswith(ENDS[path]), fault
                attempts.append(got.header(b"x-penstock-attempts"))
                if attempts[-1] == b"2":
                    assert got.header(b"x-penstock-backend") == b"b1"
                if b"2" in attempts[:-2]:
                    break
            assert attempts.count(b"2") == 1, fault
    await penstock.until_ready(2)  # a probe may have lost its connection, too
    assert b"ejected" not in b"".join(penstock.log)


@every_dialect
async def test_a_backend_that_says_it_is_ending_is_out_at_once(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(5)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    for number, (stream, fault) in enumerate(product((True, False), ENDING_FAULTS)):
        if stream and fault["kind"] == "error_event" and path not in CHOICES:
            continue  # as an event it is not told there: the stream just ends
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
    assert [backend["failures_total"] for backend in await penstock.backends()] == [0, 0]
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
        for fault in ("cut_before_headers", "cut_after_headers"):
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
        server.faults.set("done_only")
    got = await ask(penstock, stream=True)
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
    # Refused, not only suspected for its broken streams: that would keep it out for ten seconds.
    await penstock.until(lambda listing: not listing[0]["can_serve"], 2)
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
