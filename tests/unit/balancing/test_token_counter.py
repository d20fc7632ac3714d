"""Exact counts: tiny tokenizers of the test's own, the text of each dialect, unusable files."""

import asyncio
import base64
import threading

import orjson
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from penstock.balancing.token_counter import (
    COMMAS_MAX,
    PATTERNS,
    PIECE_CHARS,
    HuggingFace,
    Tiktoken,
    TokenizerUnusable,
    count_prompt,
    prompt_of,
)
from penstock.balancing.tokens import Measure
from penstock.proxy.data.counting import BODY_BYTES_MAX, QUEUED_BYTES_MAX, Counting


def ranks(*merges: bytes) -> bytes:
    """A ranks file: every byte, then these."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    lines = [b"%b %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    return b"\n".join(lines) + b"\n"


MERGES = ranks(b"he", b"ll", b"hell", b"hello", b" w", b" wo")


@pytest.mark.parametrize("encoding", PATTERNS)
def test_tiktoken_merges_as_its_ranks_say(encoding: str) -> None:
    counter = Tiktoken(MERGES, encoding)
    assert counter.count("hello") == 1
    assert counter.count("hello world") == 1 + 4  # " wo", r, l, d
    assert counter.count("") == 0
    assert counter.count("<|endoftext|>") == 13  # text of a client is never special


def test_a_hugging_face_tokenizer() -> None:
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    counter = HuggingFace(str(tokenizer.to_str()).encode())
    assert counter.count("hello world hello") == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"hello\n", "line 1"),
        (ranks().replace(b" 7\n", b" seven\n"), "line 8"),
        (b"\n".join(ranks().splitlines()[:250]), "6 of the 256"),
    ],
)
def test_what_is_no_ranks_file(content: bytes, said: str) -> None:
    with pytest.raises(TokenizerUnusable, match=said):
        Tiktoken(content, "cl100k_base")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff"])
def test_what_is_no_tokenizer_json(content: bytes) -> None:
    with pytest.raises(TokenizerUnusable, match=r"is not a tokenizer\.json"):
        HuggingFace(content)


def test_the_text_and_the_turns_of_every_dialect() -> None:
    function = {"type": "function", "function": {"name": "f"}}
    for fields, texts, turns in (
        ({"prompt": "a b"}, ["a b"], 1),
        ({"prompt": ["a", "b"], "model": "m", "user": "u"}, ["a", "b"], 2),
        ({"messages": [{"role": "user", "content": "a"}]}, ["a"], 1),
        (
            {
                "system": "s",
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "tool", "tool_call_id": "1", "content": "b"},
                ],
            },
            ["a", "b", "s"],
            3,
        ),
        ({"instructions": "i", "input": [{"role": "user", "content": "a"}]}, ["a", "i"], 2),
        # Tools are told the model as JSON, keys and all.
        ({"messages": [], "tools": [function]}, [orjson.dumps([function]).decode()], 0),
        ({"prompt": None, "messages": 7}, [], 1),
    ):
        assert prompt_of(orjson.dumps(fields)) == (texts, turns)
    for body in (b"", b"[]", b"{", b"\xff", b'{"prompt":' + b"[" * 5_000 + b"]" * 5_000 + b"}"):
        assert prompt_of(body) == ([], 0)


def test_inline_data_is_no_text() -> None:
    data = "QUJD" * 2_000
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "image", "source": {"type": "base64", "data": data}},
    ]
    texts, _ = prompt_of(orjson.dumps({"messages": [{"role": "user", "content": parts}]}))
    assert texts[0] == "a"
    assert sum(map(len, texts)) < 60


def test_a_body_of_countless_values_is_not_read() -> None:
    most = b'{"prompt":["a"%b]}' % (b',""' * COMMAS_MAX)
    assert prompt_of(most)[1] == COMMAS_MAX + 1
    assert prompt_of(most.replace(b'""]', b'"",""]')) == ([], 0)


class Pieces:
    """A counter that keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def count(self, text: str) -> int:
        self.seen.append(text)
        return len(text)


def test_long_texts_are_counted_in_pieces() -> None:
    counter = Pieces()
    body = orjson.dumps({"prompt": ["a" * PIECE_CHARS, "b" * PIECE_CHARS]})
    assert count_prompt(counter, body) == (2 * PIECE_CHARS + 1, 2)
    assert [len(piece) for piece in counter.seen] == [PIECE_CHARS, PIECE_CHARS, 1]
    assert count_prompt(counter, b'{"prompt":[1,2]}') is None


class Slow:
    """A counter that waits until it is let go, and what was counted by it."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.done = asyncio.Event()
        self.counted = 0
        self.counting = Counting(asyncio.get_running_loop(), self)
        self.answers: list[Measure | None] = []

    def count(self, text: str) -> int:
        self.go.wait(10)
        if text == "secret":
            raise RuntimeError(text)
        self.counted += 1
        return len(text)

    def answer(self, result: Measure | None) -> None:
        self.answers.append(result)
        if self.counting.queued_bytes == 0:
            self.done.set()

    async def finish(self) -> None:
        self.go.set()
        await self.done.wait()


async def test_the_queue_is_bounded_and_a_failure_is_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Slow()
    counting = slow.counting
    assert counting.submit(b" " * (BODY_BYTES_MAX + 1), "a", slow.answer) is None
    assert counting.submit(b'{"prompt":"secret"}', "a", slow.answer)
    body = b'{"prompt":"a","pad":"%b"}' % (b" " * 50_000)
    for client in ("a", "b", "c"):  # each one has half of what is left
        while counting.submit(body, client, slow.answer):
            assert counting.queued_bytes <= QUEUED_BYTES_MAX
    assert counting.queued_bytes > 7 / 8 * QUEUED_BYTES_MAX - 3 * len(body)
    assert counting.submit(b'{"prompt":"a"}', "d", slow.answer)
    await slow.finish()
    assert slow.answers == [None] + [(1.0, 1.0)] * (len(slow.answers) - 1)
    assert len(slow.answers) > 12
    assert counting.submit(body, "a", slow.answer) is not None  # there is room again
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    counting.close()


async def test_clients_have_turns() -> None:
    slow, order = Slow(), list[str]()
    for client in ("a", "a", "a", "b"):

        def answer(result: Measure | None, client: str = client) -> None:
            order.append(client)
            slow.answer(result)

        assert slow.counting.submit(b'{"prompt":"a"}', client, answer)
    slow.counting.close()  # what waits is still counted
    await slow.finish()
    assert order == ["a", "a", "b", "a"]


async def test_what_nobody_waits_for_is_not_counted() -> None:
    slow = Slow()
    for _ in range(3):
        count = slow.counting.submit(b'{"prompt":"a"}', "a", slow.answer)
        assert count is not None
        count.cancel()
    assert slow.counting.submit(b'{"prompt":"ab"}', "a", slow.answer)
    await slow.finish()
    assert slow.answers == [(2.0, 1.0)]
    assert slow.counted <= 2  # the first may have begun
    assert slow.counting.queued_bytes == 0
    slow.counting.close()
