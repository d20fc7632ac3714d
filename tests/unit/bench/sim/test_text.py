"""The simulated model's words: reproducible, and a function of all text before them."""

import json
from typing import Any

import pytest

from penstock.bench.sim.prompt import MEDIA_PART_TOKENS, Prompt, render
from penstock.bench.sim.text import VOCABULARY, Voice, detokenize, expected, tokenize

HELLO = [{"role": "user", "content": "hello"}]


def test_the_same_prompt_gives_the_same_text_and_another_prompt_another() -> None:
    assert expected("a prompt", 30) == expected("a prompt", 30)
    assert expected("a prompt", 30) != expected("b prompt", 30)
    assert expected("a prompt", 30, choice=1) != expected("a prompt", 30)


def test_a_continuation_of_a_partial_answer_equals_the_unbroken_one() -> None:
    voice = Voice(b"prompt")
    whole = [voice.speak() for _ in range(60)]
    for cut in range(60):
        said = b"".join(token.raw for token in whole[:cut])
        rest = b"".join(token.raw for token in whole[cut:]).decode()
        assert expected(b"prompt" + said, 60 - cut) == rest


def test_the_vocabulary_is_distinct_short_and_holds_its_own_json_form() -> None:
    assert len({token.raw for token in VOCABULARY}) == len(VOCABULARY) == 1_024
    for token in VOCABULARY:
        assert json.loads(b'"%b"' % token.json) == token.raw.decode()
        assert len(token.raw) <= 7
        assert token.token_id < 2**63
    mean_bytes = sum(len(token.raw) for token in VOCABULARY) / 1_024
    assert mean_bytes == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("text", ["", "abc", "four", "hello wörld 🚰", "a" * 33])
def test_token_ids_turn_back_into_the_text(text: str) -> None:
    ids = tokenize(text.encode())
    assert detokenize(ids) == text.encode()
    assert len(ids) == -(-len(text.encode()) // 4)


def test_ids_of_prompt_and_answer_continue_like_their_text() -> None:
    voice = Voice(b"prompt")
    said = [voice.speak() for _ in range(5)]
    prompt = Prompt.from_ids(tokenize(b"prompt") + [token.token_id for token in said])
    assert expected(prompt.text, 1) == voice.speak().raw.decode()
    assert prompt.tokens == 2 + 5


def test_ids_that_are_no_text_are_prompts_all_the_same() -> None:
    assert Prompt.from_ids([0, 17, 999]).tokens == 3
    assert Prompt.from_ids([1, 2]).text != Prompt.from_ids([2, 1]).text


@pytest.mark.parametrize(
    "content",
    [
        "hello",
        [{"type": "text", "text": "hello"}],
        [{"type": "input_text", "text": "hel"}, {"type": "output_text", "text": "lo"}],
    ],
)
def test_one_conversation_has_one_rendering(content: Any) -> None:
    message = {"content": content, "role": "user", "name": None}
    assert render([message]) == render(HELLO) == "<|user|>hello<|end|><|assistant|>"


def test_a_continued_last_message_renders_like_the_partial_answer() -> None:
    partial = [*HELLO, {"role": "assistant", "content": " mod ceg"}]
    assert render(partial, unfinished=True) == render(HELLO) + " mod ceg"


def test_pictures_cost_a_constant_and_change_the_answer() -> None:
    def picture(url: str) -> Prompt:
        part = {"type": "image_url", "image_url": {"url": url}}
        return Prompt.from_messages([{"role": "user", "content": [part]}])

    short, long = picture("data:a"), picture("data:" + "b" * 100_000)
    assert short.tokens == long.tokens
    assert MEDIA_PART_TOKENS < short.tokens < MEDIA_PART_TOKENS + 30
    assert short.text != long.text


def test_tools_are_part_of_the_prompt() -> None:
    assert render(HELLO, [{"a": 1, "b": 2}]) == render(HELLO, [{"b": 2, "a": 1}]) != render(HELLO)
