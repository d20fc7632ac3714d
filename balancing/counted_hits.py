"""Whose the cache hits are that an engine's metrics count.

The metrics count the hits of all prompts together. Some answers tell at their end what was found of
their own prompt. From its first token until then, such a prompt is credited with what is likely.
The rest belongs to the prompts whose answers tell nothing, and is divided between them.
Pure. All sizes are in tokens.
"""

from typing import Final

from penstock.balancing.hit_correction import KINDS_MAX, HitCorrections, Kind

# Awaited tokens are estimates, counted ones are the engine's. They may differ by this factor.
AWAITED_OFF: Final = 2
# A prompt is credited with at least this share of what is expected: it may be found again.
LIKELY_MIN: Final = 0.05
# What nobody has taken fades by so much with each report. With one in 2 s, answers of a minute and
# less mostly find theirs.
SPARE_FADE: Final = 0.97


class CountedHits:
    """The hits that one engine counts. `reports`: of its metrics, so far."""

    __slots__ = (
        "_begun",
        "_beyond",
        "_credited",
        "_fresh",
        "_hits",
        "_left",
        "_lent",
        "_spare",
        "_told",
        "reports",
    )

    def __init__(self, hits: HitCorrections) -> None:
        self._hits = hits
        self.reports = 0
        # Of prompts whose first token came since the last report: what is expected if their answers
        # tell nothing, what is likely if they will tell, and what they have told.
        self._begun: dict[Kind, int] = {}
        self._fresh = 0
        self._told = 0
        # Of earlier prompts: what was likely of those whose answers are under way, what they were
        # credited with, and how much more than that was told since the last report.
        self._lent = 0
        self._credited = 0.0
        self._beyond = 0.0
        # Counted, but nobody's yet: an engine counts a hit when it begins with a prompt, a report
        # or more before the first token if the prompt is long.
        self._left = 0.0
        # Counted in earlier reports, and taken by nobody: answers may tell them yet.
        self._spare = 0.0

    def begun(self, kind: Kind, expected_tokens: int) -> None:
        """A prompt has its first token, and its answer will tell nothing."""
        begun = self._begun
        if kind in begun or len(begun) < KINDS_MAX:
            begun[kind] = begun.get(kind, 0) + expected_tokens

    def begun_telling(self, kind: Kind, expected_tokens: int) -> int:
        """A prompt has its first token, and its answer will tell. Returns what is likely."""
        likely = int(expected_tokens * max(LIKELY_MIN, self._hits.of(kind)))
        self._fresh += likely
        return likely

    def told(self, found_tokens: int, likely_tokens: int, since: int) -> None:
        """An answer tells what was found.

        `since`: the number of reports at its first token; if nothing was likely, at its choice.
        """
        if since == self.reports:
            self._fresh -= likely_tokens
            self._told += found_tokens
        else:
            self._beyond += found_tokens - self._take_credit(likely_tokens)

    def told_unexpected(self, found_tokens: int) -> None:
        """An answer tells hits of a prompt of which next to nothing is known here."""
        self._beyond += found_tokens

    def untold(self, kind: Kind, expected_tokens: int, likely_tokens: int, since: int) -> None:
        """An answer ended before it told. All that is known of its prompt is its credit, if any."""
        if since == self.reports:
            self._fresh -= likely_tokens
            self.begun(kind, expected_tokens)
        else:
            self._hits.observe(kind, expected_tokens, self._take_credit(likely_tokens))

    def take(self, found_tokens: int, awaited_tokens: int) -> None:
        """The metrics counted so many hits since the last report.

        `awaited_tokens`: expected of prompts without a first token. The hits that are nobody's yet
        are kept for them.
        """
        # Prompts that were credited with more than was found took that from others.
        pool = max(0.0, self._left + found_tokens - self._told - min(0.0, self._beyond))
        credited = 0.0
        if self._fresh:
            likely = self._fresh + self._hits.likely(self._begun)
            credited = self._fresh * min(1.0, pool / likely)
        # What was told beyond the credit was counted before. If others took it then, they have too
        # much.
        beyond = max(0.0, self._beyond)
        spare = min(self._spare, beyond)
        pool = max(0.0, pool - credited - (beyond - spare))
        if self._begun:
            pool -= self._hits.divide(self._begun, pool)
        self._left = min(pool, AWAITED_OFF * awaited_tokens)
        pool -= self._left
        more = min(pool, self._fresh)
        self._spare = SPARE_FADE * (self._spare - spare) + pool - more
        self._begin_anew(credited + more)

    def skip(self) -> None:
        """A report came that does not tell what was found since the last one."""
        self._begin_anew(self._fresh)

    def _begin_anew(self, credited_tokens: float) -> None:
        """Credit those whose answers are under way. From now on the next report counts."""
        self._lent += self._fresh
        self._credited += credited_tokens
        self._begun = {}
        self._fresh = self._told = 0
        self._beyond = 0.0
        self.reports += 1

    def _take_credit(self, likely_tokens: int) -> float:
        """The part of one answer in the credit of those under way."""
        if not likely_tokens:
            return 0.0
        credited = self._credited * likely_tokens / self._lent
        self._credited -= credited
        self._lent -= likely_tokens
        return credited
