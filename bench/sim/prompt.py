"""Prompts: what a request's input becomes before the engine sees it.

A conversation has one canonical rendering, whichever API it came through, so the answer to it
can be foretold with `expected(render(messages), tokens)`. Parts that are not text (images,
audio) enter it as a hash and are charged a constant number of tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

from penstock.bench.sim.text import TOKEN_BYTES, detokenize, token_count, tokenize

MEDIA_PART_TOKENS: Final = 576
"""A picture of 336 x 336 pixels in patches of 14: a common size."""

_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})


@dataclass(slots=True)
class Prompt:
    """The bytes a model reads, and what they cost."""

    text: bytes
    tokens: int
    by_ids: bool = False

    @classmethod
    def from_text(cls, text: str) -> "Prompt":
        raw = text.encode()
        return cls(raw, max(1, token_count(raw)))

    @classmethod
    def from_ids(cls, token_ids: list[int]) -> "Prompt":
        return cls(detokenize(token_ids), max(1, len(token_ids)), by_ids=True)

    @classmethod
    def from_messages(
        cls, messages: Iterable[Mapping[str, Any]], tools: Any = None, *, unfinished: bool = False
    ) -> "Prompt":
        messages = list(messages)
        raw = render(messages, tools, unfinished=unfinished).encode()
        media = sum(map(_media_parts, messages))
        return cls(raw, token_count(raw) + media * MEDIA_PART_TOKENS)

    def block_hashes(self, block_tokens: int) -> list[int]:
        """A hash for each full block of tokens, of it and all before it."""
        size = block_tokens * TOKEN_BYTES
        hashes: list[int] = []
        so_far = 0
        for start in range(0, len(self.text) - size + 1, size):
            so_far = hash((so_far, self.text[start : start + size]))
            hashes.append(so_far)
        return hashes

    def token_ids(self) -> list[int]:
        return tokenize(self.text)


def render(
    messages: Iterable[Mapping[str, Any]], tools: Any = None, *, unfinished: bool = False
) -> str:
    """The text of a conversation up to the point where the model speaks.

    `unfinished` continues the last message instead of opening a new one.
    """
    turns = [f"<|{m.get('role', 'user')}|>{_content(m)}" for m in messages]
    head = f"<|tools|>{_canonical(tools)}<|end|>" if tools else ""
    text = head + "<|end|>".join(turns)
    return text if unfinished else f"{text}<|end|><|assistant|>"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    text = "".join(map(_part, parts))
    calls = message.get("tool_calls")
    return f"{text}{_canonical(calls)}" if calls else text


def _part(part: Any) -> str:
    if part is None:
        return ""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") in _TEXT_PARTS:
        return str(part.get("text", ""))
    return f"<|part {blake2b(_canonical(part).encode(), digest_size=8).hexdigest()}|>"


def _media_parts(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    if not isinstance(content, list):
        return 0
    return sum(
        1 for p in content if isinstance(p, dict) and p.get("type", "text") not in _TEXT_PARTS
    )


def _canonical(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
