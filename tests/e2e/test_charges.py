"""What tenants are charged is what was made, whatever they ask for and however it ends."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import aiohttp
import orjson
import pytest

from tests.e2e.process import Penstock, Serve, pool_of
from tests.e2e.raw_backend import RawBackend, Script, answer
from tests.http.case import RESET

PROMPT: Final = 12

EVENTS: Final = 100

TEXT: Final = b"four"  # of one token

SEVERAL: Final = 8

_USER: Final = re.compile(rb'"user": ?"([a-z_]+)"')

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def usage(made: int, prompt: int = PROMPT, *, responses: bool = False) -> bytes:
    names = (b"input", b"output") if responses else (b"prompt", b"completion")
    return b'"usage":{"%b_tokens":%d,"%b_tokens":%d}' % (names[0], prompt, names[1], made)


def event(text: bytes, more: bytes = b"", index: int = 0) -> bytes:
    choice = b'{"index":%d,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}'
    return b'data: {"id":"c","choices":[%b]%b}\n\n' % (choice % (index, text), more)


class Maker:
    """What it has made, by kind: completion tokens, but prompt tokens of what generates none."""

    def __init__(self) -> None:
        self.raw, self.other = RawBackend(), RawBackend()
        self.raw.always = self.other.always = self._answer
        self.made: Counter[str] = Counter()
        self._over = asyncio.Event()
        self._failed: Counter[str] = Counter()
        self._ids: dict[str, str] = {}  # of responses in the background, by id

    async def start(self) -> None:
        await self.raw.start()
        await self.other.start()

    async def stop(self) -> None:
        self._over.set()
        await self.raw.stop()
        await self.other.stop()

    def _answer(self, request: bytes) -> Script:
        if request.startswith(b"GET /v1/responses/"):
            name = request.split(b"/v1/responses/")[1].split(b" ")[0].decode()
            return (self._response(name, b"completed", usage(3_600, responses=True)),)
        found = _USER.search(request)
        assert found is not None, request[-300:]
        kind = found[1].decode()
        makes: dict[str, Callable[[str, bytes], Script]] = {
            "background": self._background,
            "large": self._large,
            "embeddings": self._embeddings,
            "prompts": self._prompts,
            "messages": self._messages,
            "retried": self._retried,
        }
        make = makes.get(kind, self._stream if b'"stream": true' in request else self._plain)
        return make(kind, request)

    def _plain(self, kind: str, request: bytes) -> Script:
        self.made[kind] += 40
        counts = b"" if kind == "plain_uncounted" else b"," + usage(40)
        return (answer(b'{"choices":[{"message":{"content":"%b"}}]%b}' % (TEXT * 40, counts)),)

    def _large(self, kind: str, _: bytes) -> Script:
        self.made[kind] += 27_000
        tops = b'{"token":"four","logprob":-1.5},' * 40_000
        body = b'{"choices":[{"message":{"content":"x"},"logprobs":{"content":[%b0]}}],%b}'
        return (answer(body % (tops, usage(27_000))),)

    def _embeddings(self, kind: str, _: bytes) -> Script:
        self.made[kind] += 5_000
        body = b'{"data":[{"embedding":[%b0]}],%b}' % (b"0.0123," * 160_000, usage(0, 5_000))
        return (answer(body),)

    def _prompts(self, kind: str, _: bytes) -> Script:
        self.made[kind] += 240
        return (answer(b'{"choices":[{"text":"%b"}],%b}' % (TEXT, usage(240))),)

    def _messages(self, kind: str, _: bytes) -> Script:
        self.made[kind] += 40
        said = b'{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"end_turn",'
        return (answer(said + usage(40, responses=True) + b"}"),)

    def _retried(self, kind: str, request: bytes) -> Script:
        self._failed[kind] += 1
        return (RESET,) if self._failed[kind] % 2 else self._plain(kind, request)

    def _background(self, kind: str, _: bytes) -> Script:
        self.made[kind] += 3_600
        name = f"resp_{self.made[kind]}"
        return (self._response(name, b"queued", b'"usage":null'),)

    def _response(self, name: str, status: bytes, counts: bytes) -> bytes:
        shape = b'{"id":"%b","object":"response","status":"%b","output":[],%b}'
        return answer(shape % (name.encode(), status, counts))

    def _stream(self, kind: str, request: bytes) -> Script:
        each = SEVERAL if "several" in kind or kind == "broken" else 1
        self.made[kind] += each * EVENTS * (45 if kind == "continuous" else 1)
        steps: list[bytes | str | asyncio.Event | float] = [_HEAD]
        for number in range(1, EVENTS + 1):
            more = b"," + usage(45 * number) if kind == "continuous" else b""
            index = number % 2 if kind == "choices" else 0
            steps.append(event(TEXT * each, more, index))
            if not number % 10:
                steps.append(0.001)
        if kind == "broken":
            return (*steps, RESET)
        if "left" in kind or kind == "continuous":
            return (*steps, self._over)
        if b'"include_usage":true' in request or b'"include_usage": true' in request:
            steps.append(b'data: {"choices":[],%b}\n\n' % usage(each * EVENTS))
        return (*steps, b"data: [DONE]\n\n", "close")


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
        pool_of(name, {f"{name}-{i}": raw for i, raw in enumerate(raws)}, models=[model])
        for name, (model, raws) in servers.items()
    ]
    tenants = [
        {
            "name": kind,
            "keys": [{"key": f"key-of-{kind}"}],
            "limits": {"tokens_per_day": 60_000 * EACH},
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
            found = parse_tenants(await got.read())
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


async def test_requests_are_charged_for_what_was_made(
    makers: tuple[Maker, Maker, RawBackend], serve: Serve
) -> None:
    for kind, made, counted, prompts, requests, charged in await charges(serve, makers):
        assert requests == EACH, kind
        assert counted == pytest.approx(made, rel=0.01), kind
        if kind not in ("embeddings", "plain_uncounted", "several_open", "broken", *LEAVES):
            assert prompts == EACH * PROMPT, kind
        whole = prompts + (0 if kind == "embeddings" else counted)
        assert charged == pytest.approx(whole, rel=0.01, abs=EACH + 30), kind


def parse_tenants(listing: bytes) -> dict[str, dict[str, int]]:
    """By tenant: what it has used, and what is gone of its budget of tokens."""
    found = {}
    for tenant in orjson.loads(listing):
        sums: Counter[str] = Counter()
        for model in tenant["models"]:
            sums.update({name: each for name, each in model.items() if name != "model"})
        for budget in tenant["budgets"]:
            sums["charged"] += budget["allowed"] - budget["left"]
        found[tenant["name"]] = dict(sums)
    return found
