"""What goes otherwise than a router thinks, or than anybody wants."""

from dataclasses import dataclass
from typing import Final

# Of the logarithm of estimate / truth: a median error of 6.5 % is 0.0963 for a normal law
# (bench/RESULTS.md, estimators; the tails there are longer).
ESTIMATE_SIGMA: Final = 0.0963
# About what an engine takes to start again with its weights in memory.
OUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Adversity:
    """Part of a cell's coordinates.

    `slow`: so many of the engines, the last ones, take twice the time for everything. `hidden`:
    this share of the requests reaches engines drawn at random by another way, seen only in the
    engines' metrics. `sigma`: error of prompt estimates (standard deviation of the logarithm).
    `rates_wrong`: learnt prefill speeds are read this much too high at every other backend, too low
    at the rest. `outage`: of the last two backends one joins when a sixth of the trace is over; the
    other dies after a third, with all that it was doing, and is back after two. `out`: so many of
    the backends, the first ones, die when half of the trace is over and are back OUT_S later.
    `plain`: this share of the answers come whole, so that no first token is seen. `untold`: answers
    do not tell how much of their prompt was cached, and only the engines' metrics do, as without
    vLLM's `--enable-prompt-tokens-details`.
    """

    slow: int = 0
    hidden: float = 0.0
    sigma: float = ESTIMATE_SIGMA
    rates_wrong: float = 0.0
    outage: bool = False
    out: int = 0
    plain: float = 0.0
    untold: bool = False

    def __str__(self) -> str:
        """What differs from an ordinary day."""
        told = []
        if self.slow:
            told.append(f"{self.slow} at half speed")
        if self.hidden:
            told.append(f"{self.hidden:.0%} by another way")
        if self.sigma != ESTIMATE_SIGMA:
            told.append(f"estimates off by {self.sigma:.0%}")
        if self.rates_wrong:
            told.append(f"rates wrong by {self.rates_wrong:.0%}")
        if self.outage:
            told.append("one joins, one dies and comes back")
        if self.out:
            told.append(f"{self.out} out for {OUT_S:g} s")
        if self.plain:
            told.append(f"{self.plain:.0%} not streamed")
        if self.untold:
            told.append("cached tokens told by metrics only")
        return ", ".join(told)


CALM: Final = Adversity()
