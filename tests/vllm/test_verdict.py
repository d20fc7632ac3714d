"""Why two real servers are slow, as a running penstock tells it: each is made so in one way."""

import asyncio
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.process import Penstock, Serve
from tests.vllm.crowd import Crowd, Wish
from tests.vllm.server import VllmServer, running

WITHIN_S: Final = 20.0
LENGTH_S: Final = 30.0
# Flags of both servers, what is asked of them, by how many clients, and the kind and its detail.
CASES: Final = {
    # Attention to 12,000 tokens takes this model a second of a core.
    "long prompts": (
        ("--max-model-len", "16384", "--max-num-batched-tokens", "2048"),
        Wish("crowd", prompt_tokens=12_000, answer_tokens=4),
        24,
        ("compute", "prefill"),
    ),
    # Six answers of 700 tokens fill a cache, and 64 streams may run.
    "long answers in small caches": (
        ("--max-model-len", "1024", "--num-gpu-blocks-override", "64"),
        Wish("crowd", prompt_tokens=100, answer_tokens=600),
        64,
        ("memory", None),
    ),
    "few sequences": (
        ("--max-model-len", "1024", "--max-num-seqs", "3"),
        Wish("crowd", prompt_tokens=100, answer_tokens=150),
        48,
        ("scheduler", "sequences"),
    ),
}


async def verdict(session: aiohttp.ClientSession, penstock: Penstock) -> dict[str, Any]:
    async with session.get(f"{penstock.admin_url}/api/v1/verdict") as answer:
        (told,) = await answer.json() or [{"kind": "none"}]
        return dict(told)


@pytest.mark.parametrize("name", CASES)
async def test_what_is_told(
    name: str, serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flags, wish, clients, (kind, detail) = CASES[name]
    folder = tmp_path_factory.mktemp("verdict")
    with running([VllmServer(folder / f"{i}.log", *flags) for i in range(2)]) as servers:
        penstock = await serve([each.url for each in servers])
        async with aiohttp.ClientSession() as session, Crowd(penstock.url, seed=1) as crowd:
            await crowd.closed(Wish("crowd", answer_tokens=20), clients=1, seconds=5)
            assert (await verdict(session, penstock))["kind"] == "fine"
            loop = asyncio.get_running_loop()
            began_s, told = loop.time(), list[tuple[float, dict[str, Any]]]()
            asking = asyncio.create_task(crowd.closed(wish, clients, LENGTH_S))
            while loop.time() < began_s + LENGTH_S:
                told.append((loop.time() - began_s, await verdict(session, penstock)))
                await asyncio.sleep(0.5)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        seen = [f"{at_s:.0f} s {each['kind']} {each.get('detail')}" for at_s, each in told]
        print("\n".join(dict.fromkeys(each.split(" s ")[1] for each in seen)))
        first_s = next((at_s for at_s, each in told if each["kind"] == kind), None)
        print(f"{name}: {kind} after {first_s} s: {told[-1][1]['sentence']}")
        late = [each for at_s, each in told if at_s >= WITHIN_S]
        right = [each for each in late if each["kind"] == kind and detail in (None, each["detail"])]
        assert late, "the machine had no time for a look"
        assert len(right) == len(late), seen
