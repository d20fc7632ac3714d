"""One name that two real vLLM servers with different models answer for, half of the requests each.

Through the SDK, and as bytes: what comes through the name is what the server itself says, but for
ids and times. When one server dies, the other one answers.
"""

import asyncio
import operator
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx2
import openai
import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.routed import Kept
from tests.vllm.server import MODEL_FOLDER, OTHER_FOLDER, VENV, VllmServer, running

pytestmark = pytest.mark.skipif(
    not (VENV / "bin" / "vllm").exists() or not (OTHER_FOLDER / "config.json").exists(),
    reason=f"no vLLM in {VENV}, or no model in {OTHER_FOLDER}: run this by `make test-vllm`",
)

ALIAS: Final = "gpt-either"
FOLDERS: Final = {"tiny-llama": MODEL_FOLDER, "tiny-qwen2": OTHER_FOLDER}
FLAGS: Final = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
QUESTION: Final = 'Tell me of rivers, 水 and "bridges".'
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "open_lock",
        "parameters": {
            "type": "object",
            "properties": {"open": {"type": "boolean"}, "lock": {"enum": ["north", "south"]}},
            "required": ["open", "lock"],
            "additionalProperties": False,
        },
    },
}
CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": QUESTION}]}
# The same words each time, and all of them.
EXACT: Final[dict[str, Any]] = {
    "max_tokens": 16,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}
# A model without weights calls a tool only if its grammar leaves nothing else.
CALLS: Final[dict[str, Any]] = CHAT | {
    "max_tokens": 64,
    "temperature": 0,
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "open_lock"}},
}
USAGE: Final[dict[str, Any]] = {"stream_options": {"include_usage": True}}
# The resource of the SDK, and what is asked.
ASKS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("chat.completions", CHAT | EXACT),
    "chat, streamed": ("chat.completions", CHAT | EXACT | {"stream": True}),
    "chat, streamed with usage": ("chat.completions", CHAT | EXACT | USAGE | {"stream": True}),
    "tools": ("chat.completions", CALLS),
    "tools, streamed": ("chat.completions", CALLS | {"stream": True}),
    "completion": ("completions", {"prompt": QUESTION} | EXACT),
    "completion, streamed": ("completions", {"prompt": QUESTION, "stream": True} | EXACT),
}
# What differs between two answers to one question. The fingerprint stands in the last event of a
# stream, which has the usage that penstock asks for and hides.
_OWN: Final = re.compile(rb'"created":\d+|"id":"[^"]*"')
_FINGERPRINT: Final = re.compile(rb',"system_fingerprint":"[^"]*"')
REQUESTS_MAX: Final = 40  # until both have answered: 2**-39 that one of them has not
# An engine may make two tokens before its API server tells of the first. They come as one event.
TRIES_MAX: Final = 5


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, VllmServer]]:
    """A server of each model, by its name."""
    logs = tmp_path_factory.mktemp("vllm")
    servers = {
        name: VllmServer(logs / f"{name}.log", *FLAGS, models=[name], folder=folder)
        for name, folder in FOLDERS.items()
    }
    with running(list(servers.values())):
        yield servers


@pytest.fixture
async def penstock(both: dict[str, VllmServer], serve: Serve) -> Penstock:
    for server in both.values():
        if not server.running:
            server.start()
        await asyncio.to_thread(server.wait)
    places = [{"pool": name, "model": name} for name in both]
    route = {
        "name": "either",
        "match": {"model": ALIAS},
        "to": [place | {"weight": 50} for place in places],
        "sticky": "request",
        "fallbacks": [place | {"on": ["no_backend", "errors"]} for place in places],
    }
    pools = [
        {"name": name, "models": [name], "backends": [{"name": f"{name}-0", "url": server.url}]}
        for name, server in both.items()
    ]
    return await serve([], ready=2, pools=pools, routes=[route], health={"interval_s": 0.5})


@pytest.fixture
async def gpt(penstock: Penstock) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(penstock.url, Kept()) as sdk:
        yield sdk


def client(url: str, kept: Kept) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="k",
        max_retries=0,
        timeout=120,
        http_client=httpx2.AsyncClient(transport=kept, timeout=120),
    )


async def says(url: str, model: str, resource: str, **ask: Any) -> tuple[list[Any], Kept]:
    """What the SDK makes of the answer, or of each event of it, and the bytes."""
    kept = Kept()
    async with client(url, kept) as sdk:
        answer = await operator.attrgetter(resource)(sdk).create(model=model, **ask)
        said = [each async for each in answer] if ask.get("stream") else [answer]
    return said, kept


def told(kept: Kept, ask: dict[str, Any]) -> list[bytes]:
    """The events of an answer, or its body, without what is its own."""
    got = _OWN.sub(b"", kept.got)
    if ask.get("stream") and "stream_options" not in ask:
        got = _FINGERPRINT.sub(b"", got)
    return got.split(b"\n\n")


async def answered(
    penstock: Penstock, both: dict[str, VllmServer], resource: str, ask: dict[str, Any]
) -> str:
    """Ask by the alias, then ask who has answered. Returns the model."""
    for left in reversed(range(TRIES_MAX)):
        said, through = await says(penstock.url, ALIAS, resource, **ask)
        model = str(through.headers["x-penstock-model"])
        assert through.headers["x-penstock-backend"] == f"{model}-0"
        assert {each.model for each in said} == {model}
        wanted, direct = await says(both[model].url, model, resource, **ask)
        if told(through, ask) == told(direct, ask):
            break
        assert left, (told(through, ask), told(direct, ask))
        assert text_of(said) == text_of(wanted)
    assert text_of(said)
    return model


def text_of(said: list[Any]) -> str:
    """What the model said, and with what it called a tool."""
    text = ""
    for choice in [each.choices[0] for each in said if each.choices]:
        part = getattr(choice, "delta", None) or getattr(choice, "message", None) or choice
        text += getattr(part, "content", None) or getattr(part, "text", None) or ""
        for call in getattr(part, "tool_calls", None) or ():
            text += call.function.arguments or ""
    return text


@pytest.mark.parametrize("kind", ASKS)
async def test_both_answer_and_each_as_if_it_was_asked_itself(
    penstock: Penstock, both: dict[str, VllmServer], kind: str
) -> None:
    resource, ask = ASKS[kind]
    models = set()
    for _ in range(REQUESTS_MAX):
        models.add(await answered(penstock, both, resource, ask))
        if len(models) == len(both):
            break
    assert models == set(both)


async def test_the_two_are_different(both: dict[str, VllmServer], penstock: Penstock) -> None:
    """Their random weights may make them say the same, but not as surely."""
    said = [await says(server.url, name, "completions", prompt=QUESTION, logprobs=1, **EXACT)
            for name, server in both.items()]  # fmt: skip
    sure = [answer[0].choices[0].logprobs.token_logprobs for answer, _ in said]
    assert sure[0] != sure[1]


async def test_half_of_the_requests_go_to_each(gpt: openai.AsyncOpenAI) -> None:
    ask: Any = {"prompt": "A", "max_tokens": 1}
    models = [(await gpt.completions.create(model=ALIAS, **ask)).model for _ in range(100)]
    assert 25 <= models.count("tiny-llama") <= 75  # five deviations from the mean


async def test_the_name_is_listed_beside_the_models(gpt: openai.AsyncOpenAI) -> None:
    assert {each.id async for each in gpt.models.list()} == {ALIAS, *FOLDERS}


@pytest.mark.parametrize("dead", FOLDERS)
async def test_when_one_is_killed_the_other_answers_for_all(
    penstock: Penstock, both: dict[str, VllmServer], gpt: openai.AsyncOpenAI, dead: str
) -> None:
    (alive,) = set(both) - {dead}
    both[dead].kill()
    for stream in (False, True):
        for _ in range(20):
            said, kept = await says(
                penstock.url, ALIAS, "chat.completions", stream=stream, **CHAT, **EXACT
            )
            assert kept.headers["x-penstock-model"] == alive
            assert text_of(said)
    lines = [each for each in penstock.access_lines if each["path"] == "/v1/chat/completions"]
    fell_back = {each.get("fell_back") for each in lines} - {None}
    assert fell_back
    assert fell_back <= {"errors", "no_backend"}
    assert alive in {each.id async for each in gpt.models.list()}
