"""Prompt tokens estimated in-process, calibrated by the backends' own `usage`.

Asking a backend to tokenize each prompt, as others do, costs it a request and
us a round trip. So a prompt is measured here by two numbers, and what each of
them costs in tokens is learnt per model from `usage.prompt_tokens`:

- by bytes: `measure` counts kinds of bytes in a sample. Tokenizers cut text at
  the same places that it counts (words, digits, punctuation), so two costs fit
  prose, code, JSON and Chinese at once: 3-11 % off in the median where a ratio
  of bytes for each class of text was 7-20 % off (`penstock bench estimators`).
- exactly, when a tokenizer is configured: the tokens of the text and its number
  of turns, where the cost of a turn is what the chat template adds.

Images and audio are no text: each part costs a number of tokens, learnt too.
"""

import re
from typing import Final

from balancing.least_squares import LeastSquares

Measure = tuple[float, float]
NOTHING: Final = (0.0, 0.0)

# The sample is this much: all of a short prompt, four even slices of a long one.
SAMPLE_BYTES: Final = 4_096
SLICES: Final = 4
# What a prompt that is no text is taken for: English prose with JSON's punctuation.
BYTES_PER_TOKEN: Final = 3.2

# Tokens of ASCII text by what it consists of: the least-squares fit over the o200k,
# cl100k and DeepSeek vocabularies on 150 texts (prose, code, JSON), in relative errors.
PER_WORD: Final = 0.7
PER_LETTER: Final = 0.08
PER_DIGIT: Final = 0.5
PER_SIGN: Final = 0.68
PER_BACKSLASH: Final = 0.15
# A Chinese character is three bytes, and about a token.
WIDE_BYTES: Final = 3.0

# One image at the common 1,024 x 1,024 costs about this in the Qwen-VL and Llama families.
MEDIA_PART_TOKENS: Final = 1_000
# Models are named by clients: past this many the rest share the prior.
MODELS_MAX: Final = 256
# Each observation fades the ones before: about the last hundred count.
FADE: Final = 0.99
# A report further from the estimate than this factor is taken for this factor.
SURPRISE_MAX: Final = 2.0

_ASCII: Final = bytes(range(128))
_LETTERS: Final = bytes([*range(65, 91), *range(97, 123)])
_DIGITS: Final = bytes(range(48, 58))
_SIGNS: Final = bytes(
    code for code in range(33, 127) if code not in _LETTERS + _DIGITS and code != 92
)
_WORDS_ONLY: Final = bytes(code if code in _LETTERS else 32 for code in range(256))
_ESCAPED: Final = re.compile(rb"\\u[0-9A-Fa-f]{4}")


def measure(text: bytes) -> Measure:
    """A prompt's raw JSON as (pieces of ASCII text, wide characters)."""
    size = len(text)
    if size <= SAMPLE_BYTES:
        return _measured(text)
    length = SAMPLE_BYTES // SLICES
    step = (size - length) // (SLICES - 1)
    sample = b"".join([text[at : at + length] for at in range(0, step * SLICES, step)])
    pieces, wide = _measured(sample)
    scale = size / len(sample)
    return pieces * scale, wide * scale


def _measured(sample: bytes) -> Measure:
    wide = 0.0
    if not sample.isascii():
        wide = len(sample.translate(None, _ASCII)) / WIDE_BYTES
    if b"\\u" in sample:
        sample, escaped = _ESCAPED.subn(b"", sample)
        wide += escaped
    size = len(sample)
    pieces = (
        PER_WORD * len(sample.translate(_WORDS_ONLY).split())
        + PER_LETTER * (size - len(sample.translate(None, _LETTERS)))
        + PER_DIGIT * (size - len(sample.translate(None, _DIGITS)))
        + PER_SIGN * (size - len(sample.translate(None, _SIGNS)))
        + PER_BACKSLASH * sample.count(b"\\")
    )
    return pieces, wide


def _fit(prior: Measure, trust: Measure) -> LeastSquares:
    return LeastSquares(prior, trust, fade=FADE, surprise_max=SURPRISE_MAX, least=1.0)


class _Calibration:
    """What is learnt of one model."""

    __slots__ = ("by_bytes", "by_count", "media")

    def __init__(self) -> None:
        # A prior outweighs no more than the first requests.
        self.by_bytes = _fit((1.0, 0.9), (0.3, 0.1))
        # A turn is a handful of tokens, seen only where it is much of a prompt.
        self.by_count = _fit((1.0, 5.0), (0.3, 1e-4))
        self.media = _fit((MEDIA_PART_TOKENS, 0.0), (1e-6, 1.0))


_UNKNOWN: Final = _Calibration()


class TokenEstimator:
    """Learns what prompts cost in tokens, for each model."""

    def __init__(self) -> None:
        self._models: dict[str | None, _Calibration] = {}

    def estimate(
        self,
        model: str | None,
        measured: Measure,
        media_parts: int = 0,
        counted: Measure | None = None,
    ) -> int:
        """Prompt tokens, at least 1; by the exact count where there is one."""
        known = self._models.get(model, _UNKNOWN)
        tokens = (
            known.by_bytes.expect(measured) if counted is None else known.by_count.expect(counted)
        )
        if media_parts:
            tokens += known.media.expect((media_parts, 0.0))
        return max(1, round(tokens))

    def observe(
        self,
        model: str | None,
        measured: Measure,
        prompt_tokens: int,
        media_parts: int = 0,
        counted: Measure | None = None,
    ) -> None:
        """Learn from a finished request. With media, only what a part of them costs."""
        if prompt_tokens <= 0 or measured == NOTHING:
            return
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= MODELS_MAX:
                return
            known = self._models[model] = _Calibration()
        if media_parts:
            text = self.estimate(model, measured, counted=counted)
            known.media.observe((media_parts, 0.0), max(1, prompt_tokens - text))
            return
        known.by_bytes.observe(measured, prompt_tokens)
        if counted is not None:
            known.by_count.observe(counted, prompt_tokens)
