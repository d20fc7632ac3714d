"""When a client that left with nothing counts as not served.

Clients have limits of their own. In an outage they all leave before penstock's limits end their
requests. Then nobody would be at fault, and nothing would be told. But clients also leave for
reasons of their own, and nobody may use up an error budget by that. So it counts only while the
whole pool begins no answer, and after a time in which a sound engine begins this one. One client
alone proves no outage: it is believed when another one has left so since the last answer, or when
no answer begins for long.
"""

from math import inf
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.speed.estimates import prior_decode_s, prior_prefill_s, work_of

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

    __slots__ = ("clients", "since_s")

    def __init__(self) -> None:
        self.clients: set[str] = set()
        self.since_s = inf


class Abandoned:
    """Who left with nothing, by pool."""

    __slots__ = ("_pools",)

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
