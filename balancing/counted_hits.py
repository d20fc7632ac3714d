"""Divides the cache hits that an engine's metrics count between the prompts that ran.

The metrics count the hits of all prompts together. An answer that *tells* reports at its end what
was found of its own prompt. A *silent* one reports nothing. From the first token of a prompt until
its answer tells, it is *credited* with a part of the hits: as much as is usual for its kind, or
less if the metrics show less. The rest is divided between the silent ones.
Pure.
"""

from typing import Final

from penstock.balancing.hit_correction import KINDS_MAX, HitCorrections, Kind

# Awaited tokens are estimates, counted ones are the engine's. They may differ by this factor.
AWAITED_OFF: Final = 2
# The least usual share. With none, a kind that was gone from the cache for a time would never be
# credited again.
USUAL_MIN: Final = 0.05
# The part of the spare hits that is kept at each report. With a report every 2 s, 40 % are left
# after a minute.
SPARE_KEPT: Final = 0.97


class CountedHits:
    """The hits that one engine counts. `reports`: of its metrics, so far."""

    __slots__ = (
        "_beyond_tokens",
        "_credited_tokens",
        "_fresh_tokens",
        "_hits",
        "_left_tokens",
        "_running_tokens",
        "_silent_tokens",
        "_spare_tokens",
        "_told_tokens",
        "_usual_tokens",
        "reports",
    )

    def __init__(self, hits: HitCorrections) -> None:
        self._hits = hits
        self.reports = 0
        # Of prompts whose first token came since the last report: expected of the silent ones,
        self._silent_tokens: dict[Kind, int] = {}
        # expected and usual of those whose answers will tell, and what they have told.
        self._fresh_tokens = 0
        self._usual_tokens = 0
        self._told_tokens = 0
        # Of answers that run since before the last report and will tell: usual, and credited.
        self._running_tokens = 0
        self._credited_tokens = 0.0
        # What such answers told since the last report, less their credit. It may be negative.
        self._beyond_tokens = 0.0
        # For prompts without a first token. An engine counts a hit when it begins with a prompt,
        # which is a report or more before the first token if the prompt is long.
        self._left_tokens = 0.0
        # Nobody's. Answers may tell them yet.
        self._spare_tokens = 0.0

    def begun(self, kind: Kind, expected_tokens: int) -> None:
        """A prompt has its first token, and its answer will be silent."""
        silent = self._silent_tokens
        if kind in silent or len(silent) < KINDS_MAX:
            silent[kind] = silent.get(kind, 0) + expected_tokens

    def begun_telling(self, kind: Kind, expected_tokens: int) -> int:
        """A prompt has its first token, and its answer will tell. Returns what is usual, over 0."""
        usual_tokens = max(1, int(expected_tokens * max(USUAL_MIN, self._hits.of(kind))))
        self._fresh_tokens += expected_tokens
        self._usual_tokens += usual_tokens
        return usual_tokens

    def told(
        self, kind: Kind, expected_tokens: int, usual_tokens: int, since: int, found_tokens: int
    ) -> None:
        """An answer tells. `since`: the number of reports at its first token.

        `usual_tokens`: 0 if it was thought to be silent.
        """
        if since == self.reports:
            self._told_tokens += found_tokens
            self._take_back(kind, expected_tokens, usual_tokens)
        elif usual_tokens:
            self._beyond_tokens += found_tokens - self._take_credit(usual_tokens)

    def told_unexpected(self, found_tokens: int) -> None:
        """An answer tells hits where none were expected."""
        self._beyond_tokens += found_tokens

    def untold(self, kind: Kind, expected_tokens: int, usual_tokens: int, since: int) -> None:
        """An answer ended before it told. All that is known of its prompt is its credit, if any."""
        if since == self.reports:
            self._take_back(kind, expected_tokens, usual_tokens)
            self.begun(kind, expected_tokens)
        else:
            self._hits.observe(kind, expected_tokens, self._take_credit(usual_tokens))

    def take(self, found_tokens: int, awaited_tokens: int) -> None:
        """The metrics counted so many hits since the last report.

        `awaited_tokens`: expected of prompts without a first token.
        """
        # Credit that was too high comes back. Hits beyond the credit were counted in an earlier
        # report: they are taken from the spare ones, or else from those who got them then.
        beyond = self._beyond_tokens
        spare = min(self._spare_tokens, max(0.0, beyond))
        pool = max(0.0, self._left_tokens + found_tokens - self._told_tokens - min(0.0, beyond))
        credited = self._credit_of(pool) if self._fresh_tokens else 0.0
        pool = max(0.0, pool - credited - max(0.0, beyond - spare))
        if self._silent_tokens:
            pool -= self._hits.divide(self._silent_tokens, pool)
        self._left_tokens = min(pool, AWAITED_OFF * awaited_tokens)
        self._spare_tokens = SPARE_KEPT * (self._spare_tokens - spare) + pool - self._left_tokens
        self._begin_anew(credited)

    def skip(self) -> None:
        """A report came that does not tell what was found since the last one."""
        self._begin_anew(self._usual_tokens)

    def _credit_of(self, pool_tokens: float) -> float:
        """What those that will tell get of these hits.

        They share a lack with the silent ones by what is usual, and a surplus by what is not.
        """
        silent = self._silent_tokens
        likely = self._hits.likely(silent)
        usual = self._usual_tokens + likely
        if pool_tokens < usual:
            return self._usual_tokens * pool_tokens / usual
        lacked = self._fresh_tokens - self._usual_tokens
        all_lacked = lacked + sum(silent.values()) - likely
        more = lacked * min(1.0, (pool_tokens - usual) / all_lacked) if lacked > 0 else 0.0
        return self._usual_tokens + more

    def _begin_anew(self, credited_tokens: float) -> None:
        """The answers that will tell run on with this credit. The next report counts from now."""
        self._running_tokens += self._usual_tokens
        self._credited_tokens += credited_tokens
        self._silent_tokens = {}
        self._fresh_tokens = self._usual_tokens = self._told_tokens = 0
        self._beyond_tokens = 0.0
        self.reports += 1

    def _take_back(self, kind: Kind, expected_tokens: int, usual_tokens: int) -> None:
        """Forget the first token of a prompt, which came since the last report."""
        if usual_tokens:
            self._fresh_tokens -= expected_tokens
            self._usual_tokens -= usual_tokens
        elif kind in self._silent_tokens:
            left_tokens = self._silent_tokens.pop(kind) - expected_tokens
            if left_tokens > 0:
                self._silent_tokens[kind] = left_tokens

    def _take_credit(self, usual_tokens: int) -> float:
        """The part of one answer in the credit of those that run."""
        credited = self._credited_tokens * usual_tokens / self._running_tokens
        self._credited_tokens -= credited
        self._running_tokens -= usual_tokens
        return credited
