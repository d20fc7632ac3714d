"""The process itself is stopped for a while: no stream breaks and no backend is ejected for it."""

import asyncio
import signal

import aiohttp
import pytest

from tests.e2e.process import Serve, Simulate

STREAM = {"model": "sim-model", "prompt": "on and on", "max_tokens": 200, "stream": True}
PLAIN = STREAM | {"stream": False}
# Of several, one falls where timers come before what was received.
PAUSES = 3
PAUSED_S = 1.8


@pytest.mark.alone
async def test_a_pause_of_the_process_breaks_no_stream_and_is_held_against_nobody(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(2, profile="steady-50")
    penstock = await serve(
        servers,
        timeouts={"idle_s": 1, "first_byte_s": 1, "client_stall_s": 1, "client_idle_s": 1},
        health={"interval_s": 0.1, "timeout_s": 0.1, "fall": 1, "deep": {"interval_s": 0.2}},
    )
    speeds = [backend["decode_step_ms"] for backend in await penstock.backends()]
    ends: list[str] = []
    begun = asyncio.Semaphore(0)

    async def stream(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{penstock.url}/v1/completions", json=STREAM) as answer:
            text = b""
            async for line in answer.content:
                if not text:
                    begun.release()
                text += line
        ends.append(text[-14:].decode())

    async def plain(session: aiohttp.ClientSession) -> None:
        begun.release()
        async with session.post(f"{penstock.url}/v1/completions", json=PLAIN) as answer:
            await answer.read()
            ends.append(str(answer.status))

    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(stream(session)) for _ in range(12)]
        tasks += [asyncio.create_task(plain(session)) for _ in range(4)]
        for _ in tasks:
            await begun.acquire()
        for _ in range(PAUSES):
            penstock.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSED_S)
            penstock.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.4)
        await asyncio.gather(*tasks)
    after = await penstock.backends()
    assert [backend["failures_total"] for backend in after] == [0, 0]
    # All have been through a pause, so how long they took says nothing.
    assert [backend["decode_step_ms"] for backend in after] == speeds
    log = b"".join(penstock.log)
    assert sorted(ends) == ["200"] * 4 + ["data: [DONE]\n\n"] * 12, ends
    assert b"the process was not running" in log
    assert b"backend ejected" not in log, log.decode()


@pytest.mark.alone
async def test_a_dial_that_was_under_way_does_not_fail_for_it(
    simulate: Simulate, serve: Serve
) -> None:
    """The timer of 0.3 s comes before what was received, unless it waits for that."""
    servers = await simulate(1)
    penstock = await serve(servers, timeouts={"connect_s": 0.3})
    statuses: list[int] = []

    async def ask(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{penstock.url}/v1/completions", json=PLAIN) as answer:
            statuses.append(answer.status)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(PAUSES):
            tasks = [asyncio.create_task(ask(session)) for _ in range(60)]
            await asyncio.sleep(0.02)
            penstock.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.8)
            penstock.process.send_signal(signal.SIGCONT)
            await asyncio.gather(*tasks)
    assert statuses == [200] * len(statuses)
    assert len(statuses) == 60 * PAUSES
