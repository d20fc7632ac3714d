"""What each tenant has used, and what is left of its budgets, as JSON.

Counts begin with the process, or with the file in `state.dir`.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest

from penstock.balancing.admission.queue import Queue
from penstock.conf.tenants import TenantSettings
from penstock.proxy.data.budgets import TenantBudget
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.telemetry.usage import TenantUsage

# By tenant, what it used of each model.
Models = dict[str, list[dict[str, object]]]


def tenant_listing(plane: DataPlane, now_s: float) -> list[dict[str, object]]:
    """The tenants of the configuration, in its order."""
    return _listed(plane, plane.settings.tenants, _models(plane.metrics.usage), now_s)


def busiest_tenants(plane: DataPlane, now_s: float, most: int) -> list[dict[str, object]]:
    """Those that were given most lately, without what they used of each model."""
    given = Counter[str]()
    for pool in plane.admission.pools.values():
        for name, each in pool.queue.tenants.items():
            given[name] += round(each.given.of(now_s)) + pool.queue.waiting_of(name)
    listed = plane.settings.tenants
    busiest = nlargest(most, listed, key=lambda tenant: given[tenant.name])
    return _listed(plane, busiest, {}, now_s)


def _listed(
    plane: DataPlane, tenants: Sequence[TenantSettings], models: Models, now_s: float
) -> list[dict[str, object]]:
    queues = [pool.queue for pool in plane.admission.pools.values()]
    found = [each for queue in queues for each in queue.tenants.values()]
    given = sum([max(0.0, each.given.of(now_s)) for each in found])
    return [
        {
            "name": tenant.name,
            "class": tenant.service_class or plane.settings.admission.default_class,
            "weight": tenant.weight,
            "models": models.get(tenant.name, []),
            "budgets": _left(plane.budgets.tenants.get(tenant.name), now_s),
            "refused": plane.metrics.rate_limited[tenant.name,],
            **_share(queues, tenant.name, given, now_s),
        }
        for tenant in tenants
    ]


def _models(usage: TenantUsage) -> Models:
    """By tenant, what it used of each model."""
    found: dict[str, list[dict[str, object]]] = {}
    for tenant, model, used in usage.totals():
        counts: dict[str, object] = {
            "model": model,
            "requests": used.requests,
            "prompt_tokens": used.prompt_tokens,
            "cached_tokens": used.cached_tokens,
            "completion_tokens": used.completion_tokens,
        }
        found.setdefault(tenant, []).append(counts)
    return found


def _share(queues: list[Queue], name: str, given: float, now_s: float) -> dict[str, object]:
    """What it was given lately, its share of what all were given, and what of it waits."""
    found = [queue.tenants[name] for queue in queues if name in queue.tenants]
    mine = max(0.0, sum([each.given.of(now_s) for each in found]))
    return {
        "given_tokens": round(mine),
        "given_share": round(min(1.0, mine / given), 3) if given > 0.0 else 0.0,
        "waiting_requests": sum([queue.waiting_of(name) for queue in queues]),
        "waiting_tokens": sum([sum(each.queued_tokens) for each in found]),
    }


def _left(found: TenantBudget | None, now_s: float) -> list[dict[str, object]]:
    """What is left of its budgets. Empty if it has none."""
    if found is None:
        return []
    budget = found.budget
    budgets: list[dict[str, object]] = [
        {
            "limit": name,
            "allowed": bucket.limit,
            "left": int(bucket.level(now_s)),
            "full_in_s": round(bucket.wait_s(bucket.limit, now_s), 1),
        }
        for name, bucket in (budget.requests | budget.tokens).items()
    ]
    if budget.concurrent is not None:
        left = budget.concurrent - len(budget.running)
        told = {"limit": "concurrent", "allowed": budget.concurrent, "left": left}
        budgets.append({**told, "full_in_s": None})
    return budgets
