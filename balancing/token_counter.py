"""Exact token counts of a prompt's text, by tiktoken or a Hugging Face tokenizer.

Both are made from the content of a local file, never from the network. Counting takes milliseconds,
so a thread calls it, not the loop. It cannot know the chat template: `tokens.TokenEstimator` learns
that.
"""

import base64
import binascii
from typing import Any, Final, Protocol

import msgspec

from penstock.balancing.media import without_media
from penstock.balancing.outline import finished
from penstock.balancing.tokens import Measure

# How two families of vocabularies cut text before merging (from the definitions in OpenAI's
# tiktoken package). A ranks file holds only the merges. Llama 3 cuts as cl100k_base does.
PATTERNS: Final = {
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    "o200k_base": "|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
}
# Where requests have their prompt, in all dialects. Tools reach the model as JSON.
_PROMPT_KEYS: Final = ("messages", "prompt", "input", "system", "instructions")
# Keys in a part of a prompt whose values are no text for the model.
_NO_TEXT_KEYS: Final = frozenset({"role", "type", "id", "tool_call_id"})
# A body with more commas is hardly text, and would become that many objects.
COMMAS_MAX: Final = 32_768
# Tokenizers hold the interpreter lock while they return their result, and cannot be stopped. Pieces
# of this size keep both below a few milliseconds.
PIECE_CHARS: Final = 16_384

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TokenizerUnusable(ValueError):
    """The tokenizer's file cannot be used. The text says why."""


class TokenCounter(Protocol):
    """Counts the tokens of up to PIECE_CHARS characters, from any thread."""

    def count(self, text: str) -> int: ...


class Tiktoken:
    """Byte-pair encoding by tiktoken, from a ranks file (lines of `BASE64 RANK`)."""

    def __init__(self, ranks: bytes, encoding: str) -> None:
        """Raises TokenizerUnusable."""
        import tiktoken  # takes half a second, so only where it is needed

        try:
            self._encoding = tiktoken.Encoding(
                encoding,
                pat_str=PATTERNS[encoding],
                mergeable_ranks=_ranks(ranks),
                special_tokens={},
            )
            self._encoding.encode_ordinary("probe")
        except (ValueError, KeyError, binascii.Error) as error:
            raise TokenizerUnusable(f"is not a tiktoken ranks file: {error}") from None

    def count(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))


class HuggingFace:
    """A `tokenizer.json`, by the `tokenizers` package."""

    def __init__(self, tokenizer: bytes) -> None:
        """Raises TokenizerUnusable."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise TokenizerUnusable(
                "needs the package tokenizers: pip install tokenizers"
            ) from None
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer)
        except Exception as error:  # noqa: BLE001 - its Rust side raises nothing narrower
            raise TokenizerUnusable(f"is not a tokenizer.json: {error}") from None

    def count(self, text: str) -> int:
        # Only the calls for batches release the interpreter lock.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return len(encoding)


def count_prompt(counter: TokenCounter, body: bytes) -> Measure | None:
    """(tokens of the text, turns) of a request's prompt. None if it has no readable text."""
    texts, turns = prompt_of(body)
    text = "\n".join(texts)
    if not text:
        return None
    pieces = range(0, len(text), PIECE_CHARS)
    return float(sum(counter.count(text[at : at + PIECE_CHARS]) for at in pieces)), float(turns)


def prompt_of(body: bytes) -> tuple[list[str], int]:
    """The texts of a request's prompt and its number of turns, in any dialect."""
    body = b"".join(finished(without_media(body))[1])
    if body.count(b",") > COMMAS_MAX:
        return [], 0
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [], 0
    texts: list[str] = []
    turns = 0
    for key in _PROMPT_KEYS:
        value = fields.get(key)
        if value:
            _collect(value, texts)
            turns += len(value) if isinstance(value, list) else 1
    if tools := fields.get("tools"):
        texts.append(msgspec.json.encode(tools).decode())
    return texts, turns


def _collect(value: object, texts: list[str], depth: int = 0) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif depth > 32:
        return
    elif isinstance(value, list):
        for item in value:
            _collect(item, texts, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in _NO_TEXT_KEYS:
                _collect(item, texts, depth + 1)


def _ranks(content: bytes) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(content.splitlines(), 1):
        if line:
            token, _, rank = line.partition(b" ")
            try:
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except ValueError:
                raise ValueError(f"line {number} is not BASE64 RANK") from None
    if not ranks:
        raise ValueError("it is empty")
    missing = sum(bytes([byte]) not in ranks for byte in range(256))
    if missing:
        raise ValueError(f"{missing} of the 256 single bytes have no rank")
    return ranks
