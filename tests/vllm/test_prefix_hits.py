"""Conversations before two real servers: what their prefix caches find, by their own counters.

Three times the same conversations, in words that no run shares with another: each kept at one
server by hand (perfect stickiness), placed by `least_tokens`, and by `token_cost`, which is told
nothing of conversations. Where the first turns fall is chance in part, so one run's imbalance lies
anywhere from 1.0 to 1.9 under either policy: it is the mean of several that is compared.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any

import aiohttp

from tests.e2e.process import Serve
from tests.vllm.server import MODEL, VllmServer

SEEDS = range(1, 11)
CONVERSATIONS = 16
WORDS = ["river", "stone", "cloud", "letter", "window", "garden", "winter", "morning", "paper"]
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
WORK = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
# By how much `token_cost` may load its busiest server more than `least_tokens`. Measured 17 and 7
# times, the means were 1.23 and 1.14, a ratio of 1.075; one time has a standard error of 0.06.
MOST_UNEVEN = 1.2


@dataclass
class Seen:
    """Of one way to place them: tokens looked for and found in all runs, and each run's load of the
    busiest server by the mean's, in tokens of prompts and answers."""

    queries: float = 0.0
    hits: float = 0.0
    imbalances: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries

    @property
    def imbalance(self) -> float:
        return fmean(self.imbalances)

    def add(self, before: list[dict[str, float]], after: list[dict[str, float]]) -> None:
        work = []
        for one, other in zip(before, after, strict=True):
            grown = {name: other[name] - one[name] for name in one}
            self.queries += grown[QUERIES]
            self.hits += grown[HITS]
            work.append(sum(grown[name] for name in WORK))
        self.imbalances.append(max(work) / fmean(work))


async def counters(servers: list[VllmServer]) -> list[dict[str, float]]:
    names = (HITS, QUERIES, *WORK)
    return [
        {name: await asyncio.to_thread(server.gauge, name) for name in names} for server in servers
    ]


def text(rng: Random, least: int, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


async def converse(url: str, name: str, seed: str) -> None:
    """Turns that each repeat all before; the answers are what the server said."""
    rng = Random(seed)
    messages = [{"role": "system", "content": f"{name}: {text(rng, 20, 80)}"}]
    async with aiohttp.ClientSession() as session:
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        for _ in range(rng.randint(4, 9)):
            messages.append({"role": "user", "content": text(rng, 20, 120)})
            body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 16}
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                said = (await answer.json())["choices"][0]["message"]["content"] or ""
            messages.append({"role": "assistant", "content": said})
            await asyncio.sleep(rng.uniform(0.0, 0.5))


async def run(urls: list[str], way: str, seed: int) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(CONVERSATIONS):
            name = f"{way} {seed} {number}"
            url = urls[number % len(urls)]
            group.create_task(converse(url, name, f"{seed} {number}"))


async def test_token_cost_finds_what_perfect_stickiness_finds(
    servers: list[VllmServer], serve: Serve
) -> None:
    seen = {way: Seen() for way in ("sticky", "least_tokens", "token_cost")}
    for seed in SEEDS:
        for way, sums in seen.items():
            urls = [server.url for server in servers]
            if way != "sticky":
                penstock = await serve(
                    urls, pool={"policy": way}, health={"interval_s": 0.5}, at_rest=False
                )
                urls = [penstock.url]
            before = await counters(servers)
            await run(urls, way, seed)
            sums.add(before, await counters(servers))
    for way, sums in seen.items():
        print(f"{way}: hit rate {sums.hit_rate:.3f}, imbalance {sums.imbalance:.3f}")
    assert seen["token_cost"].hit_rate >= 0.9 * seen["sticky"].hit_rate
    assert seen["token_cost"].imbalance <= MOST_UNEVEN * seen["least_tokens"].imbalance
