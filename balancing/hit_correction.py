"""How much of what a backend's cache should hold was really found there.

Our index of its cache knows neither what other traffic pushed out, nor whether prefix caching is
on. The backend tells: each answer how much of its prompt was found (`cached_tokens`), where vLLM
runs with `--enable-prompt-tokens-details`, else its metrics how much in all.

Prompts that are never found, though they look as if they should be (the same text under another
chat template, say), must not make anybody else's look so. So each client's count for itself, and
of a client's those of one kind: kinds are drawn by the last block that is expected, so that a text
sent again and again has one of them, and a conversation that goes on has all in turn.
"""

from collections.abc import Mapping
from typing import Final

from balancing.fair_table import FairTable

# Worth a few prompts of agreement, so that the first one does not decide.
PRIOR_TOKENS: Final = 20_000.0
# About the last fifty reports of a kind count.
FADE: Final = 0.98
# A smaller shortfall is that of some prompts that are wholly gone, not of a bit of each: taken off
# all of them it cost conversations that fill the caches 1.8 x the time to first token
# (bench/RESULTS.md), since what is left of a cached prompt to prefill is so little.
ENOUGH: Final = 0.8
# No prompt says more than this: the context of today's models.
REPORT_TOKENS_MAX: Final = 131_072.0
# More are steadier against texts that are never found, fewer learn sooner from the others.
KINDS: Final = 64
# A kind with fewer reports is judged by what is usual with its client.
REPORTS_MIN: Final = 4
# What is usual with a client follows a kind that is not whole once in so many reports.
SUMMED_UP: Final = 8
# Kinds of all clients together, some 150 bytes each.
KINDS_MAX: Final = 1_024

Kind = tuple[str, int]


class HitCorrection:
    """`ratio`: what of the tokens expected there is to be counted on, 0 to 1."""

    __slots__ = ("_expected", "_found", "ratio", "reports")

    def __init__(self) -> None:
        self._expected = self._found = PRIOR_TOKENS
        self.ratio = 1.0
        self.reports = 0

    @property
    def share(self) -> float:
        """What was found of what was expected."""
        return self._found / self._expected

    def observe(self, expected_tokens: float, found_tokens: float) -> None:
        """Prompts whose beginnings should have been there, so many tokens, were found so far.

        More than was expected makes up for nothing: it is other text.
        """
        expected_tokens = min(expected_tokens, REPORT_TOKENS_MAX)
        self._expected = self._expected * FADE + expected_tokens
        self._found = self._found * FADE + max(0.0, min(found_tokens, expected_tokens))
        share = self.share
        self.ratio = 1.0 if share >= ENOUGH else share
        self.reports += 1


class HitCorrections:
    """One backend's, by kind. `ratio`: what is usual with its clients; `whole`: all is found."""

    __slots__ = ("_kinds", "_usual", "ratio", "whole")

    def __init__(self) -> None:
        self._kinds: FairTable[HitCorrection] = FairTable(KINDS_MAX)
        self._usual: dict[str, float] = {}  # of each client
        self.ratio = 1.0
        self.whole = True

    def of(self, kind: Kind) -> float:
        """What of the tokens expected there is to be counted on, 0 to 1."""
        client, number = kind
        known = self._kinds.find(client, number)
        if known is not None and known.reports >= REPORTS_MIN:
            return known.ratio
        usual = self._usual.get(client)
        if usual is not None:
            return usual
        return self.ratio if len(self._usual) > 1 else 1.0  # no one speaks for all

    def observe(self, kind: Kind, expected_tokens: float, found_tokens: float) -> None:
        """An answer of that kind told what was found."""
        client, number = kind
        known = self._kinds.find(client, number)
        if known is None:
            known = HitCorrection()
            self._kinds.put(client, number, known)
        before = known.ratio
        known.observe(expected_tokens, found_tokens)
        crossed = (known.ratio < 1.0) != (before < 1.0)
        if crossed or known.reports == 1 or (known.ratio < 1.0 and not known.reports % SUMMED_UP):
            self._sum_up(client)

    def _sum_up(self, client: str) -> None:
        """A kind's ratio is another one."""
        ratios = [each.ratio for each in self._kinds.of(client).values()]
        usual = _middle(ratios)
        if self._usual.get(client) != usual:
            self._usual.pop(client, None)
            self._usual[client] = usual
            if len(self._usual) > KINDS_MAX:
                del self._usual[next(iter(self._usual))]
            self.ratio = _middle(list(self._usual.values()))
        if min(ratios) < 1.0:
            self.whole = False
        elif not self.whole:
            self.whole = all(
                each.ratio == 1.0 for of in self._usual for each in self._kinds.of(of).values()
            )

    def divide(self, expected: Mapping[Kind, int], found_tokens: float) -> None:
        """Of prompts of several kinds so much was found in all: who had it is only likely.

        As if each kind went on as it was; what is lacking then, or too much, in proportion.
        """
        likely = {}
        for kind, tokens in expected.items():
            known = self._kinds.find(kind[0], kind[1])
            likely[kind] = tokens * (known.share if known is not None else 1.0)
        total = sum(likely.values())
        lacking = sum(expected.values()) - total
        for kind, tokens in expected.items():
            if found_tokens <= total:
                share = likely[kind] * found_tokens / total if total else 0.0
            else:
                more = (found_tokens - total) / lacking if lacking else 0.0
                share = likely[kind] + (tokens - likely[kind]) * min(1.0, more)
            self.observe(kind, tokens, share)


def _middle(ratios: list[float]) -> float:
    """The upper one of two."""
    return sorted(ratios)[len(ratios) // 2]
