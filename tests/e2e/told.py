"""What a running process tells in /metrics, and a request that makes it tell something."""

import asyncio
from collections.abc import Callable

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.process import Penstock

PROMPT = {"prompt": "Once upon a time", "max_tokens": 4}

Samples = dict[str, float]


def samples_of(text: str) -> Samples:
    """Values by name and labels, as `name{a=1,b=2}` in the order of the labels' names."""
    return {
        f"{each.name}{{{','.join(f'{k}={v}' for k, v in sorted(each.labels.items()))}}}": each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


async def told(penstock: Penstock) -> Samples:
    return samples_of(await penstock.metrics())


async def until(penstock: Penstock, holds: Callable[[Samples], bool], within_s: float) -> Samples:
    found: Samples = {}
    try:
        async with asyncio.timeout(within_s):
            while not holds(found := await told(penstock)):
                pass  # `metrics` waits
    except TimeoutError:
        pytest.fail(str({name: value for name, value in found.items() if "backend=b" in name}))
    return found


async def complete(
    penstock: Penstock,
    session: aiohttp.ClientSession,
    path: str = "/v1/completions",
    **fields: object,
) -> int:
    async with session.post(f"{penstock.url}{path}", json=PROMPT | fields) as answer:
        await answer.read()
        return answer.status
