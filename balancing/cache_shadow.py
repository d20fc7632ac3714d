"""A shadow of a backend's prefix cache: what it probably holds.

The index has the prompts that were computed there, and `waiting` those that were sent and are not
computed yet. The corrections tell how much of what both promise was really found.
"""

from typing import TYPE_CHECKING, Final

from penstock.balancing.engine_report import EngineReport
from penstock.balancing.hit_correction import KINDS, KINDS_MAX, HitCorrections, Kind
from penstock.balancing.prefix_index import BLOCK_TOKENS, PrefixIndex
from penstock.balancing.unconfirmed_blocks import UnconfirmedBlocks
from penstock.balancing.waiting_blocks import WaitingBlocks

if TYPE_CHECKING:
    from penstock.balancing.ask import Ask

# Awaited tokens are estimates, found ones are the engine's count. They may differ by this factor.
AWAITED_OFF: Final = 2


class CacheShadow:
    """The shadow of one backend's cache. Only the claims of leases change its content."""

    __slots__ = (
        "_begun_tokens",
        "_found_tokens",
        "_missing_tokens",
        "_pending_tokens",
        "_telling",
        "_told_tokens",
        "awaited_tokens",
        "hits",
        "index",
        "reports",
        "unconfirmed",
        "waiting",
    )

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.waiting = WaitingBlocks()
        self.unconfirmed = UnconfirmedBlocks(self.index)
        self.hits = HitCorrections()
        # Expected cached tokens of requests without a first token.
        self.awaited_tokens = 0
        # The same of requests whose first token came since the last report. Answers on the paths
        # that are telling report what was found, so what they told does not count for others.
        self._begun_tokens: dict[Kind, int] = {}
        self._told_tokens = 0.0
        self._telling: set[str] = set()
        # Found by the engine's metrics, of requests without a first token.
        self._found_tokens = 0.0
        # What answers under way are expected to tell, and how much of that the metrics do not show.
        self._pending_tokens = 0
        self._missing_tokens = 0.0
        self.reports = 0  # of the engine's metrics, so far

    def held(self, ask: "Ask") -> int:
        """How many of the request's leading blocks are in the cache, or will be in time."""
        held = self.index.held(ask.blocks)
        return self.waiting.held(ask.blocks, held) if held < len(ask.blocks) else held

    def cached_tokens(self, ask: "Ask") -> int:
        """The prompt tokens that are probably in the cache."""
        if not ask.blocks or not ask.reads_cache:
            return 0
        held = self.held(ask)
        if not held:
            return 0
        expected = ask.leading_tokens(held)
        return expected if self.hits.whole else int(expected * self.hits.of(kind_of(ask, held)))

    def begun(self, path: str, kind: Kind, expected_tokens: int) -> int:
        """Note the first token of a prompt. By now the engine's metrics tell what was found.

        Returns how many tokens its answer is expected to tell, 0 if it will not.
        """
        self.awaited_tokens -= expected_tokens
        if path in self._telling:
            likely = int(expected_tokens * self.hits.of(kind))
            self._told_tokens += likely
            self._pending_tokens += likely
            return likely
        self._await_metrics(kind, expected_tokens)
        return 0

    def answered(self, likely_tokens: int) -> None:
        """Note that an answer told what was cached. `likely_tokens`: what it was expected to."""
        self._pending_tokens -= likely_tokens

    def untold(self, kind: Kind, expected_tokens: int, likely_tokens: int, since: int) -> None:
        """Note that an answer ended before it told. From now on only the metrics tell.

        `likely_tokens`: what it was expected to tell, `since`: the number of reports at its first
        token. If one came since, that has counted these tokens as told, and others may have lost
        them. They get back what the metrics showed.
        """
        self._pending_tokens -= likely_tokens
        back = float(likely_tokens)
        if since != self.reports:
            back = max(0.0, back - self._missing_tokens)
            self._missing_tokens -= likely_tokens - back
        self._told_tokens -= back
        self._await_metrics(kind, expected_tokens)

    def _await_metrics(self, kind: Kind, expected_tokens: int) -> None:
        begun = self._begun_tokens
        if kind in begun or len(begun) < KINDS_MAX:
            begun[kind] = begun.get(kind, 0) + expected_tokens

    def told(self, more_tokens: int) -> None:
        """Note that an answer told so many more than was expected. The metrics count them, too."""
        self._told_tokens += more_tokens

    def settle(
        self, path: str, kind: Kind, expected_tokens: int, cached_tokens: int | None
    ) -> None:
        """Note an answer: what should have been found, and what was found, if it tells.

        Where answers tell it, one that does not has found nothing: older vLLMs leave out a zero.
        """
        if cached_tokens is not None:
            self._telling.add(path)
        elif path not in self._telling:
            return
        if expected_tokens:
            self.hits.observe(kind, expected_tokens, cached_tokens or 0)

    def take(self, report: EngineReport, before: EngineReport | None) -> None:
        """Take the engine's present and previous metrics."""
        if report.kv_tokens is not None:
            self.index.resize(report.kv_tokens // BLOCK_TOKENS)
        if not report.awake:
            self.forget()
        if before is not None and not report.restarted_since(before):
            self._correct(report.prefix_hits_tokens - before.prefix_hits_tokens)
        self._begun_tokens = {}
        self._told_tokens = 0.0
        self.reports += 1

    def _correct(self, found: int) -> None:
        """Compare the tokens that the metrics report as found with those that were expected.

        An engine counts a hit when it begins with a prompt. We count at the first token, a report
        or more later if the prompt is long. What is left belongs to requests that wait for their
        first token, or to others.
        """
        pool = self._found_tokens + found - self._told_tokens
        missing = self._missing_tokens + max(0.0, -pool)
        self._missing_tokens = min(missing, float(self._pending_tokens))
        pool = max(0.0, pool)
        if self._begun_tokens:
            pool -= self.hits.divide(self._begun_tokens, pool)
        self._found_tokens = min(pool, AWAITED_OFF * self.awaited_tokens)

    def forget(self) -> None:
        """The engine's cache is empty."""
        self.index.clear()

    def restarted(self) -> None:
        """The engine may be another one: forget what was learnt about the old one."""
        self.forget()
        self.hits = HitCorrections()
        self._found_tokens = self._told_tokens = self._missing_tokens = 0.0
        self._begun_tokens = {}
        self._telling = set()


def kind_of(ask: "Ask", held: int) -> Kind:
    """The kind for which a request's hits are counted. `held`: blocks that are expected."""
    return ask.client, ask.blocks[held - 1] % KINDS if held else 0
