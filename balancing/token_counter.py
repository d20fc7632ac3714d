"""Exact token counts of a prompt's text, by tiktoken or a Hugging Face tokenizer.

Both are made of the content of a local file, never of the network. Counting takes
milliseconds, so it is not done on the loop: this is what a thread calls. What
it cannot know is the chat template; `tokens.TokenEstimator` learns that.
"""

import base64
import binascii
from typing import Any, Final, Protocol

import msgspec

# How two families of vocabularies cut text before merging (from the definitions in
# OpenAI's tiktoken package); a ranks file holds only the merges. Llama 3 cuts as
# cl100k_base does.
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
# Where a request keeps its prompt, in all dialects.
_PROMPT_KEYS: Final = ("messages", "prompt", "input", "system", "instructions", "tools")
# Of a part of a prompt, these are no text to the model.
_NO_TEXT_KEYS: Final = frozenset({"role", "type", "id", "tool_call_id"})

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TokenizerUnusable(ValueError):
    """The tokenizer's file cannot be used; the text says why."""


class TokenCounter(Protocol):
    """Counts tokens of text; safe to be called from another thread."""

    def count(self, texts: list[str]) -> int: ...


class Tiktoken:
    """Byte-pair encoding by tiktoken, of a ranks file (`BASE64 RANK` a line)."""

    def __init__(self, ranks: bytes, encoding: str) -> None:
        """Raises TokenizerUnusable."""
        import tiktoken  # half a second, for those who want it

        try:
            self._encoding = tiktoken.Encoding(
                encoding,
                pat_str=PATTERNS[encoding],
                mergeable_ranks=_ranks(ranks),
                special_tokens={},
            )
            self._encoding.encode_ordinary("probe")
        except (ValueError, KeyError, binascii.Error) as error:
            raise TokenizerUnusable(f"is no tiktoken ranks file: {error}") from None

    def count(self, texts: list[str]) -> int:
        return sum(len(self._encoding.encode_ordinary(text)) for text in texts)


class HuggingFace:
    """A `tokenizer.json`, by the `tokenizers` package."""

    def __init__(self, tokenizer: bytes) -> None:
        """Raises TokenizerUnusable."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise TokenizerUnusable(
                "needs the package tokenizers: pip install 'penstock[huggingface]'"
            ) from None
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer)
        except Exception as error:  # noqa: BLE001 - its Rust side raises nothing narrower
            raise TokenizerUnusable(f"is no tokenizer.json: {error}") from None

    def count(self, texts: list[str]) -> int:
        encode = self._tokenizer.encode
        return sum(len(encode(text, add_special_tokens=False).ids) for text in texts)


def texts_of(body: bytes) -> list[str]:
    """The text of a request's prompt, whatever the dialect; empty when there is none."""
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    texts: list[str] = []
    for key in _PROMPT_KEYS:
        _collect(fields.get(key), texts)
    return texts


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
