"""How far the answers of one flow may outgrow what is expected of them, at one backend.

Room in a KV cache is given by the expected lengths of answers, and a client can make those wrong.
It sends short ones first, then many long ones at once. The cache runs over, the engine stops
streams and queues them, and everybody's requests wait behind. So there is a bound on what all
running answers of a flow may come to:

- As much as the flow was given at this backend of late, as far as that was expected. So a flow with
  ordinary answers soon has no bound. To take much by surprise, it must first have been given as
  much.
- Beyond that, at most ALPHA times what all flows leave of the cache: the dynamic thresholds for
  shared buffers of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6(2), 1998). So one
  flow alone takes three quarters, and another always finds room.
"""

from math import exp
from typing import Final, NamedTuple

from penstock.balancing.admission.ticket import Flow
from penstock.balancing.ask import Ask

ALPHA: Final = 3.0
# The first answer of a flow may take all that is left but for a small part, for short ones.
LARGE_SHARE: Final = 0.9375
# How long room is kept for one that waits, after the last look at it.
KEPT_S: Final = 1.0
# What a flow was given is forgotten with this time constant.
EARNED_TAU_S: Final = 60.0
# An answer may become as long as the longest of its flow's last ones, and as long as this in any
# case. A client's own limit may be a habit and no plan.
TOKENS: Final = 2_048.0


def most_tokens(flow: Flow, ask: Ask) -> float:
    """What the answer may come to, all its choices together."""
    if not ask.generates:
        return 0.0
    times = flow.spread.most_times
    known = max(flow.answer_tokens, ask.output_tokens) if flow.answers else flow.answer_tokens
    each = max(TOKENS, (times or 2.0) * known)
    if ask.max_tokens is not None and ask.max_tokens < each:
        each = float(ask.max_tokens)
    return each * ask.prompts * ask.choices


class _Stake:
    """Of one flow: what its running answers may come to, and what it was given of late."""

    __slots__ = ("at_s", "earned", "tokens")

    def __init__(self, now_s: float) -> None:
        self.tokens = self.earned = 0.0
        self.at_s = now_s

    @property
    def unearned(self) -> float:
        return max(0.0, self.tokens - self.earned)

    def unearned_at(self, now_s: float, more_tokens: float = 0.0) -> float:
        return max(0.0, self.tokens + more_tokens - self._earned_at(now_s))

    def fade(self, now_s: float) -> None:
        self.earned = self._earned_at(now_s)
        self.at_s = max(self.at_s, now_s)

    def _earned_at(self, now_s: float) -> float:
        return self.earned * exp(min(0.0, self.at_s - now_s) / EARNED_TAU_S)


class Kept(NamedTuple):
    """Room that is kept for a flow which has nothing under way, while it waits for that."""

    flow: Flow | None
    tokens: float
    until_s: float


class Exposure:
    """The stakes of all flows at one backend."""

    __slots__ = ("_kept", "_stakes", "_tokens", "_unearned")

    def __init__(self) -> None:
        self._stakes: dict[Flow, _Stake] = {}  # of flows with running answers, or given some lately
        self._tokens = 0.0  # of all
        self._unearned = 0.0  # of all, as each was when it was looked at last
        self._kept = Kept(None, 0.0, 0.0)

    def allows(self, flow: Flow, tokens: float, capacity: int, now_s: float) -> bool:
        """Whether a flow may have one more answer of at most so many tokens."""
        kept, kept_tokens = self._kept, 0.0
        if kept.flow is not None and kept.flow is not flow and now_s < kept.until_s:
            kept_tokens = kept.tokens
        if self._tokens + tokens + kept_tokens <= capacity * ALPHA / (1.0 + ALPHA):
            return True
        stake, then = self._stakes.get(flow), tokens
        others = self._unearned + kept_tokens
        if stake is not None:
            others -= stake.unearned
            then = stake.unearned_at(now_s, tokens)
        first = stake is None or not stake.tokens
        if first and tokens <= LARGE_SHARE * capacity - others:
            return True
        return then <= ALPHA * max(0.0, capacity - others - then)

    def crowds(self, flow: Flow, free: float, generated: float, now_s: float) -> bool:
        """Whether a flow has its part of what would be left if all answers came as a surprise.

        `free`: what prompts and answers leave of the cache now. `generated`: tokens of the running
        answers. The same thresholds as `allows`. A flow without surprises has no such part.
        """
        stake = self._stakes.get(flow)
        mine = stake.unearned_at(now_s) if stake is not None else 0.0
        return mine > 0.0 and mine >= ALPHA * (free - max(0.0, self._unearned - generated))

    def keep(self, flow: Flow, tokens: float, now_s: float) -> None:
        """It waits for an answer of at most so many tokens.

        If it has none under way, others must not fill up what comes free before it has room. One
        flow is kept for at a time, as long as it is looked at.
        """
        stake = self._stakes.get(flow)
        if stake is not None and stake.tokens:
            return
        if self._kept.flow is flow or now_s >= self._kept.until_s:
            self._kept = Kept(flow, tokens, now_s + KEPT_S)

    def look(self, flow: Flow, now_s: float) -> None:
        """Let what a flow was given fade: others see what it may still take."""
        stake = self._stakes.get(flow)
        if stake is not None:
            self._unearned -= stake.unearned
            stake.fade(now_s)
            self._unearned += stake.unearned

    def add(self, flow: Flow, tokens: float, now_s: float) -> None:
        """It is sent one."""
        self._change(flow, tokens, 0.0, now_s)

    def remove(self, flow: Flow, tokens: float, earned_tokens: float, now_s: float) -> None:
        """That has ended. `earned_tokens`: it had as many, and as many were expected."""
        self._change(flow, -tokens, earned_tokens, now_s)

    def _change(self, flow: Flow, tokens: float, earned_tokens: float, now_s: float) -> None:
        stake = self._stakes.get(flow)
        if stake is None:
            stake = self._stakes[flow] = _Stake(now_s)
        self._unearned -= stake.unearned
        stake.fade(now_s)
        stake.tokens += tokens
        stake.earned += earned_tokens
        self._tokens += tokens
        self._unearned += stake.unearned
        if stake.tokens < 0.5:  # no rounding stays
            stake.tokens = 0.0
            if stake.earned < 1.0:
                del self._stakes[flow]
