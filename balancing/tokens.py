"""Prompt tokens estimated from bytes, calibrated by the backends' own `usage`.

Asking a backend to tokenize each prompt, as others do, costs it a request and
us a round trip; a tokenizer in-process holds the loop for milliseconds. Bytes x
a ratio learnt per model and class of content costs nothing and is close enough
to rank backends. The ratio starts at 1/3.2 tokens a byte (English prose with
JSON punctuation) and follows what `usage.prompt_tokens` reports.
"""

from enum import StrEnum
from typing import Final

PRIOR_TOKENS_PER_BYTE: Final = 1 / 3.2
# The prior counts as this many bytes of evidence: a few short prompts already outweigh it.
PRIOR_BYTES: Final = 2_000.0
# Past this much evidence old samples fade, so that a changed template is followed.
EVIDENCE_BYTES: Final = 2_000_000.0
# One image at the common 1,024 x 1,024 costs about this in the Qwen-VL and Llama families.
MEDIA_PART_TOKENS: Final = 1_000
# Models are named by clients: past this many the rest share the prior.
MODELS_MAX: Final = 256
# Enough of the newest text to tell its class; the whole of a long prompt would cost more.
SAMPLE_BYTES: Final = 4_096

# How much one request moves the mean of what a chat template adds.
ADDED_GAIN: Final = 0.1

_ASCII_BYTES: Final = bytes(range(128))


class ContentClass(StrEnum):
    """Kinds of text whose bytes per token differ by more than a tokenizer's noise."""

    TEXT = "text"
    CODE = "code"  # code and JSON: many escaped quotes and line ends
    WIDE = "wide"  # scripts of several bytes a character
    ESCAPED = "escaped"  # the same, sent as \uXXXX


def content_class(text: bytes) -> ContentClass:
    """Tell the class of a prompt from the end of its raw JSON."""
    sample = text[-SAMPLE_BYTES:]
    size = len(sample)
    if not sample.isascii() and len(sample.translate(None, _ASCII_BYTES)) * 5 > size:
        return ContentClass.WIDE
    if sample.count(b"\\u") * 6 * 5 > size:
        return ContentClass.ESCAPED
    if (sample.count(b'\\"') + sample.count(b"\\n")) * 40 > size:
        return ContentClass.CODE
    return ContentClass.TEXT


class _Ratio:
    """Tokens per byte as a quotient of sums, the sums fading beyond EVIDENCE_BYTES."""

    __slots__ = ("size_bytes", "tokens")

    def __init__(self) -> None:
        self.tokens = PRIOR_BYTES * PRIOR_TOKENS_PER_BYTE
        self.size_bytes = PRIOR_BYTES

    def observe(self, size_bytes: int, tokens: int) -> None:
        self.tokens += tokens
        self.size_bytes += size_bytes
        if self.size_bytes > EVIDENCE_BYTES:
            fade = EVIDENCE_BYTES / self.size_bytes
            self.tokens *= fade
            self.size_bytes *= fade


class TokenEstimator:
    """Learns tokens per byte for each model and content class.

    Where a tokenizer has counted the text, it learns what the model's chat
    template adds to that instead.
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str | None, ContentClass], _Ratio] = {}
        self._added_tokens: dict[str | None, float] = {}

    def estimate(
        self, model: str | None, content: ContentClass, text_bytes: int, media_parts: int = 0
    ) -> int:
        """Prompt tokens, at least 1."""
        ratio = self._ratios.get((model, content))
        per_byte = ratio.tokens / ratio.size_bytes if ratio else PRIOR_TOKENS_PER_BYTE
        return max(1, round(text_bytes * per_byte) + media_parts * MEDIA_PART_TOKENS)

    def observe(
        self, model: str | None, content: ContentClass, text_bytes: int, prompt_tokens: int
    ) -> None:
        """Learn from a finished request. Requests with media or token ids have no text_bytes."""
        if text_bytes <= 0 or prompt_tokens <= 0:
            return
        key = (model, content)
        ratio = self._ratios.get(key)
        if ratio is None:
            if len(self._ratios) >= MODELS_MAX * len(ContentClass):
                return
            ratio = self._ratios[key] = _Ratio()
        ratio.observe(text_bytes, prompt_tokens)

    def counted(self, model: str | None, text_tokens: int) -> int:
        """Prompt tokens of a text that was counted, with what the template adds; at least 1."""
        return max(1, text_tokens + round(self._added_tokens.get(model, 0.0)))

    def observe_counted(self, model: str | None, text_tokens: int, prompt_tokens: int) -> None:
        """Learn what the template adds to a counted text: a fading mean of the differences."""
        added = self._added_tokens.get(model)
        sample = float(prompt_tokens - text_tokens)
        if added is not None:
            self._added_tokens[model] = added + ADDED_GAIN * (sample - added)
        elif len(self._added_tokens) < MODELS_MAX:
            self._added_tokens[model] = sample
