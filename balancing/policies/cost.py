"""What a place costs in seconds, by the terms of `token_cost`, and what would lower that cost."""

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Part


class Weights(NamedTuple):
    """How much each term counts. Fitted on the first windows of published traces."""

    wait: float = 1.0
    prefill: float = 1.0
    later: float = 0.4
    others: float = 2.0
    step: float = 0.2
    held: float = 1.0
    beside: float = 0.5


class Cost:
    """What one backend would cost, in seconds, by its terms.

    No dataclass: compiled, that would take half of the time of a choice.
    """

    __slots__ = ("beside_s", "held_s", "later_s", "others_s", "prefill_s", "step_s", "wait_s")

    def __init__(
        self,
        wait_s: float,
        prefill_s: float,
        later_s: float,
        others_s: float,
        step_s: float,
        held_s: float,
        beside_s: float,
    ) -> None:
        self.wait_s = wait_s
        self.prefill_s = prefill_s
        self.later_s = later_s
        self.others_s = others_s
        self.step_s = step_s
        self.held_s = held_s
        self.beside_s = beside_s

    @property
    def seconds(self) -> float:
        own = self.wait_s + self.prefill_s + self.step_s + self.held_s
        return own + self.later_s + self.others_s + self.beside_s

    @property
    def terms(self) -> Mapping[str, float]:
        """Every term by its name, in the order of `Weights`."""
        return {
            "wait_s": self.wait_s,
            "prefill_s": self.prefill_s,
            "later_s": self.later_s,
            "others_s": self.others_s,
            "step_s": self.step_s,
            "held_s": self.held_s,
            "beside_s": self.beside_s,
        }


def part_of(
    backend: Backend, cost: Cost, best: Backend, bar_s: float, ask: Ask, now_s: float
) -> Part:
    """What to say of a backend that is not chosen: it would have to cost less than `bar_s`.

    `best` is chosen. Each way to win is the least change of one thing, where nothing else changes.
    The wait and the prefill enter the cost linearly, each with its share of the product of both.
    """
    gap_s = cost.seconds - bar_s
    penalty_s = backend.penalty.read(now_s, ask.client)
    share = penalty_s / cost.wait_s if penalty_s else 0.0
    waits_s = (1.0 - share) * (cost.wait_s + cost.later_s)
    gap_s -= share * (cost.wait_s + cost.later_s)
    before = f"the end of its penalty for failures, in {penalty_s:.1f} s" if penalty_s else ""
    if before and gap_s <= 0.0:
        return _winning(cost, before)
    if gap_s <= 0.0:
        tie = f"fewer tokens given to it recently, by weight: now it costs the same as {best.name}"
        return _winning(cost, tie)
    ways = []
    if waits_s >= gap_s:
        ahead = backend.waiting_tokens(now_s)
        ways.append(f"{ceil(ahead * gap_s / waits_s):,} fewer tokens to prefill before it")
    prefills_s = cost.prefill_s + cost.later_s + cost.others_s
    if prefills_s >= gap_s:
        uncached = ask.prompt_tokens - backend.cache.cached_tokens(ask)
        ways.append(
            f"{ceil(uncached * gap_s / prefills_s):,} more tokens of the prompt in its cache"
        )
    if cost.held_s >= gap_s:
        less = ceil(backend.active_decode_tokens * gap_s / cost.held_s)
        ways.append(f"{less:,} fewer tokens held by open streams")
    load_s = waits_s + cost.others_s + cost.held_s + cost.beside_s
    if not ways and load_s * (1.0 + 1e-9) >= gap_s:  # as idle as the best, but for rounding
        ways.append(f"{gap_s / load_s:.0%} less load of every kind")
    if ways:
        return _winning(cost, " or ".join(f"{before} and {way}" if before else way for way in ways))
    why_not = "it would be slower even when idle"
    if best.name == ask.home:
        why_not = f"the session stays at {best.name} unless the cost rises there"
    return Part(cost.seconds, cost.terms, why_not=why_not)


def _winning(cost: Cost, to_win: str) -> Part:
    return Part(cost.seconds, cost.terms, to_win)
