"""When a client that left with nothing counts as not served.

Clients have limits of their own. In an outage they all leave before penstock's limits end their
requests. Then nobody would be at fault, and nothing would be told. But clients also leave for
reasons of their own, and nobody may use up an error budget by that. So it counts only while the
whole pool begins no answer, and after a time in which a sound engine begins this one. And one
client alone proves no outage where others were served lately: it may leave its own requests. It is
believed if another one leaves so at the same time, or if no answer begins for long.
"""

from math import inf
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.decode_speed import prior_s as decode_prior_s
from penstock.balancing.prefill_speed import prior_s as prefill_prior_s
from penstock.balancing.prefill_speed import work_of

# After this time at the earliest, if no target for first tokens is shorter.
VAIN_S: Final = 2.0
# A sound engine may be slower than the first guesses of speeds, and has other prompts, too.
SLOWER: Final = 2.0
# Who was served within this time counts as there.
THERE_S: Final = 300.0
# One client is believed alone after this time, if nobody's answer has begun in it.
ALONE_S: Final = 30.0


def begins_within_s(ask: Ask) -> float:
    """A time in which an engine has begun to answer, by the first guesses of speeds.

    Measured speeds would not do: an engine that hangs is measured as slow.
    """
    seconds = prefill_prior_s(
        work_of(ask.prompt_tokens, ask.prompt_tokens / ask.prompts, ask.prompts)
    )
    if ask.generates and not ask.stream:  # a plain answer begins when it is computed
        seconds += (ask.max_tokens or ask.output_tokens) * decode_prior_s(0.0)
    return SLOWER * seconds


class _Pool:
    """`served`, `vain`: when the last two clients, of those that differ, were served, or left.
    `vain_since_s`: since when those that left have waited, and nobody was served."""

    __slots__ = ("served", "vain", "vain_since_s")

    def __init__(self) -> None:
        self.served: dict[str, float] = {}
        self.vain: dict[str, float] = {}
        self.vain_since_s = inf


class Witnesses:
    """Who was served in each pool lately, and who waited in vain."""

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def served(self, pool: str, client: str, began_s: float) -> None:
        """An answer began then for a request of this client. It may have ended long after."""
        known = self._pools.setdefault(pool, _Pool())
        if began_s > max(known.served.values(), default=-inf):
            _see(known.served, client, began_s)
        if began_s >= known.vain_since_s:
            known.vain_since_s = inf

    def in_vain(self, pool: str, client: str, since_s: float, now_s: float) -> bool:
        """This client has left with nothing, after a wait since then. Whether that counts."""
        known = self._pools.setdefault(pool, _Pool())
        known.vain_since_s = min(known.vain_since_s, since_s)
        alone = not _another(known.served, client, now_s - THERE_S)
        together = _another(known.vain, client, since_s)
        _see(known.vain, client, now_s)
        return alone or together or now_s - known.vain_since_s >= ALONE_S

    def keep(self, pools: set[str]) -> None:
        """Forget all other pools."""
        for gone in self._pools.keys() - pools:
            del self._pools[gone]


def _see(two: dict[str, float], client: str, at_s: float) -> None:
    """Note a client as the last one, and forget all but one other."""
    two.pop(client, None)
    two[client] = at_s
    if len(two) > 2:
        del two[next(iter(two))]


def _another(two: dict[str, float], client: str, since_s: float) -> bool:
    """Whether another client was seen since then."""
    return bool([at_s for each, at_s in two.items() if each != client and at_s >= since_s])
