"""Interactive requests and long prompts on one fleet, on two pools, and on two that spill.

The engines, the choices, the admission and the routes are the real ones, in discrete-event time.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies.policy import Policy
from penstock.balancing.policies.token_cost import TokenCost
from penstock.balancing.pool_costs import PoolCosts
from penstock.balancing.routes.building import table_of
from penstock.balancing.routes.decision import spilled
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.routes.rule import Target
from penstock.bench.routing.experiment import Experiment, Router
from penstock.bench.routing.outcome import Outcome, quantile
from penstock.bench.routing.trace import Arrival
from penstock.bench.sim.profiles import Gpu
from penstock.conf.routes import RouteSettings

LONG_TOKENS: Final = 100_000
# From here on a prompt counts as long.
BORDER_TOKENS: Final = 16_000
# A call is good if its first token comes in this time, and one token in 0.1 s. A long prompt alone
# takes 8.7 s.
GOOD_S: Final = 5.0
GOOD_LONG_S: Final = 30.0
GOOD_TPOT_S: Final = 0.1
RULES: Final = ("one", "split", "spill")


def arrivals(share: float, rate_per_s: float, length_s: float, rng: Random) -> list[Arrival]:
    """Requests at random times; this share of them has a long prompt."""
    found, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(rate_per_s)) < length_s:
        long = rng.random() < share
        prompt = LONG_TOKENS if long else rng.randint(100, 4_000)
        found.append(Arrival(at_s, prompt, rng.randint(50, 400), tenant="long" if long else "chat"))
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
        chat, long = self.by_kind["chat"], self.by_kind["long"]
        good = self._good_by_kind
        return {
            "chat_p50_s": quantile(chat, 0.5),
            "chat_p99_s": quantile(chat, 0.99),
            "long_p50_s": quantile(long, 0.5),
            "long_p99_s": quantile(long, 0.99),
            "goodput": sum(good.values()) / max(1, len(chat) + len(long)),
            "chat_goodput": good["chat"] / max(1, len(chat)),
            "long_goodput": good["long"] / max(1, len(long)),
        }


class Spill(Experiment):
    """The same engines under one rule. `long_engines`: of the pool for long prompts."""

    def __init__(
        self,
        rule: str,
        profile: Gpu,
        *,
        backends: int,
        long_engines: int,
        seed: int,
        admission: bool,
    ) -> None:
        self._rule = rule
        self._long_engines = long_engines
        self._routes = table_of([RouteSettings.model_validate(each) for each in routes(rule)])
        self._divided: tuple[Pool, ...] = ()
        super().__init__(
            lambda known, view: TokenCost(),
            profile,
            backends=backends,
            routers=1,
            seed=seed,
            admission=admission,
        )
        router = self._routers[0]
        divided = Fleet(self._divided)
        self._costs = PoolCosts(router.gate, lambda: divided, router.admission)
        self.outcome: TwoKinds = TwoKinds(backends)
        self.spilled = 0

    def _pools(self, known: tuple[Backend, ...], policy: Policy) -> tuple[Pool, ...]:
        if self._rule == "one":
            self._divided = super()._pools(known, policy)
            return self._divided
        divided = {"long": known[: self._long_engines], "chat": known[self._long_engines :]}
        pools = []
        for name, backends in divided.items():
            for backend in backends:
                backend.pool = name
            pools.append(Pool(name, backends, TokenCost()))
        self._divided = tuple(pools)
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


def routes(rule: str) -> list[dict[str, Any]]:
    """The routes of a rule: long prompts have a pool, and everything else another one."""
    if rule == "one":
        return []
    found: list[dict[str, Any]] = []
    match = {"prompt_tokens": {"min": BORDER_TOKENS}}
    for name, other, when in (("long", "chat", match), ("chat", "long", {})):
        to = [{"pool": name}, {"pool": other, "weight": 0}]
        found.append({"name": name, "match": when, "to": to, "spill": rule == "spill"})
    return found
