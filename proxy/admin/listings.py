"""The proxy itself, service levels, canaries, tenants and what waits, as JSON.

What tenants have used counts since the start, or since the file in `state.dir` began. Of what waits
tenants are named. Clients without a key are not: their queues belong to addresses.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from math import inf
from time import time
from typing import Final

from penstock import proxy
from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.canary.steps import Event
from penstock.balancing.slo.objective import Objective, pairs_within, rate_of
from penstock.balancing.slo.slo import Slo, because
from penstock.balancing.slo.windows import Latencies
from penstock.conf.tenants import TenantSettings
from penstock.health.monitor import Monitor
from penstock.proxy.data.budgets import TenantBudget
from penstock.proxy.data.canaries import Trial
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.reload import Reload
from penstock.proxy.telemetry.usage import TenantUsage

# Requests may be refused for lack of memory this long before others shall get them instead.
REFUSING_S: Final = 10.0


def state_of(plane: DataPlane, monitor: Monitor) -> str:
    """What `/readyz` tells. Also ready when all backends are down: restarting the proxy would not
    help. Not ready while its memory is short, for another instance has its own."""
    if plane.draining:
        return "draining"
    short_s = plane.overload.short_s(plane.now())
    if not plane.memory.suffices or short_s > REFUSING_S:
        return "memory"
    return "ready" if monitor.started.is_set() else "starting"


def proxy_listing(
    plane: DataPlane,
    reload: Reload,
    state: str,
    former: Mapping[int, int],
    discovery: Sequence[dict[str, object]] = (),
) -> dict[str, object]:
    """`state`: as `/readyz` tells it. `former`: requests of processes from before a restart."""
    now_s, now_unix_s = plane.now(), time()
    up_s = now_s - plane.began_s
    refused = plane.metrics.shed_growth.since(plane.metrics.shed_by_reason())
    return {
        "version": proxy.__version__,
        "build": proxy.build(),
        "state": state,
        "since": round(now_unix_s - up_s, 3),
        "up_s": round(up_s, 1),
        "open_requests": plane.running.total,
        "lag_ms": round(1e3 * plane.overload.lag_s, 1),
        "overload": plane.overload.reason or None,
        "refused_lately": refused,
        "last_reload": _last_reload(reload, now_s, now_unix_s),
        "reload_failed": reload.failed,
        "needs_restart": reload.needs_restart,
        "discovery": discovery,
        "waiting": {name: count for name, count, _ in plane.queued()},
        "slo_alarms": plane.slos.alarms(),
        "former": [{"pid": pid, "requests": count} for pid, count in former.items()],
    }


def _last_reload(reload: Reload, now_s: float, now_unix_s: float) -> dict[str, object] | None:
    """When the last one ended, and how. None: there was none since the start."""
    if reload.ended_s is None:
        return None
    age_s = now_s - reload.ended_s
    return {
        "at": round(now_unix_s - age_s, 3),
        "age_s": round(age_s, 1),
        "succeeded": not reload.failed,
    }


def slo_listing(slos: Sequence[Slo], now_s: float) -> list[dict[str, object]]:
    """One entry for each objective, in the configuration's order.

    A share or a time is null where no request says anything about it.
    """
    listing = []
    for slo in slos:
        for each in slo.objectives:
            kind = each.goal.targets[0][0] if each.goal.timed else ""
            listing.append(
                {"pool": slo.pool, "class": slo.service_class}
                | _objective(each, slo.latencies.get(kind), now_s)
            )
    return listing


def _objective(
    objective: Objective, latencies: Latencies | None, now_s: float
) -> dict[str, object]:
    goal = objective.goal
    good, bad = objective.budget_counts
    burns, shares = objective.burn_rates, objective.compliances
    told: dict[str, object] = {
        "slo": goal.name,
        "state": objective.state.word,
        "because": because(objective, latencies, now_s) or None,
        "objective": round(goal.share, 6),
        "targets_s": dict(goal.targets),
        "measured_s": None,
        "window_s": objective.window_s,
        "observed_s": round(min(objective.window_s, now_s - objective.since_s), 3),
        "requests": good + bad,
        "bad": bad,
        "compliance": objective.compliance,
        "budget_left": round(1.0 - objective.budget_spent(now_s), 6),
        "windows": {
            name: {"compliance": shares[name], "burn_rate": round(burns[name], 3)} for name in burns
        },
        "alerts": [
            {
                "short": pair.short,
                "long": pair.long,
                "burn_rate": round(rate_of(pair, goal.share, objective.window_s), 3),
                "pages": pair.pages,
            }
            for pair in pairs_within(objective.window_s)
        ],
    }
    if latencies is not None:
        measured_s = latencies.percentile_s(goal.share)
        if measured_s is not None and measured_s < inf:
            told["measured_s"] = round(measured_s, 6)
    return told


def canary_listing(trials: Iterable[Trial], now_s: float) -> list[dict[str, object]]:
    """All canaries, in the order of the configuration."""
    return [_canary(each, now_s) for each in trials]


def _canary(trial: Trial, now_s: float) -> dict[str, object]:
    canary, settings = trial.canary, trial.canary.settings
    return {
        "route": trial.settings.name,
        "pool": settings.pool,
        "model": settings.model,
        "stage": canary.stage.value,
        "percent": canary.percent,
        "since": _when(canary.since_s, now_s),
        "why": canary.why,
        "steps": list(settings.steps),
        "requests": {
            "canary": canary.judge.canary.number,
            "stable": canary.judge.stable.number,
        },
        "compared": canary.judge.words(),
        "events": [_canary_event(each, now_s) for each in trial.events],
    }


def _canary_event(event: Event, now_s: float) -> dict[str, object]:
    return {
        "at": _when(event.at_s, now_s),
        "stage": event.stage.value,
        "percent": event.percent,
        "why": event.why,
    }


def _when(at_s: float, now_s: float) -> str:
    at = datetime.fromtimestamp(time() - now_s + at_s, UTC)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


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


HEADS_MAX: Final = 20


async def queue_listing(plane: DataPlane, most: int = HEADS_MAX) -> dict[str, object]:
    """The classes, the highest first. Of each pool the pressure in each class, and the next
    requests in the order of their turns, `most` of them and one of each class.

    What one waits for takes a choice among its backends, so other work runs after each.
    """
    pools: list[dict[str, object]] = []
    firsts: dict[str, tuple[float, dict[str, object]]] = {}  # by class: since when it waits
    pressures: dict[str, dict[str, float]] = {}
    for of_pool, of_class, pressed in plane.pressures():
        pressures.setdefault(of_pool, {})[of_class] = round(pressed, 3)
    for name, pool in list(plane.admission.pools.items()):
        told = []
        seen = set()
        for request in _heads(pool, most):
            if not request.waits:
                continue
            of = plane.classes.names[request.rank]
            told.append(_told(plane, request, of))
            if of not in seen and (of not in firsts or request.since_s < firsts[of][0]):
                firsts[of] = request.since_s, {"pool": name} | told[-1]
            seen.add(of)
            await asyncio.sleep(0)
        pools.append(
            {
                "pool": name,
                "waiting": pool.queue.waiting,
                "pressure": pressures.get(name, {}),
                "next": told,
            }
        )
    classes = [
        {
            "name": name,
            "requests": requests,
            "tokens": tokens,
            "next": firsts[name][1] if name in firsts else None,
        }
        for name, requests, tokens in plane.queued()
    ]
    return {"enabled": plane.admission.enabled, "classes": classes, "pools": pools}


def _heads(pool: PoolQueue, most: int = HEADS_MAX) -> list[QueuedRequest]:
    """The next ones in the order of their turns, and at least one of each class."""
    ranks = [rank for rank, backlog in enumerate(pool.queue.backlogs) if backlog]
    heads: list[QueuedRequest] = []
    for place, rank in enumerate(ranks):
        lower = len(ranks) - place - 1
        heads += islice(pool.queue.turns(rank), max(1, most - len(heads) - lower))
    return heads


def _told(plane: DataPlane, request: QueuedRequest, service_class: str) -> dict[str, object]:
    now_s = plane.now()
    backend, reason = plane.admission.reason(request, now_s)
    return {
        "class": service_class,
        "tenant": request.ask.tenant or None,
        "waited_s": round(now_s - request.since_s, 3),
        "predicted_s": round(request.predicted_s, 3),
        "deadline_s": round(request.deadline_s, 3),
        "prompt_tokens": request.wait.tokens if request.wait is not None else None,
        "backend": backend.name if backend is not None else None,
        "waits_for": reason.value,
    }
