"""Plain forms of the members that penstock reads are taken as vLLM takes them, others refused."""

from typing import Any

import aiohttp
import orjson
import pytest

from tests.e2e.process import Penstock
from tests.vllm.server import MODEL

TURN = [{"role": "user", "content": "Tell me of rivers."}]
FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURN, "max_tokens": 3, "ignore_eos": True},
    "/v1/completions": {"prompt": "A river", "max_tokens": 3, "ignore_eos": True},
}
BOOLEANS: tuple[Any, ...] = (True, False, None)
# vLLM takes the first ones for booleans. penstock refuses all of them.
ODD: tuple[Any, ...] = (1, 1.0, "true", "TRUE", "yes", "on", "1", "t", 0, "off", 2, "", " true", [])
MODELS: tuple[Any, ...] = ("", None, "nope", " ")
OPTIONS: tuple[Any, ...] = (
    *(None, {}, {"other": 1}),
    *({"include_usage": value} for value in BOOLEANS),
    *({"continuous_usage_stats": value} for value in BOOLEANS),
    *({"include_usage": False, "continuous_usage_stats": value} for value in BOOLEANS),
    *({"include_usage": True, "continuous_usage_stats": value} for value in BOOLEANS),
)
ODD_OPTIONS: tuple[Any, ...] = (
    *([], "x", 1, True),
    *({"include_usage": value} for value in ODD),
    *({"include_usage": True, "continuous_usage_stats": value} for value in ODD),
)


async def told(
    session: aiohttp.ClientSession, url: str, path: str, **fields: Any
) -> tuple[int, bool, str, int]:
    """The status; whether it streams; how many of its events have usage, and that alone."""
    body = {"model": MODEL} | FIELDS[path] | fields
    async with session.post(url + path, json=body) as answer:
        text = await answer.read()
    events = [orjson.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
    with_usage = [event for event in events if event.get("usage")]
    alone = [event for event in with_usage if not event["choices"]]
    # Not how many events: how much comes in one chunk is the server's to decide each time.
    share = "all" if len(with_usage) == len(events) else "some" if with_usage else "none"
    return answer.status, bool(events), share, len(alone)


async def differences(penstock: Penstock, path: str, cases: list[dict[str, Any]]) -> object:
    """What is answered otherwise through penstock than direct."""
    direct = (await penstock.backends())[0]["url"]
    found: dict[str, object] = {}
    async with aiohttp.ClientSession() as session:
        for fields in cases:
            answers = [await told(session, to, path, **fields) for to in (direct, penstock.url)]
            if answers[0] != answers[1]:
                found[repr(fields)] = answers
    return found


@pytest.mark.parametrize("path", FIELDS)
async def test_plain_forms_are_taken_as_vllm_takes_them(penstock: Penstock, path: str) -> None:
    cases: list[dict[str, Any]] = [{"stream": True, "stream_options": each} for each in OPTIONS]
    cases += [{"stream": value} for value in BOOLEANS]
    cases += [{"model": value} for value in MODELS]
    assert not await differences(penstock, path, [*cases, {"model": "", "stream": True}])


@pytest.mark.parametrize("path", FIELDS)
async def test_odd_forms_are_refused(penstock: Penstock, path: str) -> None:
    cases: list[dict[str, Any]] = [{"stream": True, "stream_options": each} for each in ODD_OPTIONS]
    cases += [{"stream": value} for value in ODD]
    models: tuple[Any, ...] = (1, [])
    cases += [{"model": value} for value in models]
    async with aiohttp.ClientSession() as session:
        answers = [await told(session, penstock.url, path, **fields) for fields in cases]
    assert {status for status, *_ in answers} == {400}
