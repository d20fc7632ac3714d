"""Pools for LiteLLM's deployments: servers that answer for the same names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.proxy.commands.imports.litellm_models import Deployment, variable_in
from penstock.proxy.commands.imports.names import Names, variable_of
from penstock.proxy.commands.imports.part import Part, Variable

_POLICIES: Final = {
    "simple-shuffle": "weighted_random",
    "least-busy": "least_requests",
    "latency-based-routing": "peak_ewma",
    "usage-based-routing": "token_cost",
    "usage-based-routing-v2": "token_cost",
}


@dataclass
class Pool:
    """Servers that are alike. Each is in one pool only, or its load would count twice."""

    name: str
    deployments: list[Deployment] = field(default_factory=list)

    @property
    def models(self) -> list[str]:
        """The names that its servers know."""
        return list(dict.fromkeys([each.model for each in self.deployments]))


def pools_of(deployments: Sequence[Deployment]) -> list[Pool]:
    """Servers that answer for the same names by the same models are one pool."""
    by_server: dict[str, list[Deployment]] = {}
    for each in deployments:
        by_server.setdefault(each.url, []).append(each)
    names, pools = Names(), dict[object, Pool]()
    for entries in by_server.values():
        answers = frozenset((each.group, each.model) for each in entries)
        if answers not in pools:
            pools[answers] = Pool(names.new(entries[0].group))
        pools[answers].deployments += entries
    return list(pools.values())


def policy_of(strategy: str | None, pool: Pool) -> str | None:
    """The policy for a strategy of LiteLLM's. None: penstock's own is the nearest."""
    if strategy is None and [each for each in pool.deployments if each.weight is not None]:
        return "weighted_random"
    return _POLICIES.get(strategy or "")


def pool_part(pool: Pool, strategy: str | None, names: Names) -> Part:
    """One pool as it is written. `names`: of backends."""
    part = Part()
    part.put("name", pool.name)
    policy = policy_of(strategy, pool)
    part.put_given(policy=policy)
    part.put("models", pool.models)
    shared = len({each.key for each in pool.deployments}) == 1
    if shared:
        _put_key(part, pool.deployments[0], pool.name)
    servers: dict[str, list[Deployment]] = {}
    for each in pool.deployments:
        servers.setdefault(each.url, []).append(each)
    weighs = policy != "token_cost" and policy is not None
    base = pool.name
    backends = []
    for entries in servers.values():
        backend = _backend(entries, names, base, weighs=weighs)
        if not shared:
            _put_key(backend, entries[0], str(backend["name"]))
            others = [each.line for each in entries if each.key != entries[0].key]
            if others:
                backend.remark(f"It has another key in line {others[0]}: one counts for all.")
        backends.append(backend)
    part.put("backends", backends)
    return part


def _put_key(part: Part, deployment: Deployment, name: str) -> None:
    key = deployment.key
    if key is None:
        return
    variable = variable_in(key)
    if variable is None:
        variable = Variable(variable_of(name, "API_KEY"))
        line = deployment.line
        part.remark(f"The key stands in the file of LiteLLM (line {line}): give it as {variable}.")
    part.put("api_key", variable)


def _backend(entries: Sequence[Deployment], names: Names, pool: str, *, weighs: bool) -> Part:
    """One server, with what its entries say that has no equal."""
    part = Part()
    first = entries[0]
    told = set()
    for each in entries:
        for lost in each.lost:
            if lost not in told:
                told.add(lost)
                part.lost(*lost)
    variable = variable_in(first.url)
    if variable is not None:
        part.remark(f"{variable} must hold no path: neither /v1 nor another.")
    part.put("name", names.new(first.name) if first.name else names.numbered(pool))
    part.put("url", variable if variable is not None else first.url)
    weight = _weight(entries)
    if weight != 1.0 and weighs:
        part.put("weight", weight)
    elif weight != 1.0:
        part.lost(first.line, f"weight: {weight:g}", "The policy measures how fast a backend is")
    running = [each.max_requests for each in entries if each.max_requests is not None]
    part.put_given(max_requests=sum(running) if running else None)
    return part


def _weight(entries: Sequence[Deployment]) -> float:
    """Its weight for the first name that it answers for: two entries of one name add up."""
    own = [each.weight or 1.0 for each in entries if each.group == entries[0].group]
    return min(1000.0, sum(own))
