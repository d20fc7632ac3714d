"""What tenants are charged, replayed from what the servers did for them."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from time import monotonic
from typing import Any

import aiohttp

from penstock.bench.sim.instance import Work
from penstock.bench.sim.server import SimServer
from tests.e2e.answers import BODIES
from tests.e2e.process import Penstock, Serve, Simulate

REQUESTS = 350  # of each tenant
AT_ONCE = 25
TOKENS_PER_DAY = 86_400  # one a second
TENANTS = ("whole", "broken", "leaving")


def key_of(tenant: str) -> str:
    return f"sk-{tenant}-5f2c91"


# In a line of a stream: it has a token. An answer's first event has none, and its last repeat them.
TOKEN = re.compile(rb'^(?!.*"type":"response.*(done|completed)").*"(content|text|delta)":"[^"]')


class Streams:
    """Streams of one tenant, over all APIs. `leaves`: its clients go after some of the events.

    `sent`: how many. `seen_tokens`: of answers, by their clients.
    """

    def __init__(self, penstock: Penstock, tenant: str, rng: Random, *, leaves: bool) -> None:
        self._penstock = penstock
        self._tenant = tenant
        self._rng = rng
        self._leaves = leaves
        self.sent = 0
        self.seen_tokens = 0

    async def send(self, session: aiohttp.ClientSession) -> None:
        rng = self._rng
        self.sent += 1
        path = rng.choice(list(BODIES))
        field = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body = BODIES[path] | {"stream": True, field: rng.randint(4, 40)}
        headers = {
            "authorization": f"Bearer {key_of(self._tenant)}",
            "x-request-id": f"{self._tenant}-{self.sent}",
        }
        stays_lines = rng.randint(1, 60) if self._leaves else 10**6
        url = self._penstock.url + path
        with suppress(aiohttp.ClientError):
            async with session.post(url, json=body, headers=headers) as answer:
                async for line in answer.content:
                    self.seen_tokens += bool(TOKEN.search(line))
                    stays_lines -= 1
                    if not stays_lines:
                        answer.close()
                        return

    async def send_all(self, servers: list[SimServer], faults: Iterable[str]) -> None:
        kinds = list(faults)
        async with aiohttp.ClientSession() as session:
            for _ in range(REQUESTS // AT_ONCE):
                if kinds:
                    self._rng.choice(servers).faults.set(kind=self._rng.choice(kinds), times=2)
                await asyncio.gather(*[self.send(session) for _ in range(AT_ONCE)])
        await self._penstock.until_at_rest()
        for server in servers:
            server.faults.clear()


def replay(servers: list[SimServer], tenant: str) -> tuple[int, int]:
    """By the servers' own log: the tokens of prompts, if any of their answers came, and of answers.

    A request that was tried again is charged for the attempt that answered.
    """
    attempts: dict[str, list[Work]] = defaultdict(list)
    for server in servers:
        for work in server.work:
            if work.request_id.startswith(f"{tenant}-"):
                attempts[work.request_id].append(work)
    prompt_tokens = answer_tokens = 0
    for tries in attempts.values():
        answered = [work for work in tries if work.generated_tokens]
        assert len(answered) <= 1
        for work in answered:
            prompt_tokens += work.prompt_tokens - work.cached_tokens
            answer_tokens += work.generated_tokens
    return prompt_tokens, answer_tokens


async def charged(penstock: Penstock) -> dict[str, int]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.admin_url}/api/v1/tenants") as answer,
    ):
        found: list[dict[str, Any]] = await answer.json()
        return {each["name"]: TOKENS_PER_DAY - each["budgets"][0]["left"] for each in found}


async def test_the_ledger_is_what_the_servers_logs_say(simulate: Simulate, serve: Serve) -> None:
    began_s = monotonic()
    servers = await simulate(3)
    tenants = [
        {
            "name": name,
            "keys": [{"key": key_of(name)}],
            "limits": {"tokens_per_day": TOKENS_PER_DAY},
        }
        for name in TENANTS
    ]
    penstock = await serve(servers, tenants=tenants)
    rng = Random(11)
    faults = {
        "whole": ["cut_before_headers", "busy"],
        "broken": ["cut_mid_stream", "error_event"],
        "leaving": [],
    }
    seen_tokens = {}
    for name, kinds in faults.items():
        streams = Streams(penstock, name, rng, leaves=name == "leaving")
        await streams.send_all(servers, kinds)
        seen_tokens[name] = streams.seen_tokens
    by_ledger = await charged(penstock)
    refilled = monotonic() - began_s + 1  # a token comes back each second
    # Where `usage` never came, the prompt was estimated.
    for name, off in (("whole", 0.0), ("broken", 0.02), ("leaving", 0.02)):
        prompt_tokens, answer_tokens = replay(servers, name)
        most = prompt_tokens + answer_tokens
        # An engine goes on until it notices that a client has left: nobody sees those tokens.
        least = prompt_tokens + seen_tokens[name] if name == "leaving" else most
        error = refilled + off * most
        assert least - error <= by_ledger[name] <= most + error, name
