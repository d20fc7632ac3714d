"""`penstock bench spill`: long prompts in one fleet, in a pool of their own, and with spilling.

A share of the requests has prompts of 100,000 tokens. A call is good with a first token within
5 s (30 s for a long prompt) and 100 ms a token. The choices, the admission and the routes are the
real ones, the engines simulated in discrete-event time.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from statistics import fmean
from typing import Any, Final

from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies.policy import Policy
from penstock.balancing.policies.token_cost import TokenCost
from penstock.balancing.pool_costs import PoolCosts
from penstock.balancing.routes.building import table_of
from penstock.balancing.routes.decision import Target, spilled
from penstock.balancing.routes.request import RouteRequest
from penstock.bench.arguments import count, listed, option, options_of_runs, positive, share
from penstock.bench.report import computed, head, row, save
from penstock.bench.routing.experiment import Experiment, Router
from penstock.bench.routing.outcome import GOOD_TPOT_S, Outcome, quantile
from penstock.bench.routing.outcome import GOOD_TTFT_S as GOOD_S
from penstock.bench.routing.trace import Arrival, random_times, speedup
from penstock.bench.sim.profiles import GPUS
from penstock.conf.routes import RouteSettings

LONG_TOKENS: Final = 100_000
# From here on a prompt counts as long. Alone, one of LONG_TOKENS takes 8.7 s.
BORDER_TOKENS: Final = 16_000
GOOD_LONG_S: Final = 30.0
RULES: Final = ("one", "split", "spill")
# Rates are found for a load, so the first guess does not matter.
GUESS_PER_S: Final = 5.0
SHOWN: Final = (
    ("chat_p50_s", "interactive: TTFT p50 s"),
    ("chat_p99_s", "p99 s"),
    ("of_one", "x one fleet"),
    ("long_p50_s", "long: TTFT p50 s"),
    ("long_p99_s", "p99 s"),
    ("goodput", "good"),
    ("chat_goodput", "interactive"),
    ("long_goodput", "long"),
    ("spilled", "spilled"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `load`: 1.0 fills the engines (`bench/routing/trace.py`).

    `long_engines`: of the pool for long prompts.
    """

    load: float
    long_engines: int
    rule: str
    seed: int
    share: float
    backends: int
    profile: str
    length_s: float
    admission: bool

    def arrivals(self) -> list[Arrival]:
        """The same for all rules."""
        rng, found = Random(self.seed), []
        for at_s in random_times(self.length_s, GUESS_PER_S, rng):
            long = rng.random() < self.share
            sizes = LONG_TOKENS if long else rng.randint(100, 4_000), rng.randint(50, 400)
            found.append(Arrival(at_s, *sizes, tenant="long" if long else "chat"))
        faster = speedup(found, GPUS[self.profile], self.backends, self.load)
        return [each._replace(at_s=each.at_s / faster) for each in found]

    def figures(self) -> dict[str, float]:
        """Compute it. The same cell gives the same figures."""
        return Spill(self).play(self.arrivals())

    def __str__(self) -> str:
        if self.rule == "one":
            return "one fleet"
        return f"{self.rule}, {self.long_engines} + {self.backends - self.long_engines}"

    def routes(self) -> list[dict[str, Any]]:
        """Long prompts have a pool, and everything else another one."""
        if self.rule == "one":
            return []
        found: list[dict[str, Any]] = []
        match = {"prompt_tokens": {"min": BORDER_TOKENS}}
        for name, other, when in (("long", "chat", match), ("chat", "long", {})):
            to = [{"pool": name}, {"pool": other, "weight": 0}]
            found.append({"name": name, "match": when, "to": to, "spill": self.rule == "spill"})
        return found


class TwoKinds(Outcome):
    """Samples of interactive requests and of long prompts apart."""

    def __init__(self, backends: int) -> None:
        super().__init__(backends)
        self.by_kind: dict[str, list[float]] = {"chat": [], "long": []}
        self._good_by_kind = {"chat": 0, "long": 0}

    def add(self, arrival: Arrival, ttft_s: float, end_s: float, cached_tokens: int) -> None:
        super().add(arrival, ttft_s, end_s, cached_tokens)
        kind = arrival.tenant
        self.by_kind[kind].append(ttft_s)
        each_s = (end_s - arrival.at_s - ttft_s) / max(1, arrival.output_tokens - 1)
        good_s = GOOD_LONG_S if kind == "long" else GOOD_S
        self._good_by_kind[kind] += ttft_s <= good_s and each_s <= GOOD_TPOT_S

    def told(self) -> dict[str, float]:
        """Times of both kinds, and shares of good calls."""
        found, count = {}, 0
        for kind, ttfts_s in self.by_kind.items():
            count += len(ttfts_s)
            found[f"{kind}_p50_s"] = quantile(ttfts_s, 0.5)
            found[f"{kind}_p99_s"] = quantile(ttfts_s, 0.99)
            found[f"{kind}_goodput"] = self._good_by_kind[kind] / max(1, len(ttfts_s))
        return found | {"goodput": sum(self._good_by_kind.values()) / max(1, count)}


class Spill(Experiment):
    """The same engines under one rule."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._routes = table_of([RouteSettings.model_validate(each) for each in cell.routes()])
        self._divided: tuple[Pool, ...] = ()
        super().__init__(
            lambda known, view: TokenCost(),
            GPUS[cell.profile],
            backends=cell.backends,
            routers=1,
            seed=cell.seed,
            admission=cell.admission,
        )
        router = self._routers[0]
        divided = Fleet(self._divided)
        self._costs = PoolCosts(router.gate, lambda: divided, router.admission)
        self.outcome: TwoKinds = TwoKinds(cell.backends)
        self.spilled = 0

    def _pools(self, known: tuple[Backend, ...], policy: Policy) -> tuple[Pool, ...]:
        if self._cell.rule == "one":
            self._divided = super()._pools(known, policy)
            return self._divided
        long_engines = self._cell.long_engines
        divided = {"long": known[:long_engines], "chat": known[long_engines:]}
        for name, backends in divided.items():
            for backend in backends:
                backend.pool = name
        self._divided = tuple([Pool(name, each, TokenCost()) for name, each in divided.items()])
        return self._divided

    def _aim(self, ask: Ask, router: Router, now_s: float) -> Ask:
        decision = self._routes.decide(RouteRequest(ask, lambda name: None))
        if decision is None:
            return ask
        if decision.rule.spill:

            def cost_s(target: Target) -> float:
                aimed = ask.changed(pool=target.pool)
                request = QueuedRequest(aimed, now_s, lambda outcome: None, ask.tenant, dry=True)
                return self._costs.cost_s(request, now_s)

            usual, decision = decision.target, spilled(decision, cost_s)
            self.spilled += decision.target is not usual
        assert decision.target is not None
        return ask.changed(pool=decision.target.pool)

    def play(self, coming: Sequence[Arrival]) -> dict[str, float]:
        """Play all requests to the end of the last answer."""
        self.run(coming)
        return self.outcome.told() | {"spilled": self.spilled / max(1, len(coming))}


def run(options: Namespace) -> int:
    """Print a table for each load. Returns the exit status."""
    cells = list(_cells(options))
    found = computed(Cell.figures, cells, options.jobs, lambda cell: f"{cell} seed {cell.seed}")
    for load in options.load:
        print(f"\nload {load:g}, {options.backends} x {options.profile}, share {options.share:g}\n")
        print(head("rule", *[title for _, title in SHOWN]))
        mine = {cell: each for cell, each in found.items() if cell.load == load}
        one_s = 0.0
        for name in dict.fromkeys(map(str, mine)):
            runs = [each for cell, each in mine.items() if str(cell) == name]
            means = {key: fmean([each[key] for each in runs]) for key in runs[0]}
            one_s = one_s or means["chat_p99_s"]  # the first row's
            means["of_one"] = means["chat_p99_s"] / one_s if one_s else 1.0
            print(row(name, *[f"{means[key]:.3g}" for key, _ in SHOWN]))
    save(options.json, {"cells": [asdict(cell) | each for cell, each in found.items()]})
    return 0


def _cells(options: Namespace) -> Iterator[Cell]:
    """One fleet once, the other rules for each way to divide it."""
    rest = options.share, options.backends, options.profile, options.length_s
    for load in options.load:
        ways = [("one", 0), *((rule, n) for n in options.long_engines for rule in RULES[1:])]
        for (rule, engines), seed in product(ways, range(1, options.seeds + 1)):
            yield Cell(load, engines, rule, seed, *rest, options.admission)


def arguments(parser: ArgumentParser) -> None:
    for name, kind, default, text in (
        ("--load X,…", listed(positive), "0.6,0.8", "1.0: see bench/routing/trace.py"),
        ("--backends N", count, 8, "engines"),
        ("--long-engines N,…", listed(count), "5,6,7", "engines of the pool for long prompts"),
        ("--profile", GPUS, "8b-1xh100", "model and GPUs of each"),
        ("--share X", share, 0.08, "of long prompts"),
        ("--admission", bool, None, "requests wait before busy engines"),
        ("--length-s S", positive, 300.0, "of a run"),
    ):
        option(parser, name, kind, default, text)
    options_of_runs(parser, 3)
