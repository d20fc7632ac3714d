"""A rolling update of engines, as a cluster's controllers do it: what the streams notice."""

import asyncio
import os
from statistics import quantiles
from time import monotonic
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.api_server import ApiServer, endpoint_slice
from tests.e2e.forked import SimProcess
from tests.e2e.process import Penstock, Serve, StartSim

ENGINES: Final = 4
STREAMS: Final = 100
# Real deployments: 60 and 90.
STREAM_S: Final = float(os.environ.get("TEST_STREAM_S", "4"))
GRACE_S: Final = float(os.environ.get("TEST_GRACE_S", "6"))
TOKENS_PER_S: Final = 50


class Streams:
    """So many clients in a loop, each with one stream after the other."""

    def __init__(self, penstock: Penstock) -> None:
        self._url = f"{penstock.url}/v1/completions"
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.first_s: list[tuple[float, float]] = []  # when each began, and its time to first token
        self.broken: list[str] = []

    async def run(self) -> None:
        for number in range(STREAMS):
            self._tasks.append(asyncio.create_task(self._ask(number)))
            await asyncio.sleep(STREAM_S / STREAMS)  # they do not begin at once

    async def end(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def p99_s(self, since_s: float, until_s: float) -> float:
        times = [first_s for at_s, first_s in self.first_s if since_s <= at_s < until_s]
        return quantiles(times, n=100)[98]

    async def _ask(self, number: int) -> None:
        tokens = round(STREAM_S * TOKENS_PER_S)
        body = {"prompt": f"Stream {number}", "max_tokens": tokens, "stream": True}
        timeout = aiohttp.ClientTimeout(total=STREAM_S + 60)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._stopping:
                began_s = monotonic()
                try:
                    async with session.post(self._url, json=body) as answer:
                        first = await answer.content.readline()
                        self.first_s.append((began_s, monotonic() - began_s))
                        got = first + await answer.read()
                        whole = got.count(b'"text":') == tokens and got.endswith(b"[DONE]\n\n")
                        if answer.status != 200 or not whole:
                            self.broken.append(f"{answer.status} {got[-200:]!r}")
                except (aiohttp.ClientError, TimeoutError) as error:
                    self.broken.append(repr(error))


class Controller:
    """Pods of a Service, one for each engine."""

    def __init__(self, api: ApiServer, start: StartSim) -> None:
        self._api, self._start = api, start
        self._killing: list[asyncio.Task[None]] = []
        self.pods: list[SimProcess] = []

    async def add(self) -> None:
        pod = await self._start("--profile", "steady-50")
        self.pods.append(pod)
        await self._tell(pod, ready=True)

    async def replace(self) -> None:
        """The oldest one by a new one, which is ready before the old one terminates."""
        old = self.pods[0]
        await self.add()
        self.pods.pop(0)
        await self._tell(old, ready=False)
        self._killing.append(asyncio.create_task(self._kill(old)))

    async def killed(self) -> None:
        await asyncio.gather(*self._killing)

    async def _kill(self, pod: SimProcess) -> None:
        await asyncio.sleep(GRACE_S)
        await pod.kill()
        await self._api.delete(self._name(pod))

    async def _tell(self, pod: SimProcess, *, ready: bool) -> None:
        endpoint = {
            "addresses": ["127.0.0.1"],
            "conditions": {"ready": ready, "serving": True, "terminating": not ready},
            "targetRef": {"kind": "Pod", "name": self._name(pod)},
        }
        port = int(pod.url.rpartition(":")[2])
        await self._api.put(endpoint_slice(self._name(pod), "vllm", endpoint, port=port))

    @staticmethod
    def _name(pod: SimProcess) -> str:
        return f"vllm-{pod.url.rpartition(':')[2]}"


@pytest.mark.alone
async def test_no_stream_notices_a_rolling_update(serve: Serve, sim_process: StartSim) -> None:
    async with ApiServer() as api:
        controller = Controller(api, sim_process)
        for _ in range(ENGINES):
            await controller.add()
        kubernetes = {"api_url": api.url, "namespace": "llm", "service": "vllm"}
        pool: dict[str, Any] = {"backends": []}
        pool["discover"] = {"kubernetes": kubernetes, "allow": ["127.0.0.0/8"]}
        penstock = await serve([], ready=ENGINES, pool=pool, health={"slow_start_s": 5})
        streams = Streams(penstock)
        await streams.run()
        began_s = monotonic()
        await asyncio.sleep(STREAM_S)
        updated_s = monotonic()
        for _ in range(ENGINES):
            await controller.replace()
            await asyncio.sleep(GRACE_S / ENGINES)
        await controller.killed()
        over_s = monotonic()
        before_s, during_s = streams.p99_s(began_s, updated_s), streams.p99_s(updated_s, over_s)
        await streams.end()
        print(f"{len(streams.first_s)} streams of {STREAM_S:g} s, grace {GRACE_S:g} s")
        print(f"broken {len(streams.broken)}, TTFT p99 {before_s:.3f} s, then {during_s:.3f} s")
        assert not streams.broken, streams.broken[:3]
        assert {each["name"] for each in await penstock.backends() if not each["removed"]} == {
            f"default.vllm-{each.url.rpartition(':')[2]}" for each in controller.pods
        }
