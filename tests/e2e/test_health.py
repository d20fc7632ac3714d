"""Backends that die, stop, hang, refuse and return, and fleets of many."""

import asyncio
import signal
import socket
from collections import Counter
from time import monotonic
from typing import Any

from tests.e2e.answers import ask
from tests.e2e.forked import SimProcess
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, StartSim
from tests.e2e.traffic import Traffic

DEFAULTS: dict[str, Any] = {
    "interval_s": 2,
    "slow_start_s": 30,
    "deep": {"interval_s": 10, "timeout_s": 4, "fall": 2},
}


async def three(sim_process: StartSim) -> list[SimProcess]:
    return [await sim_process("--profile", "instant") for _ in range(3)]


async def test_a_killed_server_is_out_after_one_request(
    sim_process: StartSim, serve: Serve
) -> None:
    sim_processes = await three(sim_process)
    penstock = await serve([server.url for server in sim_processes], health=DEFAULTS)
    await sim_processes[0].kill()
    async with Traffic(penstock.url, clients=1) as traffic:
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
        await asyncio.sleep(0.3)
    assert traffic.failed == []
    assert traffic.retried <= 1
    assert (await penstock.backends())[0]["reason"] == "unreachable"
    await sim_processes[0].start()
    await penstock.until(lambda listing: listing[0]["state"] == "warming", 10)


async def test_a_stopped_server_is_ejected_and_comes_back(
    sim_process: StartSim, serve: Serve
) -> None:
    sim_processes = await three(sim_process)
    penstock = await serve(
        [server.url for server in sim_processes],
        health=DEFAULTS | {"slow_start_s": 2},
        timeouts={"first_byte_s": 60},
    )
    async with Traffic(penstock.url):
        sim_processes[0].signal(signal.SIGSTOP)
        began_s = monotonic()
        # A turn of at most 2.4 s, then three probes of 1 s with pauses of at most 0.6 s.
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 8)
        assert monotonic() - began_s > 2.0  # not by one failure
        sim_processes[0].signal(signal.SIGCONT)
        await penstock.until(lambda listing: listing[0]["state"] == "warming", 15)
        await penstock.until(lambda listing: listing[0]["state"] == "ready", 10)


async def test_unreachable_and_unresolved_are_told_apart(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1)
    with socket.socket() as sock:  # bound, but nobody listens
        sock.bind(("127.0.0.1", 0))
        urls = [
            servers[0].url,
            f"http://127.0.0.1:{sock.getsockname()[1]}",
            "http://no-such-host.invalid:8000",
        ]
        penstock = await serve(urls, ready=1)
        await penstock.until(
            lambda listing: (
                [each["reason"] for each in listing] == ["", "unreachable", "unresolved"]
            ),
            5,
        )
    assert {each["state"] for each in (await penstock.backends())[1:]} == {"starting"}
    log = b"".join(penstock.log)
    assert log.count(b"name=b1 reason=unreachable") == 1
    assert log.count(b"name=b2 reason=unresolved") == 1


REQUESTS = 150


async def ask_many(penstock: Penstock) -> tuple[Counter[int], Counter[str]]:
    statuses: Counter[int] = Counter()
    backends: Counter[str] = Counter()
    for number in range(REQUESTS):
        got = await ask(penstock, prompt=f"number {number}", max_tokens=2, stream=True)
        statuses[got.status] += 1
        backends[got.header(b"x-penstock-backend").decode()] += 1
    return statuses, backends


async def test_a_backend_that_refuses_the_pools_key_is_out(fleet: Fleet) -> None:
    servers, penstock = await fleet(
        4, api_key="right", pool={"api_key": "right", "forward_authorization": "pool"}, health={}
    )
    servers[0].api_key = "another"
    statuses, backends = await ask_many(penstock)
    assert statuses == {200: REQUESTS}
    assert backends["b0"] == 0
    await penstock.until(
        lambda listing: (listing[0]["state"], listing[0]["reason"]) == ("ejected", "refusing"), 5
    )
