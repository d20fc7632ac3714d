"""What a classifier is asked about, in all shapes of a conversation."""

import json
from typing import Any

import orjson
import pytest

from penstock.balancing.fields import Fields
from penstock.balancing.labels import (
    GAP,
    MESSAGES_MAX,
    PARTS_MAX,
    READ_BYTES,
    conversation_of,
    question_of,
)
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.session_key import SessionKeys
from penstock.balancing.tokens import TokenEstimator
from penstock.balancing.wants import WantedFields

pytestmark = pytest.mark.once

LONG = "x" * READ_BYTES


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def asked(conversation: Any, text_bytes: int = 100) -> str:
    return question_of(memoryview(orjson.dumps(conversation)), text_bytes)


@pytest.mark.parametrize(
    "conversation",
    [
        "Hi",
        [user("Hi")],
        ["before", "Hi"],
        [{"content": "Hi", "role": "user"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        [
            user(
                [
                    {"type": "image_url", "image_url": {"url": "data:x"}},
                    {"type": "text", "text": "Hi"},
                ]
            )
        ],
        [user("before"), {"role": "assistant", "content": None, "tool_calls": []}, user("Hi")],
        [user("Hi"), {"role": "assistant", "content": "no"}, {"role": "tool", "content": "no"}],
        [user("Hi"), user([{"type": "tool_result", "content": [{"type": "text", "text": "no"}]}])],
        [user("Hi"), {"type": "function_call_output", "output": "no"}],
        [{"role": "system", "content": '{"role":"user","content":"no"}'}, user("Hi")],
        [user(LONG), user("Hi")],
        [user("{    " * 9_000), user("Hi")],
        [{"role": "tool", "content": "{    " * (READ_BYTES // 5)}, user("Hi")],
        [{"role": "system", "content": LONG}, user("Hi"), {"role": "tool", "content": "no"}],
    ],
)
def test_the_last_that_the_user_said(conversation: Any) -> None:
    assert asked(conversation) == "Hi"


@pytest.mark.parametrize(
    "conversation",
    [
        None,
        7,
        [],
        [7, 8],
        [[1, 2]],
        {"role": "user"},
        [user(None)],
        [user(7)],
        [user([{"type": "text"}])],
        [user([{"type": "image_url", "text": "no"}])],
        [{"role": ["user"], "content": "no"}],
        [{"role": "assistant", "content": "no"}],
        [user(LONG), {"role": "tool", "content": LONG}],
        [{}] * 90_000 + [user("no")],  # too many to be read in one turn
        [user("no")] + [user("")] * MESSAGES_MAX,
        [*[""] * 80_000],
    ],
)
def test_no_question(conversation: Any) -> None:
    assert asked(conversation) == ""


@pytest.mark.parametrize("raw", [b'["', b'[{"role":"user","content":"a', b'"\\ud800"', b'"\xff"'])
def test_what_is_no_json_is_no_question(raw: bytes) -> None:
    assert question_of(memoryview(raw), 100) == ""


@pytest.mark.parametrize(
    "text", ["ab" * 60, "aé" * 40, "水" * 40, "\n" * 120, "a" * 10 + "😀" * 30]
)
def test_of_a_long_text_both_ends_are_sent(text: str) -> None:
    begin, end = asked([user(text)]).split(GAP)
    assert text.startswith(begin)
    assert text.endswith(end)
    assert 47 <= len(begin.encode()) <= 50
    assert 47 <= len(end.encode()) <= 50


@pytest.mark.parametrize("char", ["a", "é", "水", "😀", "\n", '"', "\\"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_very_long_prompt_is_not_read_between_its_ends(char: str, ascii_only: bool) -> None:
    text = char * READ_BYTES
    raw = json.dumps(text, ensure_ascii=ascii_only).encode()
    for text_bytes in range(64, 80):
        begin, end = question_of(memoryview(raw), text_bytes).split(GAP)
        assert begin
        assert set(begin) == {char}
        assert end.endswith(char)
        assert len(begin.encode()) + len(end.encode()) <= text_bytes


def test_of_very_many_parts_the_first_and_last_are_looked_at() -> None:
    parts = [{"type": "text", "text": str(number)} for number in range(1_000)]
    text = asked([user(parts)], 10_000).split("\n")
    assert text == [str(n) for n in (*range(PARTS_MAX), *range(1_000 - PARTS_MAX, 1_000))]


@pytest.mark.parametrize("more", range(40))
def test_wherever_reading_begins_in_a_long_conversation(more: int) -> None:
    """In a key, in a text, between two messages."""
    many = [user(f"{number:08}") for number in range(7_500)]
    assert asked([*many, user("x" * more)]) == ("x" * more or "00007499")


def test_a_long_message_in_a_long_conversation_is_cut_like_any_other() -> None:
    text = "b" * (READ_BYTES // 2)
    assert asked([user(LONG), user(text)]) == "b" * 50 + GAP + "b" * 50


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {"messages": [user("Hi")], "prompt": "no"}, "Hi"),
        ("/v1/messages", {"messages": [user("Hi")], "tools": [{"name": "no"}]}, "Hi"),
        ("/v1/messages/count_tokens", {"messages": [user("Hi")]}, "Hi"),
        ("/v1/completions", {"prompt": "Hi"}, "Hi"),
        ("/v1/responses", {"input": "Hi", "instructions": "no"}, "Hi"),
        ("/v1/chat/completions", {"messages": [user("Hi" * 9_000)]}, ""),
        ("/v1/embeddings", {"input": "no"}, None),
        ("/v1/chat/completions", {"tools": [{"role": "user", "content": "no"}]}, None),
    ],
)
def test_the_reader_keeps_where_it_is(path: str, body: Any, expected: str | None) -> None:
    reader = Reader(
        TokenEstimator(1), sessions=SessionKeys((), (), WantedFields), wants=True, labels=True
    )
    ask = reader.read(path, (), orjson.dumps(body | {"model": "m"}), GENERATION)
    assert ask.wants is not None
    if expected is None:
        assert ask.wants.conversation is None
    else:
        assert ask.wants.conversation is not None
        question = question_of(ask.wants.conversation, 100)
        assert question == (expected or "Hi" * 25 + GAP + "Hi" * 25)


def test_without_routes_that_ask_nothing_is_kept() -> None:
    assert conversation_of("/v1/chat/completions", Fields()) is None
