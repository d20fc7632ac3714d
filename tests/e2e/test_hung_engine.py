"""An engine hangs while one tenant fills the fleet: the chats of another tenant are answered."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import aiohttp
import orjson
import pytest

from penstock.bench.sim.connection import Reply, Request
from penstock.bench.sim.server import SimServer
from tests.e2e.process import Serve

# Found in some two seconds. After that a request looks each five seconds.
WITHIN_S = 14.0
ATTACKER, VICTIM = "attackers-key-0123456789", "victims-key-0123456789"
HEALTH = {"interval_s": 0.2, "deep": {"interval_s": 600, "timeout_s": 0.4}}


class Engine(SimServer):
    """It says `queued` to every response in the background, also while its engine hangs."""

    hangs = False
    ids = count()

    def dispatch(self, request: Request, reply: Reply) -> None:
        if request.path == "/v1/responses":
            response = {"id": f"resp_{next(self.ids)}", "object": "response", "status": "queued"}
            reply.whole(200, orjson.dumps(response))
        elif not self.hangs or request.method != "POST":
            super().dispatch(request, reply)


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    started = [await Engine(f"sim-{each}", "instant", seed=each).start() for each in range(3)]
    yield started
    for engine in started:
        await engine.stop()


async def test_one_tenants_background_keeps_no_other_tenant_at_it(
    engines: list[Engine], serve: Serve
) -> None:
    tenants = [
        {"name": name, "keys": [{"key": key}]}
        for name, key in (("attacker", ATTACKER), ("victim", VICTIM))
    ]
    penstock = await serve(list(engines), at_rest=False, tenants=tenants, health=HEALTH)
    async with aiohttp.ClientSession() as session:

        async def posts(path: str, key: str, **body: object) -> int:
            headers = {"authorization": f"Bearer {key}"}
            body |= {"model": "sim-model", "max_output_tokens": 4000, "max_tokens": 8}
            async with session.post(penstock.url + path, headers=headers, json=body) as answer:
                await answer.read()
                return answer.status

        engines[0].hangs = True
        attack = [posts("/v1/responses", ATTACKER, input="x", background=True) for _ in range(30)]
        assert set(await asyncio.gather(*attack)) == {200}
        message = {"role": "user", "content": "hello"}
        chats = [posts("/v1/chat/completions", VICTIM, messages=[message]) for _ in range(12)]
        async with asyncio.timeout(WITHIN_S):
            assert await asyncio.gather(*chats) == [200] * 12
    told = await penstock.metrics()
    assert 'penstock_attempts_total{reason="hung"}' in told
