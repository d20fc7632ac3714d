"""What two servers and the penstock before them say of their load, side by side, all the time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tests.e2e.process import Penstock
from tests.vllm.server import VllmServer

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV: Final = "vllm:kv_cache_usage_perc"
EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one moment. By server: what its engine has, and what penstock has there, just before and
    just after. By class: what waits in penstock."""

    running: list[float]
    waiting: list[float]
    kv_usage: list[float]
    held: list[int]
    queued: dict[str, int]

    @property
    def astray(self) -> list[float]:
        """By server: how many requests its engine has that penstock does not have there."""
        busy = zip(self.running, self.waiting, self.held, strict=True)
        return [running + waiting - held for running, waiting, held in busy]


class Watch:
    """Samples, as long as it runs."""

    def __init__(self, penstock: Penstock, servers: list[VllmServer]) -> None:
        self._penstock = penstock
        self._servers = servers
        self.samples: list[Sample] = []

    async def run(self) -> None:
        while True:
            self.samples.append(await self.sample())
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> Sample:
        before = await self._penstock.backends()
        names = (RUNNING, WAITING, KV)
        said = await asyncio.gather(
            *[asyncio.to_thread(each.gauges, *names) for each in self._servers]
        )
        after = await self._penstock.backends()
        held = [
            max(one["requests_in_flight"], other["requests_in_flight"])
            for one, other in zip(before, after, strict=True)
        ]
        running, waiting, usage = ([each[name] for each in said] for name in names)
        return Sample(running, waiting, usage, held, await self.queued())

    async def queued(self) -> dict[str, int]:
        found = await self._penstock.admin("queue")
        return {each["name"]: each["requests"] for each in found["classes"]}


@asynccontextmanager
async def watch(penstock: Penstock, servers: list[VllmServer]) -> AsyncIterator[Watch]:
    watching = Watch(penstock, servers)
    task = asyncio.create_task(watching.run())
    try:
        yield watching
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
