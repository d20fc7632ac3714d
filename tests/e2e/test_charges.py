"""What tenants are charged is what was made, whatever they ask for and however it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.making import EVENTS, PROMPT, Maker, told
from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, answer

EACH: Final = 4
USER: Final = [{"role": "user", "content": "Tell me of rivers."}]
STREAM: Final[dict[str, Any]] = {"messages": USER, "stream": True}
OPEN: Final[dict[str, Any]] = STREAM | {"stream_options": {}}
COUNTED: Final = {"include_usage": True, "continuous_usage_stats": True}
# By kind, what is asked for. Paths other than chat's are below.
KINDS: Final[dict[str, dict[str, Any]]] = {
    "streamed": STREAM,
    "choices": STREAM | {"n": 2},
    "plain": {"messages": USER},
    "plain_uncounted": {"messages": USER},
    "limited": {"messages": USER, "max_output_tokens": 1, "max_tokens": 3},
    "large": {"messages": USER, "logprobs": True, "top_logprobs": 20},
    "several_open": OPEN,
    "left": STREAM,
    "left_several": STREAM,
    "continuous": STREAM | {"stream_options": COUNTED},
    "broken": STREAM,
    "retried": {"messages": USER},
    "alias": STREAM | {"model": "alias"},
    "fallback": STREAM | {"model": "fallback"},
    "mirrored": STREAM | {"model": "mirrored"},
    "embeddings": {"input": ["one", "two"]},
    "prompts": {"prompt": ["one", "two", "three"], "n": 2},
    "messages": {"messages": USER, "max_tokens": 9},
    "background": {"input": "A story.", "background": True},
}
PATHS: Final = {
    "embeddings": "/v1/embeddings",
    "prompts": "/v1/completions",
    "messages": "/v1/messages",
    "background": "/v1/responses",
}
LEAVES: Final = ("left", "left_several", "continuous")
ROUTES: Final[list[dict[str, Any]]] = [
    {"name": "a", "match": {"model": "alias"}, "to": [{"pool": "main", "model": "sim-model"}]},
    {
        "name": "f",
        "match": {"model": "fallback"},
        "to": [{"pool": "failing", "model": "failing"}],
        "fallbacks": [{"pool": "main", "model": "sim-model", "on": ["errors", "no_backend"]}],
    },
    {
        "name": "m",
        "match": {"model": "mirrored"},
        "to": [{"pool": "main", "model": "sim-model"}],
        "mirror": {"pool": "copies", "share": 1.0},
    },
]


@pytest.fixture
async def makers() -> AsyncIterator[tuple[Maker, Maker, RawBackend]]:
    maker, copies, failing = Maker(), Maker(), RawBackend()
    failing.model = b"failing"
    failing.always = lambda _: (answer(b'{"error":"no"}', status=b"502 Bad Gateway"),)
    for each in (maker, copies, failing):
        await each.start()
    yield maker, copies, failing
    for each in (maker, copies, failing):
        await each.stop()


async def sends(session: aiohttp.ClientSession, url: str, kind: str) -> None:
    headers = {"authorization": f"Bearer key-of-{kind}"}
    body = {"model": "sim-model", "user": kind} | KINDS[kind]
    path = PATHS.get(kind, "/v1/chat/completions")
    async with session.post(url + path, json=body, headers=headers) as got:
        assert got.status == 200, await got.text()
        if kind in LEAVES:
            seen = 0
            while seen < EVENTS:
                seen += (await got.content.readany()).count(b"data:")
            got.close()
            return
        with suppress(aiohttp.ClientPayloadError):  # broken
            await got.read()
        if kind == "background":
            address = f"{url}{path}/{(await got.json())['id']}"
            async with session.get(address, headers=headers) as found:
                assert (await found.json())["status"] == "completed"


async def charges(serve: Serve, makers: tuple[Maker, Maker, RawBackend]) -> list[tuple[Any, ...]]:
    """By kind: made tokens of answers, those counted, prompts, requests, and the whole charge."""
    maker, copies, failing = makers
    servers = {
        "main": ("sim-model", [maker.raw, maker.other]),
        "copies": ("copies", [copies.raw]),
        "failing": ("failing", [failing]),
    }
    pools = [
        {
            "name": name,
            "models": [model],
            "backends": [{"name": f"{name}-{i}", "url": raw.url} for i, raw in enumerate(raws)],
        }
        for name, (model, raws) in servers.items()
    ]
    tenants = [
        {
            "name": kind,
            "keys": [{"key": f"key-of-{kind}"}],
            "limits": {"tokens_per_day": max(60_000, 60_000 * EACH)},
        }
        for kind in KINDS
    ]
    penstock: Penstock = await serve(
        [], ready=3, pools=pools, routes=ROUTES, tenants=tenants, at_rest=False
    )
    async with aiohttp.ClientSession() as session:
        for _ in range(EACH):
            await asyncio.gather(*[sends(session, penstock.url, kind) for kind in KINDS])
        await asyncio.sleep(0.3)
        async with session.get(f"{penstock.admin_url}/api/v1/tenants") as got:
            found = told(await got.read())
    return [
        (
            kind,
            maker.made[kind],
            found[kind]["prompt_tokens" if kind == "embeddings" else "completion_tokens"],
            found[kind]["prompt_tokens"],
            found[kind]["requests"],
            found[kind]["charged"],
        )
        for kind in KINDS
    ]


async def test_every_kind_of_request_is_charged_what_was_made(
    makers: tuple[Maker, Maker, RawBackend], serve: Serve
) -> None:
    for kind, made, counted, prompts, requests, charged in await charges(serve, makers):
        assert requests == EACH, kind
        assert counted == pytest.approx(made, rel=0.01), kind
        if kind not in ("embeddings", "plain_uncounted", "several_open", "broken", *LEAVES):
            assert prompts == EACH * PROMPT, kind
        whole = prompts + (0 if kind == "embeddings" else counted)
        assert charged == pytest.approx(whole, rel=0.01, abs=EACH + 30), kind
