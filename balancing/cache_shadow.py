"""What a backend's prefix cache holds of prompts, as far as we can tell.

The index knows what was computed there, `waiting` what was sent and is not computed yet, and
the corrections how much of what both promise was really found.
"""

from typing import TYPE_CHECKING, Final

from balancing.engine_report import EngineReport
from balancing.hit_correction import KINDS, HitCorrections, Kind
from balancing.prefix_index import BLOCK_TOKENS, PrefixIndex
from balancing.unconfirmed_blocks import UnconfirmedBlocks
from balancing.waiting_blocks import WaitingBlocks

if TYPE_CHECKING:
    from balancing.ask import Ask

# Tokens awaited are estimates, those found the engine's: before a model is known, off by so much.
AWAITED_OFF: Final = 2


class CacheShadow:
    """Of one backend. Only the claims of leases change what it holds."""

    __slots__ = (
        "_found_tokens",
        "_told_tokens",
        "_untold_tokens",
        "awaited_tokens",
        "hits",
        "index",
        "unconfirmed",
        "waiting",
    )

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.waiting = WaitingBlocks()
        self.unconfirmed = UnconfirmedBlocks(self.index)
        self.hits = HitCorrections()
        # Prompt tokens that should have been in the cache, of requests in flight; since the last
        # report, of answers that did not tell what was; and what was, of those that did.
        self.awaited_tokens = 0
        self._untold_tokens: dict[Kind, int] = {}
        self._told_tokens = 0
        self._found_tokens = 0  # by the engine's metrics, of requests that had no answer yet

    def held(self, ask: "Ask") -> int:
        """How many of its leading blocks it has, or will have before it."""
        held = self.index.held(ask.blocks)
        return self.waiting.held(ask.blocks, held) if held < len(ask.blocks) else held

    def cached_tokens(self, ask: "Ask") -> int:
        """Of its prompt, what is probably there."""
        if not ask.blocks or not ask.reads_cache:
            return 0
        held = self.held(ask)
        if not held:
            return 0
        expected = ask.leading_tokens(held)
        return expected if self.hits.whole else int(expected * self.hits.of(kind_of(ask, held)))

    def settle(self, kind: Kind, expected_tokens: int, cached_tokens: int | None) -> None:
        """An answer came: so much should have been found, and was, where it tells."""
        if cached_tokens is None:
            if expected_tokens:
                self._untold_tokens[kind] = self._untold_tokens.get(kind, 0) + expected_tokens
            return
        self.told(cached_tokens)
        if expected_tokens:
            self.hits.observe(kind, expected_tokens, cached_tokens)

    def told(self, cached_tokens: int) -> None:
        """An answer told so many, which the engine's metrics count too."""
        self._told_tokens += cached_tokens

    def take(self, report: EngineReport, before: EngineReport | None) -> None:
        """What its engine's metrics say now, and said before."""
        if report.kv_tokens is not None:
            self.index.resize(report.kv_tokens // BLOCK_TOKENS)
        if not report.awake:
            self.forget()
        if before is not None and not report.restarted_since(before):
            self._correct(report.prefix_hits_tokens - before.prefix_hits_tokens)
        self._untold_tokens = {}
        self._told_tokens = 0

    def _correct(self, found: int) -> None:
        """Hold what its metrics found since the last report against what should have been.

        An engine counts a hit when it begins with a prompt, we when the answer is there, reports
        later: what was found and belongs to no answer is that of requests in flight, or of others.
        """
        self._found_tokens = max(0, self._found_tokens + found - self._told_tokens)
        untold = sum(self._untold_tokens.values())
        if untold:
            used = min(self._found_tokens, untold)
            self.hits.divide(self._untold_tokens, used)
            self._found_tokens -= used
        self._found_tokens = min(self._found_tokens, AWAITED_OFF * self.awaited_tokens)

    def forget(self) -> None:
        """The engine holds nothing any more."""
        self.index.clear()

    def restarted(self) -> None:
        """Another engine, maybe: what was learnt of the last is void."""
        self.forget()
        self.hits = HitCorrections()
        self._found_tokens = self._told_tokens = 0
        self._untold_tokens = {}


def kind_of(ask: "Ask", held: int) -> Kind:
    """What its report of hits counts among, where so many of its blocks are expected."""
    return ask.client, ask.blocks[held - 1] % KINDS if held else 0
