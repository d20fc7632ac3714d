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

All of it is learnt for each tenant, whose texts may be odd, and for those who are new from the
first answers of all.
"""

import re
from typing import Final

import xxhash

from balancing.fair_table import FairTable
from balancing.least_squares import LeastSquares

Measure = tuple[float, float]
# Not Final: mypyc 2.4 takes a Final tuple of floats for unset in other modules.
NOTHING: Measure = (0.0, 0.0)

# The sample is this much: all of a short prompt, of a long one a slice of each eighth.
SAMPLE_BYTES: Final = 4_096
SLICES: Final = 8
SLICE_BYTES: Final = SAMPLE_BYTES // SLICES
# Where in it nobody can know: bytes are hashed with a secret. Else blanks there would make any
# prompt look like none. By its beginning, so that a conversation that goes on is
# looked at in much the same places.
_SEED_BYTES: Final = 64
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
# Models are named by clients: past this many those go that were not seen for longest; of what is
# learnt of tenants a tenant's own.
MODELS_MAX: Final = 256
CALIBRATIONS_MAX: Final = 1_024
# So many answers make a tenant's own estimate, and so many of each teach what newcomers get.
OWN_MIN: Final = 8
TAUGHT_MAX: Final = 32
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


def measure(text: bytes, secret: int = 0) -> Measure:
    """A prompt's raw JSON as (pieces of ASCII text, wide characters)."""
    size = len(text)
    if size <= SAMPLE_BYTES:
        return _measured(text)
    step = size // SLICES
    free = step - SLICE_BYTES
    seed = xxhash.xxh3_64_intdigest(text[:_SEED_BYTES], secret)
    sample = b"".join(
        [
            text[at : at + SLICE_BYTES]
            for each in range(SLICES)
            for at in (each * step + (seed >> 7 * each & 127) * free // 127,)
        ]
    )
    pieces, wide = _measured(sample)
    scale = size / len(sample)
    return pieces * scale, wide * scale


def _measured(sample: bytes) -> Measure:
    wide = 0.0
    if not sample.isascii():
        wide = len(sample.translate(None, _ASCII)) / WIDE_BYTES
    if sample.find(b"\\u") >= 0:  # `in` takes ten times longer
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
    """What is learnt of one model, beginning with what is known of it."""

    __slots__ = ("answers", "by_bytes", "by_count", "media")

    def __init__(self, known: "_Calibration | None" = None) -> None:
        self.answers = 0
        # A prior outweighs no more than the first requests. A turn is a handful of tokens, seen
        # only where it is much of a prompt.
        by_bytes, by_count, media = (1.0, 0.9), (1.0, 5.0), (float(MEDIA_PART_TOKENS), 0.0)
        if known is not None:
            by_bytes = known.by_bytes.a, known.by_bytes.b
            by_count = known.by_count.a, known.by_count.b
            media = known.media.a, known.media.b
        self.by_bytes: LeastSquares = _fit(by_bytes, (0.3, 0.1))
        self.by_count: LeastSquares = _fit(by_count, (0.3, 1e-4))
        self.media: LeastSquares = _fit(media, (1e-6, 1.0))

    def expect(self, measured: Measure, media_parts: int, counted: Measure | None) -> float:
        """Prompt tokens; by the exact count where there is one."""
        tokens = (
            self.by_bytes.expect(measured) if counted is None else self.by_count.expect(counted)
        )
        return tokens + self.media.expect((media_parts, 0.0)) if media_parts else tokens

    def observe(
        self, measured: Measure, prompt_tokens: int, media_parts: int, counted: Measure | None
    ) -> None:
        """With media, only what a part of them costs."""
        self.answers += 1
        if media_parts:
            text = max(1, round(self.expect(measured, 0, counted)))
            self.media.observe((media_parts, 0.0), max(1, prompt_tokens - text))
            return
        self.by_bytes.observe(measured, prompt_tokens)
        if counted is not None:
            self.by_count.observe(counted, prompt_tokens)


_UNKNOWN: Final = _Calibration()


class TokenEstimator:
    """Learns what prompts cost in tokens, for each model and tenant."""

    def __init__(self, secret: int = 0) -> None:
        """`secret`: 64 bits that no client knows."""
        self._secret = secret
        self._own: FairTable[_Calibration] = FairTable(CALIBRATIONS_MAX)
        self._models: dict[str | None, _Calibration] = {}  # by what newcomers are judged

    def measure(self, text: bytes) -> Measure:
        """A prompt's raw JSON, as it is estimated by."""
        return measure(text, self._secret)

    def estimate(
        self,
        model: str | None,
        measured: Measure,
        media_parts: int = 0,
        counted: Measure | None = None,
        tenant: str = "",
    ) -> int:
        """Prompt tokens, at least 1; by the exact count where there is one."""
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
        """Learn from a finished request. With media, only what a part of them costs."""
        if prompt_tokens <= 0 or measured == NOTHING:
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
        if own.answers <= TAUGHT_MAX:
            usual.observe(measured, prompt_tokens, media_parts, counted)
