"""Prompts that are no text: token ids on vLLM's own path, and embeddings."""

import base64

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.outline import LARGE_BYTES
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import NOTHING, TokenEstimator

GENERATE = "/inference/v1/generate"


def read(path: str, **members: object) -> Ask:
    reader = Reader(TokenEstimator(), prefixes=True, caps=True)
    return reader.read(path, [], orjson.dumps({"model": "m"} | members), GENERATION)


@pytest.mark.parametrize("count", [1, 700, LARGE_BYTES])
def test_token_ids_are_counted(count: int) -> None:
    params = {"max_tokens": 9, "n": 3, "temperature": 0.5}
    ask = read(GENERATE, token_ids=[5] * count, sampling_params=params, stream=True)
    assert (ask.prompt_tokens, ask.prompts, ask.choices) == (count, 1, 3)
    assert (ask.model, ask.max_tokens, ask.stream) == ("m", 9, True)
    assert ask.measured == NOTHING
    assert ask.uncut
    assert ask.usage_options == b'{"include_usage":true}'


def test_token_ids_with_one_beginning_share_a_cache() -> None:
    first, other = (read(GENERATE, token_ids=[*range(2_000), last]) for last in (7, 8))
    assert first.blocks[:-1] == other.blocks[:-1]
    assert first.blocks


@pytest.mark.parametrize("params", [{}, {"max_tokens": None, "n": None}, {"temperature": "x"}])
def test_sampling_parameters_without_a_limit(params: object) -> None:
    ask = read(GENERATE, token_ids=[1, 2], sampling_params=params)
    assert (ask.max_tokens, ask.choices) == (None, 1)


def test_a_limit_at_the_top_means_nothing_there() -> None:
    assert read(GENERATE, token_ids=[1], max_tokens=5).max_tokens is None


@pytest.mark.parametrize("tokens", [1, 400, 5_000])
def test_embeddings_count_by_their_size_and_are_never_too_long(tokens: int) -> None:
    """4,096 values of two bytes each for a token."""
    embeds = base64.b64encode(bytes(tokens * 8_192)).decode()
    ask = read("/v1/completions", prompt_embeds=embeds, max_tokens=5)
    assert ask.prompt_tokens == pytest.approx(tokens, rel=0.01, abs=1)
    assert not ask.uncut
    assert ask.measured == NOTHING
    with_text = read("/v1/completions", prompt_embeds=[embeds], prompt="word " * 400)
    assert tokens + 300 < with_text.prompt_tokens < tokens + 800


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_other_paths_read_no_embeddings(path: str) -> None:
    members = {"messages": [], "input": "x"}
    known = read(path, **members)
    other = read(path, prompt_embeds="A" * 100_000, **members)
    assert (other.prompt_tokens, other.uncut) == (known.prompt_tokens, known.uncut)


@pytest.mark.parametrize("given", [None, "", []])
def test_no_embeddings(given: object) -> None:
    text = read("/v1/completions", prompt="word " * 400)
    ask = read("/v1/completions", prompt="word " * 400, prompt_embeds=given)
    assert ask.prompt_tokens == text.prompt_tokens
    assert ask.uncut
