"""How much of what a backend's cache should hold was really found there.

Our index of its cache knows neither what other traffic pushed out, nor whether prefix caching is
on. The backend tells: each answer how much of its prompt was found (`cached_tokens`), where vLLM
runs with `--enable-prompt-tokens-details`, else its metrics how much in all.
"""

from typing import Final

# Worth a few prompts of agreement, so that the first one does not decide.
PRIOR_TOKENS: Final = 20_000.0
# About the last hundred reports count.
FADE: Final = 0.99
# A smaller shortfall is that of some prompts that are wholly gone, not of a bit of each: taken off
# all of them it cost conversations that fill the caches 1.8 x the time to first token
# (bench/RESULTS.md), since what is left of a cached prompt to prefill is so little.
ENOUGH: Final = 0.8


class HitCorrection:
    """`ratio`: what of the tokens expected there is to be counted on, 0 to 1."""

    __slots__ = ("_expected", "_found", "ratio")

    def __init__(self) -> None:
        self._expected = self._found = PRIOR_TOKENS
        self.ratio = 1.0

    def observe(self, expected_tokens: float, found_tokens: float) -> None:
        """Prompts whose beginnings should have been there, so many tokens, were found so far.

        More than was expected makes up for nothing: it is other text.
        """
        self._expected = self._expected * FADE + expected_tokens
        self._found = self._found * FADE + min(found_tokens, expected_tokens)
        ratio = self._found / self._expected
        self.ratio = 1.0 if ratio >= ENOUGH else ratio
