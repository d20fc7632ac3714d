"""Requests that wait in a real process, before simulated engines that are busy."""

import asyncio
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, Got, ask

TRUSTS = {"enabled": True, "trust_clients": True}
# Where it counts how many wait, one request runs at a time.
ONE_PLACE = {"max_requests": 1}
# Some 6,000 tokens: a tenth of a second of this engine's prefill is far less.
LONG: list[dict[str, str]] = [{"role": "user", "content": "all work and no play " * 1_150}]
PROFILE = "8b-1xa100"


async def until_waiting(penstock: Penstock, count: int) -> None:
    async with asyncio.timeout(10):
        while await waiting(penstock) != count:
            await asyncio.sleep(0.05)


async def waiting(penstock: Penstock) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.admin_url}/api/v1/queue") as answer,
    ):
        return sum(each["requests"] for each in (await answer.json())["classes"])


async def stream(penstock: Penstock, number: int, model: str = "sim-model", **headers: str) -> Got:
    """A long prompt of its own: nothing of it is cached."""
    return await ask(penstock, "/v1/chat/completions", long_body(number, model), **headers)


async def longer(penstock: Penstock, number: int, *, times: int = 1, max_tokens: int = 20) -> Got:
    """One with a prompt so many times as long, or a longer answer."""
    body = long_body(number, times=times) | {"max_tokens": max_tokens}
    return await ask(penstock, "/v1/chat/completions", body)


def long_body(number: int, model: str = "sim-model", *, times: int = 1) -> dict[str, Any]:
    content = f"{number} " + times * LONG[0]["content"]
    messages = [{"role": "user", "content": content}]
    return CHAT | {"model": model, "messages": messages, "stream": True}


def engine_queue(server: SimServer) -> int:
    return server.engine.waiting


async def test_what_is_too_much_waits_in_the_proxy_and_all_of_it_is_answered(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(2, profile=PROFILE)
    penstock = await serve(servers, admission=TRUSTS)
    answers = [asyncio.create_task(stream(penstock, number)) for number in range(24)]
    longest = 0
    while not all(answer.done() for answer in answers):
        longest = max(longest, *map(engine_queue, servers))
        await asyncio.sleep(0.01)
    assert {(await answer).status for answer in answers} == {200}
    assert longest <= 2  # one that is computed, and one beforehand
    assert await waiting(penstock) == 0
    metrics = await penstock.metrics()
    assert 'penstock_queue_wait_seconds_count{priority="standard"}' in metrics
    assert 'penstock_queued_requests{priority="standard"} 0.0' in metrics


async def test_clients_that_leave_while_they_wait_cost_the_engine_nothing(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission=TRUSTS, pool=ONE_PLACE)
    first = asyncio.create_task(longer(penstock, 0, max_tokens=100))
    await asyncio.sleep(0.05)
    others = [asyncio.create_task(stream(penstock, number)) for number in range(1, 31)]
    await until_waiting(penstock, 30)
    for other in others:
        other.cancel()
    await until_waiting(penstock, 0)
    assert (await first).status == 200
    await penstock.until_at_rest()
    assert len([seen for seen in servers[0].seen if "chat" in str(seen)]) == 1


async def test_a_reload_that_ends_admission_sends_what_waits(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission=TRUSTS)
    answers = [asyncio.create_task(stream(penstock, number)) for number in range(10)]
    async with asyncio.timeout(10):
        while await waiting(penstock) < 5:
            await asyncio.sleep(0.02)
    assert (await penstock.reload(admission={"enabled": False}))[0] == 200
    await until_waiting(penstock, 0)
    async with asyncio.timeout(2):
        while engine_queue(servers[0]) < 3:
            await asyncio.sleep(0.01)
    assert {(await answer).status for answer in answers} == {200}


async def test_a_reload_with_fewer_classes_loses_nothing_that_waits(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission=TRUSTS, pool=ONE_PLACE)
    answers = [
        asyncio.create_task(stream(penstock, number, x_penstock_priority=name))
        for number, name in enumerate(["interactive", "standard", "batch"] * 2)
    ]
    await until_waiting(penstock, 5)
    classes = [{"name": "only", "max_wait_s": 60}]
    changed = {"admission": TRUSTS | {"classes": classes, "default_class": "only"}}
    assert (await penstock.reload(**changed))[0] == 200
    assert {(await answer).status for answer in answers} == {200}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_refusal_says_when_to_come_back(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(1, profile=PROFILE)
    classes = [{"name": "standard", "max_wait_s": 1.0}]
    penstock = await serve(servers, admission={"enabled": True, "classes": classes})
    crowd = range(4)  # one of them keeps the engine busy for a second and a half
    answers = [asyncio.create_task(longer(penstock, number, times=3)) for number in crowd]
    await asyncio.sleep(0.3)
    body: dict[str, Any] = CHAT | {"messages": LONG, "max_tokens": 5}
    got = await ask(penstock, path, body)
    assert got.status == 429
    assert 1 <= int(got.headers["retry-after"]) <= 59
    assert int(got.headers["retry-after-ms"]) > 0
    assert "x-should-retry" not in got.headers
    kinds = {(await answer).status for answer in answers}
    assert kinds == {200, 429}
    assert 'penstock_shed_total{priority="standard",reason="wait"}' in await penstock.metrics()


async def test_sdks_come_back_when_they_are_told_to(simulate: Simulate, serve: Serve) -> None:
    """They try again after Retry-After, and get their answers."""
    servers = await simulate(1, profile=PROFILE)
    classes = [{"name": "standard", "max_wait_s": 1.5}]
    penstock = await serve(servers, admission={"enabled": True, "classes": classes})
    options: Any = {"api_key": "k", "max_retries": 2, "timeout": 30}
    async with (
        openai.AsyncOpenAI(base_url=penstock.url + "/v1", **options) as gpt,
        anthropic.AsyncAnthropic(base_url=penstock.url, **options) as anthropic_client,
    ):
        crowd = [asyncio.create_task(longer(penstock, number, times=3)) for number in range(4)]
        await asyncio.sleep(0.2)
        messages: Any = LONG
        one = gpt.chat.completions.create(model="sim-model", messages=messages, max_tokens=3)
        two = anthropic_client.messages.create(model="sim-model", messages=messages, max_tokens=3)
        await asyncio.gather(one, two)
        await asyncio.gather(*crowd)
    refusals = [line for line in penstock.access_lines if line["error"] == "overloaded"]
    assert any(line["stream"] is False for line in refusals)  # one of the SDKs', tried again


async def test_the_higher_class_overtakes(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission=TRUSTS, pool=ONE_PLACE)
    loop = asyncio.get_running_loop()

    async def timed(number: int, name: str) -> tuple[float, str, Got]:
        got = await stream(penstock, number, x_penstock_priority=name)
        return loop.time(), name, got

    batch = [asyncio.create_task(timed(number, "batch")) for number in range(6)]
    await until_waiting(penstock, 5)
    urgent = asyncio.create_task(timed(9, "interactive"))
    ended = sorted(await asyncio.gather(*batch, urgent))
    places = [name for _, name, _ in ended]
    assert places.index("interactive") <= 1
    classes = {name: got.headers["x-penstock-priority"] for _, name, got in ended}
    assert classes == {"batch": "batch", "interactive": "interactive"}


async def test_a_prompt_far_over_the_context_is_refused_before_a_backend_reads_it(
    simulate: Simulate, serve: Serve
) -> None:
    (server,) = await simulate(1)
    penstock = await serve([server])
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key="k") as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model="sim-model", prompt="word " * 700_000)
    assert raised.value.code == "context_length_exceeded"
    assert "131072" in str(raised.value)
    assert not [each for each in server.seen if b"word word" in each.body]


# What one pool or an old file says ----------------------------------------------------------------


async def test_a_pool_without_admission_sends_at_once_beside_one_whose_requests_wait(
    simulate: Simulate, serve: Serve
) -> None:
    (careful,) = await simulate(1, profile=PROFILE, model="careful")
    (eager,) = await simulate(1, profile=PROFILE, model="eager")
    pools: list[dict[str, Any]] = [
        {"name": server.model, "backends": [{"name": server.model, "url": server.url}]}
        for server in (careful, eager)
    ]
    pools[1]["admission"] = False
    old = {"reserve": 0.2, "window_s": "1s", "hold_for_backend_s": 30}
    penstock = await serve([], ready=2, pools=pools, admission=TRUSTS | old)
    crowd = [
        asyncio.create_task(stream(penstock, number, model))
        for number in range(12)
        for model in ("careful", "eager")
    ]
    longest = {careful: 0, eager: 0}
    while not all(answer.done() for answer in crowd):
        for server in longest:
            longest[server] = max(longest[server], engine_queue(server))
        await asyncio.sleep(0.01)
    assert {(await answer).status for answer in crowd} == {200}
    assert longest[careful] <= 2
    assert longest[eager] >= 8
    warnings = [line for line in penstock.log if b"does nothing any more" in line]
    assert [line.partition(b".yaml:")[2].split(b": does")[0] for line in warnings] == [
        b"1: admission.reserve",
        b"1: admission.window_s",
    ]


async def test_its_requests_are_not_parked(serve: Serve) -> None:
    pools = [
        {"name": name, "models": [name], "admission": name == "parked", "backends": [backend]}
        for name, backend in [
            ("parked", {"name": "a", "url": "http://127.0.0.1:9"}),
            ("told", {"name": "b", "url": "http://127.0.0.1:9"}),
        ]
    ]
    penstock = await serve([], ready=0, pools=pools, admission={"hold_for_backend_s": 0.5})
    path = "/v1/chat/completions"
    parked = asyncio.create_task(ask(penstock, path, CHAT | {"model": "parked"}))
    await until_waiting(penstock, 1)
    got = await ask(penstock, path, CHAT | {"model": "told"})
    assert (got.status, parked.done()) == (503, False)
    assert (await parked).status == 503
