"""What one request says about service levels: how it ended, and how fast it was.

Whose fault an end is decides whether it counts. A client that asks for too much, leaves, or allows
too little time uses up nobody's error budget, unless its whole pool answers nobody (`Abandoned`).
"""

from enum import Enum
from math import inf
from typing import Final, NamedTuple

from penstock.balancing.ask import Ask
from penstock.balancing.speed.estimates import prior_decode_s, prior_prefill_s, work_of

# A proxy's or a backend's answers for lack of room, by the code of the error.
_SHED: Final = frozenset({"overloaded", "context_too_long_now"})
# Limits of the process that whoever is refused has filled, or may have filled, without a request.
_OWN_LIMITS: Final = frozenset({"connections", "unread"})
# The client's own time was over, or would be.
_IMPATIENT: Final = frozenset({"deadline", "request_timeout"})


class Outcome(Enum):
    """How a request ended, as far as service levels care."""

    SERVED = "served"
    FAILED = "failed"  # a 5xx, or an answer that broke off
    SHED = "shed"  # refused for load
    LEFT = "left"  # the client left, or its own time was over
    FAULT = "fault"  # the request itself was refused; also for its tenant's budget


def outcome_of(status: int, code: str | None, reason: str | None, *, whole: bool) -> Outcome:
    """How a request ended.

    `status`: as the client saw it. `code`, `reason`: of penstock's own error, None if there was
    none. `whole`: the client was sent a whole answer.
    """
    if code in _IMPATIENT or reason == "client_timeout":
        return Outcome.LEFT
    if code in _SHED:
        return Outcome.FAULT if reason in _OWN_LIMITS else Outcome.SHED
    if code == "poison_request":  # engines died of it
        return Outcome.FAULT
    if code is None and not whole:
        return Outcome.LEFT
    if code == "stream_broken" or status >= 500:
        return Outcome.FAILED
    if code is None and status == 429:  # a backend's own: tenants' budgets have a code
        return Outcome.SHED
    return Outcome.SERVED if status < 400 else Outcome.FAULT


class Sample(NamedTuple):
    """One request that has ended. Times are in seconds, None if there is none.

    `elapsed_s`: from the whole request to its end, however it ended. `streams`: it wanted a stream,
    or got one. `e2e_s`: to the end of a whole answer. `vain_s`: the time in which it should have
    begun, if in all of its time nobody's answer began in its pool.
    """

    outcome: Outcome
    elapsed_s: float
    streams: bool = False
    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    vain_s: float | None = None

    def in_vain(self, patience_s: float) -> bool:
        """Whether its client has waited for nothing, longer than this and than `vain_s`."""
        return self.vain_s is not None and self.elapsed_s > max(self.vain_s, patience_s)

    def time_of(self, kind: str) -> float | None:
        """Its time of a kind: `ttft`, `itl` or `e2e`. None if it has none or it is unknown."""
        if kind == "ttft":
            return self.ttft_s
        return self.itl_s if kind == "itl" else self.e2e_s

    def meets(self, kind: str, target_s: float) -> bool | None:
        """Whether it was as fast as that. None if nobody knows.

        What ended without its first token, or without its end, was too slow if it had taken
        longer than the target already. Else it says nothing about the speed.
        """
        time_s = self.time_of(kind)
        if time_s is not None:
            return time_s <= target_s
        if self.outcome is Outcome.FAULT or kind == "itl":
            return None
        unknown = self.ttft_s is None and self.streams if kind == "ttft" else True
        if unknown and self.outcome is not Outcome.SERVED and self.elapsed_s > target_s:
            return False
        return None


# After this time at the earliest, if no target for first tokens is shorter.
VAIN_S: Final = 2.0
# A sound engine may be slower than the first guesses of speeds, and has other prompts, too.
SLOWER: Final = 2.0
# One client is believed alone after this time, if nobody's answer has begun in it.
ALONE_S: Final = 30.0


def begins_within_s(ask: Ask) -> float:
    """A time in which an engine has begun to answer, by the first guesses of speeds.

    Measured speeds would not do: an engine that hangs is measured as slow.
    """
    seconds = prior_prefill_s(
        work_of(ask.prompt_tokens, ask.prompt_tokens / ask.prompts, ask.prompts)
    )
    if ask.generates and not ask.stream:  # a plain answer begins when it is computed
        seconds += (ask.max_tokens or ask.output_tokens) * prior_decode_s(0.0)
    return SLOWER * seconds


class _Pool:
    """Who left with nothing since the last answer began: the first of them has waited since
    `since_s`, and `clients` are one or two that differ."""

    def __init__(self) -> None:
        self.clients: set[str] = set()
        self.since_s = inf


class Abandoned:
    """Who left with nothing, by pool: when that counts as not served.

    In an outage all clients leave before penstock's limits end their requests. They also leave for
    reasons of their own. So it counts only while the whole pool begins no answer, after a time in
    which a sound engine begins this one, and for more than one client, or for long.
    """

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def counts(
        self, pool: str, client: str, since_s: float, now_s: float, answered_s: float
    ) -> bool:
        """Whether it counts that this client has left with nothing, after a wait since then.

        `answered_s`: when an answer began last in this pool.
        """
        known = self._pools.get(pool)
        if known is None or answered_s >= known.since_s:
            known = self._pools[pool] = _Pool()
        known.since_s = min(known.since_s, since_s)
        if len(known.clients) < 2:
            known.clients.add(client)
        return len(known.clients) > 1 or now_s - known.since_s >= ALONE_S

    def keep(self, pools: set[str]) -> None:
        """Forget all other pools."""
        for gone in self._pools.keys() - pools:
            del self._pools[gone]
