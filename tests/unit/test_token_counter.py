"""Exact counts: tiny tokenizers of the test's own, the text of each dialect, unusable files."""

import asyncio
import base64
import threading

import orjson
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from balancing.token_counter import (
    PATTERNS,
    HuggingFace,
    Tiktoken,
    TokenizerUnusable,
    texts_of,
)
from balancing.tokens import MODELS_MAX, ContentClass, TokenEstimator
from proxy.counting import BODY_BYTES_MAX, QUEUE_MAX, Counting


def ranks(*merges: bytes) -> bytes:
    """A ranks file: every byte, then these."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    lines = [b"%b %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    return b"\n".join(lines) + b"\n"


MERGES = ranks(b"he", b"ll", b"hell", b"hello", b" w", b" wo")


def whitespace_tokenizer() -> bytes:
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str()).encode()


@pytest.mark.parametrize("encoding", PATTERNS)
def test_tiktoken_merges_as_its_ranks_say(encoding: str) -> None:
    counter = Tiktoken(MERGES, encoding)
    assert counter.count(["hello"]) == 1
    assert counter.count(["hello world"]) == 1 + 4  # " wo", r, l, d
    assert counter.count(["he", "llo"]) == 1 + 2
    assert counter.count([]) == 0
    assert counter.count(["<|endoftext|>"]) == 13  # text of a client is never special


def test_a_hugging_face_tokenizer() -> None:
    counter = HuggingFace(whitespace_tokenizer())
    assert counter.count(["hello world", "hello"]) == 3


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
    with pytest.raises(TokenizerUnusable, match=r"is no tokenizer\.json"):
        HuggingFace(content)


def test_the_text_of_every_dialect() -> None:
    for fields, texts in (
        ({"prompt": "a b"}, ["a b"]),
        ({"prompt": ["a", "b"], "model": "m", "user": "u"}, ["a", "b"]),
        ({"messages": [{"role": "user", "content": "a"}]}, ["a"]),
        (
            {
                "system": "s",
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "tool", "tool_call_id": "1", "content": "b"},
                ],
            },
            ["a", "b", "s"],
        ),
        ({"instructions": "i", "input": [{"role": "user", "content": "a"}]}, ["a", "i"]),
        ({"messages": [], "tools": [{"type": "function", "function": {"name": "f"}}]}, ["f"]),
        ({"prompt": [1, 2, 3]}, []),
        ({"prompt": None, "messages": 7}, []),
    ):
        assert texts_of(orjson.dumps(fields)) == texts
    for body in (b"", b"[]", b"{", b"\xff", b'{"prompt":' + b"[" * 5_000 + b"]" * 5_000 + b"}"):
        assert texts_of(body) == []


def test_what_the_template_adds_is_learnt_per_model() -> None:
    estimator = TokenEstimator()
    assert estimator.counted("m", 100) == 100
    assert estimator.counted("m", 0) == 1
    for _ in range(50):
        estimator.observe_counted("m", 100, 125)
    assert estimator.counted("m", 1_000) == 1_025
    assert estimator.counted("other", 1_000) == 1_000
    for _ in range(100):
        estimator.observe_counted("m", 100, 110)  # another template
    assert estimator.counted("m", 1_000) == 1_010
    for number in range(2 * MODELS_MAX):
        estimator.observe_counted(f"m{number}", 10, 20)
    assert estimator.counted(f"m{2 * MODELS_MAX - 1}", 10) == 10
    # The bytes of the same model are another matter.
    assert estimator.estimate("m", ContentClass.TEXT, 3_200) == 1_000


class Slow:
    """A counter that waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def count(self, texts: list[str]) -> int:
        self.go.wait(10)
        if texts == ["fail"]:
            raise RuntimeError
        return len(texts)


async def test_the_queue_is_bounded_and_a_failure_is_an_answer() -> None:
    counter = Slow()
    counting = Counting(asyncio.get_running_loop(), counter)
    answers: list[int | None] = []
    done = asyncio.Event()

    def counted(tokens: int | None) -> None:
        answers.append(tokens)
        if len(answers) == QUEUE_MAX:
            done.set()

    assert not counting.submit(b" " * (BODY_BYTES_MAX + 1), counted)
    assert counting.submit(b'{"prompt":"fail"}', counted)
    for _ in range(QUEUE_MAX - 1):
        assert counting.submit(b'{"prompt":"a"}', counted)
    assert not counting.submit(b'{"prompt":"a"}', counted)
    counter.go.set()
    await done.wait()
    assert answers == [None] + [1] * (QUEUE_MAX - 1)
    assert counting.submit(b'{"prompt":"a"}', counted)  # there is room again
    counting.close()
