"""Backends that refuse, hang or die before the first token: another one serves, unseen."""

import asyncio
from itertools import product
from typing import Any

import orjson
import pytest

from penstock.bench.sim.text import expected
from tests.e2e.answers import BODIES, ENDS, Got, ask, text_of
from tests.e2e.process import Fleet, Penstock, Serve, StartSim
from tests.e2e.request import CHAT
from tests.e2e.request import Got as Answered
from tests.e2e.request import ask as ask_once

CHOICES = ("/v1/chat/completions", "/v1/completions")
every_dialect = pytest.mark.parametrize("path", BODIES)


async def states(penstock: Penstock) -> list[str]:
    return [backend["state"] for backend in await penstock.backends()]


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
async def test_failures_before_the_first_token_are_hidden(fleet: Fleet, path: str) -> None:
    servers, penstock = await fleet(2, pool={"policy": "round_robin"})
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
async def test_a_backend_that_is_ending_is_ejected_at_once(fleet: Fleet, path: str) -> None:
    servers, penstock = await fleet(5, pool={"policy": "round_robin"})
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


async def test_a_lone_backends_failure_is_a_502(fleet: Fleet) -> None:
    (server,), penstock = await fleet()
    for stream in (True, False):
        for fault in ("cut_before_headers", "cut_after_headers"):
            server.faults.clear()
            server.faults.set(fault)
            got = await ask(penstock, stream=stream)
            error = error_of(got)
            assert (got.status, error["code"], got.ended) == (502, "backend_error", True)
            assert got.header(b"retry-after") == b"1"
            assert str(server.port) not in error["message"]
    server.faults.clear()
    server.faults.set("cut_before_headers")
    got = await ask(penstock, "/v1/messages")
    assert got.status == 502
    assert orjson.loads(got.body)["type"] == "error"


async def test_a_server_dies_under_load_and_comes_back(fleet: Fleet) -> None:
    """Nobody sees an error before the first token; who had one sees a broken stream."""
    servers, penstock = await fleet(2, profile="default")
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


def error_of(got: Got) -> Any:
    return orjson.loads(got.body)["error"]


STREAM = CHAT | {"stream": True}


async def chat(penstock: Penstock, **headers: str) -> Answered:
    return await ask_once(penstock, "/v1/chat/completions", STREAM, **headers)


async def parked(penstock: Penstock) -> str:
    """The number of requests that wait for a backend, as an autoscaler reads it."""
    found = [line for line in (await penstock.metrics()).splitlines() if "held_requests{" in line]
    return found[0].split()[1]


async def test_a_restart_of_the_only_backend_is_a_pause(
    sim_process: StartSim, serve: Serve
) -> None:
    restarting = await sim_process("--profile", "instant")
    penstock = await serve([restarting.url], admission={"hold_for_backend_s": 30})
    await restarting.kill()
    answers = [asyncio.create_task(chat(penstock)) for _ in range(20)]
    await asyncio.sleep(0.5)
    assert not any(answer.done() for answer in answers)
    assert await parked(penstock) == "20.0"
    await restarting.start()
    for got in await asyncio.gather(*answers):
        assert got.status == 200
        assert got.body.endswith(b"data: [DONE]\n\n")
    assert await parked(penstock) == "0.0"
