"""Estimates prompt tokens in-process, calibrated by the backends' own `usage`.

Other routers ask a backend to tokenize each prompt, which costs it a request and us a round trip.
Here a prompt is measured by two numbers. How many tokens each of them costs is learnt for each
model from `usage.prompt_tokens`:

- by bytes: `measure` counts kinds of bytes in a sample. Tokenizers cut text at the places that it
  counts (words, digits, punctuation). So two costs fit prose, code, JSON and Chinese at once: the
  median error is 3-11 %. A ratio of bytes for each class of text had 7-20 %
  (bench/history/2026-11.md).
- exactly, if a tokenizer is configured: the tokens of the text and its number of turns. The cost of
  a turn is what the chat template adds.

Images and audio are not text. Each part costs a number of tokens, which is learnt, too.

Everything is learnt for each tenant, because a tenant's texts may be odd. New tenants begin with
what the first answers of all tenants taught.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import xxhash

from penstock.balancing import native
from penstock.balancing.fair_table import FairTable
from penstock.balancing.speed.least_squares import LeastSquares

Measure = tuple[float, float]
# Not Final: mypyc 2.4 takes a Final tuple of floats for unset in other modules.
NOTHING: Measure = (0.0, 0.0)

# The size of the sample: all of a short prompt, or a slice from each eighth of a long one.
SAMPLE_BYTES: Final = 4_096
SLICES: Final = 8
SLICE_BYTES: Final = SAMPLE_BYTES // SLICES
# Nobody can know where the slices are, because their places are a hash with a secret. Otherwise
# blanks there could hide a large prompt. The hash is of its beginning, so that a growing
# conversation is sampled at about the same places.
_SEED_BYTES: Final = 64
# The density of a prompt that is not text: English prose with JSON's punctuation.
BYTES_PER_TOKEN: Final = 3.2

# Tokens of ASCII text by its kinds of bytes: a least-squares fit in relative errors to the o200k,
# cl100k and DeepSeek vocabularies on 150 texts (prose, code, JSON).
PER_WORD: Final = 0.7
PER_LETTER: Final = 0.08
PER_DIGIT: Final = 0.5
PER_SIGN: Final = 0.68
PER_BACKSLASH: Final = 0.15
# A Chinese character has three bytes and is about one token.
WIDE_BYTES: Final = 3.0

# About what one image of the common 1,024 x 1,024 costs in the Qwen-VL and Llama families.
MEDIA_PART_TOKENS: Final = 1_000
# Clients name the models. Beyond this number the models that were not used for longest go. For what
# is learnt of tenants, a tenant's own entries go.
MODELS_MAX: Final = 256
CALIBRATIONS_MAX: Final = 1_024
# After this many answers a tenant has its own estimate. Its first few teach newcomers: after fifty
# ordinary tenants, ten odd ones then raise a newcomer's estimate by a fifth, not by three times.
OWN_MIN: Final = 8
TAUGHT_MAX: Final = 4
# Each sample fades the earlier ones: about the last hundred count.
FADE: Final = 0.99
# A report that differs from the estimate by more than this factor counts as this factor.
SURPRISE_MAX: Final = 2.0

_ASCII: Final = bytes(range(128))
_LETTERS: Final = bytes([*range(65, 91), *range(97, 123)])
_DIGITS: Final = bytes(range(48, 58))
_SIGNS: Final = bytes(
    code for code in range(33, 127) if code not in _LETTERS + _DIGITS and code != 92
)
# Each byte replaced by its kind: counting kinds takes two thirds of the time of deleting bytes.
_WORDS_ONLY: Final = bytes(97 if code in _LETTERS else 32 for code in range(256))
_KINDS: Final = bytes(48 * (code in _DIGITS) + 33 * (code in _SIGNS) for code in range(256))
_ESCAPED: Final = re.compile(rb"\\u[0-9A-Fa-f]{4}")


def measure(texts: Sequence[bytes | memoryview], secret: int) -> Measure:
    """Measure a prompt's raw JSON, in pieces: (pieces of ASCII text, wide characters)."""
    size = sum(map(len, texts))
    if size <= SAMPLE_BYTES:
        return _measured(texts[0] if len(texts) == 1 else b"".join(texts))
    ends = list(accumulate(map(len, texts)))
    step = size // SLICES
    free = step - SLICE_BYTES
    seed = xxhash.xxh3_64_intdigest(_slice(texts, ends, 0, _SEED_BYTES), secret)
    sample = b"".join(
        [
            _slice(texts, ends, at, SLICE_BYTES)
            for each in range(SLICES)
            for at in (each * step + (seed >> 7 * each & 127) * free // 127,)
        ]
    )
    pieces, wide = _measured(sample)
    scale = size / len(sample)
    return pieces * scale, wide * scale


def _slice(
    texts: Sequence[bytes | memoryview], ends: Sequence[int], at: int, size_bytes: int
) -> bytes:
    """So many bytes of the whole text from there. `ends`: where each piece ends in it."""
    number = bisect_right(ends, at)
    cut = b""
    while len(cut) < size_bytes and number < len(texts):
        begin = at + len(cut) - (ends[number] - len(texts[number]))
        cut += texts[number][begin : begin + size_bytes - len(cut)]
        number += 1
    return cut


# A compiled module finds its own constants faster than another module's members.
_kinds_of: Final = native.kinds_of if native.AVAILABLE else None


def _measured(sample: bytes | memoryview) -> Measure:
    kinds = _kinds_of(sample) if _kinds_of is not None else kinds_of(bytes(sample))
    words, letters, digits, signs, backslashes, wide_bytes, escapes = kinds
    pieces = (
        PER_WORD * words
        + PER_LETTER * letters
        + PER_DIGIT * digits
        + PER_SIGN * signs
        + PER_BACKSLASH * backslashes
    )
    return pieces, wide_bytes / WIDE_BYTES + escapes


def kinds_of(sample: bytes) -> tuple[int, int, int, int, int, int, int]:
    """What `native.kinds_of` counts, where there is no C."""
    wide_bytes = escapes = 0
    if not sample.isascii():
        wide_bytes = len(sample.translate(None, _ASCII))
    if sample.find(b"\\u") >= 0:  # `in` takes ten times longer
        sample, escapes = _ESCAPED.subn(b"", sample)
    words = sample.translate(_WORDS_ONLY)
    kinds = sample.translate(_KINDS)
    return (
        words.count(b" a") + words.startswith(b"a"),
        words.count(b"a"),
        kinds.count(b"0"),
        kinds.count(b"!"),
        sample.count(b"\\"),
        wide_bytes,
        escapes,
    )


def _fit(prior: Measure, trust: Measure) -> LeastSquares:
    return LeastSquares(prior, trust, fade=FADE, surprise_max=SURPRISE_MAX, least=1.0)


class _Calibration:
    """What is learnt of one model. It begins with what is known of it."""

    __slots__ = ("answers", "by_bytes", "by_count", "media")

    def __init__(self, known: "_Calibration | None" = None) -> None:
        self.answers = 0
        # A prior does not outweigh the first few requests. A turn has a handful of tokens, which
        # shows only in short prompts.
        by_bytes, by_count, media = (1.0, 0.9), (1.0, 5.0), (float(MEDIA_PART_TOKENS), 0.0)
        if known is not None:
            by_bytes = known.by_bytes.a, known.by_bytes.b
            by_count = known.by_count.a, known.by_count.b
            media = known.media.a, known.media.b
        self.by_bytes: LeastSquares = _fit(by_bytes, (0.3, 0.1))
        self.by_count: LeastSquares = _fit(by_count, (0.3, 1e-4))
        self.media: LeastSquares = _fit(media, (1e-6, 1.0))

    def expect(self, measured: Measure, media_parts: int, counted: Measure | None) -> float:
        """Prompt tokens, by the exact count if there is one."""
        tokens = (
            self.by_bytes.expect(measured) if counted is None else self.by_count.expect(counted)
        )
        return tokens + self.media.expect((media_parts, 0.0)) if media_parts else tokens

    def observe(
        self, measured: Measure, prompt_tokens: int, media_parts: int, counted: Measure | None
    ) -> None:
        """Learn from a finished request. With media, only the cost of a part of them."""
        self.answers += 1
        if media_parts:
            text = max(1, round(self.expect(measured, 0, counted)))
            self.media.observe((media_parts, 0.0), max(1, prompt_tokens - text))
            return
        self.by_bytes.observe(measured, prompt_tokens)
        if counted is not None:
            self.by_count.observe(counted, prompt_tokens)


_UNKNOWN: Final = _Calibration()
# Relative to the cost of a prompt on an unknown model. Long runs of one sign cost a fortieth of it.
# A backend that reports fewer tokens than this share counts wrongly and teaches nothing.
LEAST_SHARE: Final = 0.02
# Below this share, or above its inverse, it teaches only its own client: no tokenizer differs so
# much for ordinary text, and newcomers are judged by what all have taught.
USUAL_SHARE: Final = 0.25


class TokenEstimator:
    """Learns what prompts cost in tokens, for each model and tenant."""

    def __init__(self, secret: int = 0) -> None:
        """`secret`: 64 bits that no client knows."""
        self._secret = secret
        self._own: FairTable[_Calibration] = FairTable(CALIBRATIONS_MAX)
        self._models: dict[str | None, _Calibration] = {}  # for newcomers

    def measure(self, texts: Sequence[bytes | memoryview]) -> Measure:
        """Measure a prompt's raw JSON, in pieces, for an estimate."""
        return measure(texts, self._secret)

    def estimate(
        self,
        model: str | None,
        measured: Measure,
        media_parts: int = 0,
        counted: Measure | None = None,
        tenant: str = "",
    ) -> int:
        """Prompt tokens, at least 1. By the exact count if there is one."""
        known = self._own.find(tenant, model)
        if known is None or known.answers < OWN_MIN:
            known = self._models.get(model, _UNKNOWN)
        return max(1, round(known.expect(measured, media_parts, counted)))

    def observe(
        self,
        model: str | None,
        measured: Measure,
        prompt_tokens: int,
        media_parts: int = 0,
        counted: Measure | None = None,
        tenant: str = "",
    ) -> None:
        """Learn from a finished request. With media, only the cost of a part of them."""
        if measured == NOTHING or prompt_tokens <= 0:
            return
        unknown = _UNKNOWN.expect(measured, 0, None)
        if prompt_tokens < LEAST_SHARE * unknown:
            return
        usual = self._models.pop(model, None) or _Calibration()
        if len(self._models) >= MODELS_MAX:
            del self._models[next(iter(self._models))]
        self._models[model] = usual
        own = self._own.use(tenant, model)
        if own is None:
            own = _Calibration(usual)
            self._own.put(tenant, model, own)
        own.observe(measured, prompt_tokens, media_parts, counted)
        few = prompt_tokens < USUAL_SHARE * unknown
        many = not media_parts and prompt_tokens > unknown / USUAL_SHARE  # images have any number
        if own.answers <= TAUGHT_MAX and not few and not many:
            usual.observe(measured, prompt_tokens, media_parts, counted)
