"""Paths that are no API of their own, through penstock to a real vLLM."""

from typing import Any

import aiohttp
import pytest

from tests.e2e.process import Penstock
from tests.vllm.server import MODEL

TURN = [{"role": "user", "content": "Tell me of rivers."}]
EXACT = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
# What differs between two answers to one question.
OWN = ("id", "created")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions/batch",
            {"messages": [TURN, TURN], "temperature": 0, "max_tokens": 8},
        ),
        ("/generative_scoring", {"query": "Is it?", "items": ["a", "b"], "label_token_ids": [5]}),
        ("/invocations", {"messages": TURN} | EXACT),
        ("/invocations", {"prompt": "A river"} | EXACT),
    ],
)
async def test_an_answer_is_the_backends(
    penstock: Penstock, path: str, body: dict[str, Any]
) -> None:
    direct = (await penstock.backends())[0]["url"]
    answers = []
    async with aiohttp.ClientSession() as session:
        for url in (direct, penstock.url):
            async with session.post(url + path, json={"model": MODEL} | body) as answer:
                assert answer.status == 200
                told = await answer.json()
                answers.append({name: told[name] for name in told if name not in OWN})
    assert answers[0] == answers[1]
    tokens = answers[0]["usage"]["prompt_tokens"]
    assert f'prompt_tokens_total{{pool="default"}} {tokens}' in await penstock.metrics()


async def test_a_stream_invoked_ends_as_that_of_its_api(penstock: Penstock) -> None:
    """Its usage is asked for and hidden; the head names the model, for vLLM reads no other."""
    body = {"messages": TURN, "stream": True} | EXACT
    named = {"x-amzn-sagemaker-adapter-identifier": MODEL}
    async with (
        aiohttp.ClientSession() as session,
        session.post(penstock.url + "/invocations", json=body, headers=named) as answer,
    ):
        assert answer.status == 200
        stream = await answer.read()
    assert stream.endswith(b"data: [DONE]\n\n")
    assert b'"usage":{' not in stream
    assert 'completion_tokens_total{pool="default"} 8' in await penstock.metrics()
