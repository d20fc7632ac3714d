"""Endpoints that change a hundred times a second: what is followed, and what that costs."""

import asyncio
import os
from collections.abc import Iterator
from random import Random
from time import monotonic
from typing import Any, Final

import aiohttp
import pytest

from penstock.bench.meter import cpu_ns, resident_bytes
from tests.e2e.api_server import ApiServer, endpoint_slice
from tests.e2e.process import Penstock, Serve, StartSim

SLICES: Final = int(os.environ.get("TEST_SLICES", "10"))
IN_SLICE: Final = 100
CHANGES_PER_S: Final = 100
LASTS_S: Final = float(os.environ.get("TEST_CHURN_S", "5"))
# A change must be followed within this time.
WITHIN_S: Final = 1.0
STREAMS: Final = 20
BODY: Final = {"prompt": "Of gates", "stream": True}


class Endpoints:
    """The endpoints of a Service at many addresses of one server. Half of them come and go."""

    def __init__(self, api: ApiServer, port: int) -> None:
        self._api, self._port = api, port
        self._rng = Random(1)
        self.ready = {(i, j): True for i in range(SLICES) for j in range(IN_SLICE)}
        self.left_s: dict[str, float] = {}  # when each one left that is gone

    async def put(self, number: int) -> None:
        told = [
            {
                "addresses": [f"127.1.{number}.{each + 1}"],
                "conditions": {"ready": self.ready[number, each]},
                "targetRef": {"kind": "Pod", "name": f"pod-{number}-{each}"},
            }
            for each in range(IN_SLICE)
        ]
        await self._api.put(endpoint_slice(f"s{number}", "vllm", *told, port=self._port))

    async def change(self) -> None:
        """One of them comes or goes. Those with even numbers stay."""
        number, each = self._rng.randrange(SLICES), 2 * self._rng.randrange(IN_SLICE // 2) + 1
        ready = self.ready[number, each] = not self.ready[number, each]
        name = name_of(number, each)
        await self.put(number)
        if ready:
            self.left_s.pop(name, None)
        else:
            self.left_s[name] = monotonic()

    def names(self) -> set[str]:
        return {name_of(*each) for each, ready in self.ready.items() if ready}


def name_of(number: int, each: int) -> str:
    """The name of a pod's backend."""
    return f"default.pod-{number}-{each}"


async def churn(endpoints: Endpoints, lasts_s: float) -> int:
    """Change them for so long. Returns how often."""
    began_s, changes = monotonic(), 0
    while monotonic() < began_s + lasts_s:
        await endpoints.change()
        changes += 1
        await asyncio.sleep(max(0.0, began_s + changes / CHANGES_PER_S - monotonic()))
    return changes


async def used(penstock: Penstock) -> set[str]:
    return {each["name"] for each in await penstock.backends() if not each["removed"]}


async def stream(session: aiohttp.ClientSession, url: str, tokens: int) -> tuple[str, bool]:
    """The backend of a stream, and whether it was whole."""
    async with session.post(f"{url}/v1/completions", json=BODY | {"max_tokens": tokens}) as answer:
        got = await answer.read()
        whole = answer.status == 200 and got.count(b'"text":') == tokens and b"[DONE]" in got
        return answer.headers.get("x-penstock-backend", ""), whole


async def ask_on(url: str, endpoints: Endpoints, wrong: list[str]) -> None:
    """Ask until it is cancelled; note what is not whole, or was sent to who left long ago."""
    async with aiohttp.ClientSession() as session:
        while True:
            sent_s = monotonic()
            backend, whole = await stream(session, url, 2)
            left_s = endpoints.left_s.get(backend, sent_s)
            if not whole or left_s < sent_s - WITHIN_S:
                wrong.append(f"{backend} whole={whole} left {sent_s - left_s:.2f} s before")


def cpu_share(penstock: Penstock) -> Iterator[float]:
    """The share of a core that the process has used since the value before."""
    before = cpu_ns(penstock.process.pid), monotonic()
    while True:
        now = cpu_ns(penstock.process.pid), monotonic()
        yield (now[0] - before[0]) / 1e9 / max(1e-9, now[1] - before[1])
        before = now


@pytest.mark.alone
async def test_a_hundred_changes_a_second_are_followed(serve: Serve, sim_process: StartSim) -> None:
    sim = await sim_process("--host", "0.0.0.0", "--profile", "instant")
    async with ApiServer() as api:
        endpoints = Endpoints(api, int(sim.url.rpartition(":")[2]))
        for number in range(SLICES):
            await endpoints.put(number)
        kubernetes = {"api_url": api.url, "namespace": "llm", "service": "vllm"}
        pool: dict[str, Any] = {"backends": []}
        pool["discover"] = {"kubernetes": kubernetes, "allow": ["127.0.0.0/8"]}
        health = {"interval_s": 60}
        penstock = await serve([], ready=0, pool=pool, health=health, at_rest=False)
        await penstock.until(lambda told: len(told) == SLICES * IN_SLICE, 20)
        await penstock.until(lambda told: all(each["can_serve"] for each in told), 60)
        shares, wrong = cpu_share(penstock), list[str]()
        async with aiohttp.ClientSession() as session:
            next(shares)
            await asyncio.sleep(LASTS_S)
            still, memory = next(shares), resident_bytes(penstock.process.pid)
            changes = await churn(endpoints, LASTS_S)
            busy = next(shares)
            await asyncio.sleep(WITHIN_S)
            assert await used(penstock) == endpoints.names()
            long = [asyncio.create_task(stream(session, penstock.url, 200)) for _ in range(STREAMS)]
            asking = asyncio.create_task(ask_on(penstock.url, endpoints, wrong))
            await churn(endpoints, LASTS_S)
            await asyncio.sleep(WITHIN_S)
            assert await used(penstock) == endpoints.names()
            asking.cancel()
            assert all(whole for _, whole in await asyncio.gather(*long))
        assert not wrong
        grown = resident_bytes(penstock.process.pid) - memory
        print(f"{changes / LASTS_S:.0f} changes/s of {SLICES * IN_SLICE} endpoints cost")
        print(f"{busy - still:.3f} of a core ({still:.3f} without), {grown / 2**20:.1f} MiB more")
        assert grown < 64 * 2**20
