"""A shadow of a backend's prefix cache: what it probably holds.

The index has the prompts that were computed there, and `waiting` those that were sent and are not
computed yet. The corrections tell how much of what both promise was really found.
"""

from typing import TYPE_CHECKING

from penstock.balancing.counted_hits import CountedHits
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.hit_correction import KINDS, HitCorrections, Kind
from penstock.balancing.prefix_index import BLOCK_TOKENS, PrefixIndex
from penstock.balancing.unconfirmed_blocks import UnconfirmedBlocks
from penstock.balancing.waiting_blocks import WaitingBlocks

if TYPE_CHECKING:
    from penstock.balancing.ask import Ask


class CacheShadow:
    """The shadow of one backend's cache. Only the claims of leases change its content."""

    __slots__ = (
        "_telling",
        "awaited_tokens",
        "counted",
        "hits",
        "index",
        "keeps",
        "unconfirmed",
        "waiting",
    )

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.keeps = True  # False: the engine says that it keeps nothing
        self.waiting = WaitingBlocks()
        self.unconfirmed = UnconfirmedBlocks(self.index)
        self.hits = HitCorrections()
        # Expected cached tokens of requests without a first token.
        self.awaited_tokens = 0
        self.counted = CountedHits(self.hits)
        self._telling: set[str] = set()  # the paths whose answers tell what was found

    def held(self, ask: "Ask") -> int:
        """How many of the request's leading blocks are in the cache, or will be in time."""
        if not self.keeps:
            return 0
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

        Returns how many tokens its answer will usually tell, 0 if none.
        """
        self.awaited_tokens -= expected_tokens
        if path not in self._telling:
            self.counted.begun(kind, expected_tokens)
            return 0
        return self.counted.begun_telling(kind, expected_tokens)

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
        self.keeps = report.keeps_prefixes
        if not report.awake or not self.keeps:
            self.forget()
        if before is not None and not report.restarted_since(before):
            found_tokens = report.prefix_hits_tokens - before.prefix_hits_tokens
            self.counted.take(found_tokens, self.awaited_tokens)
        else:
            self.counted.skip()

    def forget(self) -> None:
        """The engine's cache is empty."""
        self.index.clear()

    def restarted(self) -> None:
        """The engine may be another one: forget what was learnt about the old one."""
        self.forget()
        self.hits = HitCorrections()
        self.counted = CountedHits(self.hits)
        self._telling = set()


def kind_of(ask: "Ask", held: int) -> Kind:
    """The kind for which a request's hits are counted. `held`: blocks that are expected."""
    return ask.client, ask.blocks[held - 1] % KINDS if held else 0
