"""The verdicts on all pools: once a second, what is known of each is looked at.

It reads the state of the data plane and changes none of it.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from time import time
from typing import Final

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.fleet import Pool, UnknownModel
from penstock.balancing.slo.objective import State as SloState
from penstock.balancing.slo.slo import because
from penstock.balancing.speed.compare import ALIKE, Pace, has_answered, slower
from penstock.balancing.speed.estimates import RecentPace
from penstock.balancing.verdict.cause import CALM, Finding, Kind, Missed
from penstock.balancing.verdict.facts import (
    FULL,
    PoolFacts,
    backend_facts,
    given_of,
    of_queue,
    open_paces,
    served_of,
)
from penstock.balancing.verdict.verdict import Verdict
from penstock.balancing.verdict.words import section, words
from penstock.proxy.data.client import Client
from penstock.proxy.data.ending import EndingConnection
from penstock.proxy.data.plane import DataPlane

# A client that has not taken so much, also at the look before, is slow.
UNTAKEN_BYTES: Final = 16_384
# So many are looked at in one turn of the loop, and in all: each look takes a system call.
LOOKED_AT_ONCE: Final = 64
CLIENTS_MAX: Final = 4_096


@dataclass(slots=True)
class Reading:
    """The clients of one pool that want something, and those of them that are slow."""

    clients: int = 0
    slow: int = 0
    slow_by_tenant: Counter[str] = field(default_factory=Counter)


NOBODY: Final = Reading()


class SlowClients:
    """Which clients do not take what came for them, by pool. It remembers who was behind at the
    last look. Connections that want nothing are passed over: nobody hides slow clients behind idle
    ones.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._behind: set[Client] = set()
        self._looked_s = 0.0  # when it looked last
        self._begin = 0

    async def look(self) -> Mapping[str, Reading]:
        """What is known now, by pool."""
        found: dict[str, Reading] = {}
        since_s, self._looked_s = self._looked_s, self._plane.now()
        before, self._behind = self._behind, set()
        clients, looked = list(self._plane.clients), 0
        begin = self._begin % max(1, len(clients))
        self._begin = begin + CLIENTS_MAX  # of more than that others are looked at next time
        for number, client in enumerate(chain(clients[begin:], clients[:begin]), 1):
            if not number % LOOKED_AT_ONCE:
                await asyncio.sleep(0)
            # Who wants nothing now may still have to take the end of an answer, as before.
            if (client.waits and client not in before) or not (pool := self._pool_of(client)):
                continue
            behind = client.untaken_bytes >= UNTAKEN_BYTES
            if behind or not client.waits:
                self._count(found.setdefault(pool, Reading()), client, before, behind=behind)
                if behind and client in before:
                    self._tell(client, since_s)
            looked += 1
            if looked == CLIENTS_MAX:
                break
        return found

    def _count(
        self, reading: Reading, client: Client, before: set[Client], *, behind: bool
    ) -> None:
        reading.clients += 1
        if behind:
            self._behind.add(client)
        if behind and client in before:
            reading.slow += 1
            reading.slow_by_tenant[client.tenant] += 1

    def _tell(self, client: Client, since_s: float) -> None:
        """Note in its request's record that it was behind, while more came."""
        request = client.request if isinstance(client, EndingConnection) else None
        if request is not None and not request.record.stalled_since_s:
            began_s = request.record.received_s
            request.record.behind_s += self._looked_s - max(since_s, began_s)

    def _pool_of(self, client: Client) -> str:
        """Empty: it has asked for nothing that a pool serves."""
        request = client.request if isinstance(client, EndingConnection) else None
        if client.pool or request is None:
            return client.pool
        try:  # it waits, and no backend is chosen yet
            return self._plane.fleet.resolve(request.ask)[0].name
        except UnknownModel:
            return ""


logger = logging.getLogger(__name__)

Levels = list[tuple[str | None, Missed]]  # each with its pool. None: all pools
LOOK_S: Final = 1.0
COMPARE_S: Final = 2.0  # between two comparisons of all backends' speeds
# Of so many backends it is read in one turn of the loop.
AT_ONCE: Final = 32
# So many verdicts that are over are remembered: some 1 KB each.
PAST_MAX: Final = 200
# A pace counts for so long after it was too old to choose by.
PACE_KEPT_S: Final = 60.0
# What so many of the next ones in a queue wait for is asked: each answer takes a choice.
HEADS: Final = 6


class Verdicts:
    """One verdict for each pool of the configuration."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.by_pool: dict[str, Verdict] = {}
        self._paces: dict[str, dict[Backend, Pace]] = {}
        self._compared_s: dict[str, float] = {}
        self._starting_s: dict[Backend, float] = {}  # since when those start that do
        self.past: deque[dict[str, object]] = deque(maxlen=PAST_MAX)  # what is over, as JSON
        self._clients = SlowClients(plane)
        plane.metrics.bottlenecks = self.kinds

    async def watch(self) -> None:
        """Look at all pools each second, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look_at_all()
            except Exception:
                self.by_pool.clear()
                logger.exception("there are no verdicts")

    async def _look_at_all(self) -> None:
        pools = self._plane.fleet.pools
        fleet = set(self._plane.fleet.backends)
        for gone in [each for each in self._starting_s if each not in fleet]:
            del self._starting_s[gone]
        for name in set(self.by_pool) - {pool.name for pool in pools}:
            for table in (self.by_pool, self._paces, self._compared_s):
                table.pop(name, None)
        readings, missed = await self._clients.look(), self._missed()
        for pool in pools:
            try:
                await self._look(pool, readings.get(pool.name, NOBODY), missed)
            except Exception:
                self.by_pool.pop(pool.name, None)  # rather none than one of long ago
                logger.exception("there is no verdict pool=%s", pool.name)

    async def _look(self, pool: Pool, reading: Reading, missed: Levels) -> None:
        facts = replace(
            await self._facts(pool),
            clients=reading.clients,
            slow_clients=reading.slow,
            slow_by_tenant=reading.slow_by_tenant,
            missed=tuple([each for of, each in missed if of in (None, pool.name)]),
        )
        verdict = self.by_pool.get(pool.name)
        if verdict is None:
            verdict = self.by_pool[pool.name] = Verdict(facts.at_s)
        verdict.window.add(facts)
        seen = []
        for number, each in enumerate(verdict.window.backends(), 1):
            seen.append(each)
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        before, (worst, _) = verdict.finding, words(verdict.worst)
        times = {"since": verdict.since_s, "until": verdict.seen_s}
        if verdict.look(seen):
            times["until"] = min(times["until"], max(times["since"], verdict.since_s))
            goes_on = before.kind is Kind.MISSED and verdict.finding.kind not in CALM
            if before.kind is not Kind.FINE and not goes_on:
                ago_s = time() - facts.at_s
                ended = _identity(pool.name, before) | {"sentence": worst}
                self.past.append(ended | {name: round(at + ago_s, 3) for name, at in times.items()})
            sentence, _ = words(verdict.finding)
            kind = verdict.finding.kind
            level = logging.INFO if kind is Kind.FINE else logging.WARNING
            logger.log(level, "verdict pool=%s kind=%s: %s", pool.name, kind, sentence)

    def kinds(self) -> list[tuple[str, str]]:
        """The kind of each pool's verdict."""
        return [(pool, each.finding.kind.value) for pool, each in self.by_pool.items()]

    def accuses(self, backend: Backend) -> Kind | None:
        """What the sentence for its pool says of this backend. None: nothing."""
        finding = self._of(backend).finding
        named = finding.backend == backend.name
        if finding.kind is Kind.MEMORY and not finding.backend and backend.report is not None:
            named = backend.report.kv_usage >= FULL  # the sentence speaks of several
        return finding.kind if named and finding.kind is not Kind.FINE else None

    def pace(self, backend: Backend) -> Pace | None:
        """How many times as long as its peers a backend takes. None if that is not known. Where
        the sentence says so, it is what the sentence says."""
        finding = self._of(backend).finding
        if finding.detail == "slow" and finding.backend == backend.name:
            return Pace(**finding.figures)
        known = self._paces.get(backend.pool, {})
        return known.get(backend) if len(known) > 1 else None

    def waiting_by_tenant(self, most: int) -> list[dict[str, object]]:
        """How many requests of each tenant wait, the most first."""
        found = Counter[str]()
        for each in self._plane.admission.pools.values():
            found.update(of_queue(each, self._plane.now())[1])
        tenants = found.most_common(most)
        return [{"name": name or None, "requests": count} for name, count in tenants]

    def listing(self) -> list[dict[str, object]]:
        """All verdicts, as JSON."""
        now_s, now_unix_s = self._plane.now(), time()
        runbook = self._plane.settings.admin.runbook_url
        return [
            _told(pool, each, now_s, now_unix_s) | {"runbook": _link(runbook, each)}
            for pool, each in self.by_pool.items()
        ]

    async def _facts(self, pool: Pool) -> PoolFacts:
        now_s, queue = self._plane.now(), self._plane.admission.pools.get(pool.name)
        used = [each for each in pool.backends if each.admin_state is AdminState.READY]
        if now_s >= self._compared_s.get(pool.name, -COMPARE_S) + COMPARE_S:
            self._compared_s[pool.name] = now_s
            serving = [each for each in used if each.can_serve]
            before = self._paces.get(pool.name, {})
            kept = {each: before[each] for each in serving if self._keeps(each, before, now_s)}
            streaming = open_paces(queue, now_s) if queue is not None else {}
            self._paces[pool.name] = kept | await _paces(serving, now_s, streaming)
        paces = self._paces[pool.name]
        backends = []
        for number, each in enumerate(used, 1):
            facts = backend_facts(each, queue, paces.get(each, ALIKE), now_s)
            backends.append(replace(facts, starting_s=self._starting(each, now_s)))
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        waiting, oldest_s, tenants, lacks = 0, 0.0, Counter[str](), Counter[WaitReason]()
        if queue is not None and queue.queue.waiting:
            waiting = queue.queue.waiting
            oldest_s, tenants = of_queue(queue, now_s)
            lacks = await self._lacks(queue)
        return PoolFacts(
            at_s=now_s,
            backends=tuple(backends),
            waiting=waiting,
            oldest_s=oldest_s,
            lacks=lacks,
            waiting_by_tenant=tenants,
            served_by_tenant=served_of(queue) if waiting and queue is not None else {},
            given_by_tenant=given_of(queue, now_s) if waiting and queue is not None else {},
            refused_total=queue.ttft.refused_total if queue is not None else 0,
        )

    def _keeps(self, backend: Backend, paces: Mapping[Backend, Pace], now_s: float) -> bool:
        """Whether its last pace still counts: a slow one gets few requests that measure it. What
        only open streams told counts while they tell it."""
        measured = backend in paces and backend.measured(now_s - PACE_KEPT_S)
        return measured and has_answered(backend)

    def _of(self, backend: Backend) -> Verdict:
        return self.by_pool.get(backend.pool) or Verdict(0.0)

    def _missed(self) -> Levels:
        """The service levels that are critical, with their pools."""
        now_s, found = self._plane.now(), []
        for slo in self._plane.slos.evaluated():
            for each in slo.objectives:
                if each.state is SloState.CRITICAL:
                    kind = each.goal.name.partition("_")[0]
                    why = because(each, slo.latencies.get(kind), now_s)
                    name = " ".join(filter(None, (slo.service_class, each.goal.name)))
                    found.append((slo.pool, Missed(name, why)))
        return found

    def _starting(self, backend: Backend, now_s: float) -> float:
        """For how long it has been starting, as far as it was seen."""
        if backend.state is not State.STARTING:
            self._starting_s.pop(backend, None)
            return 0.0
        return now_s - self._starting_s.setdefault(backend, now_s)

    async def _lacks(self, pool: PoolQueue) -> Counter[WaitReason]:
        found = Counter[WaitReason]()
        for rank, backlog in enumerate(pool.queue.backlogs):
            if not backlog or found.total() >= HEADS:
                continue
            most = HEADS - found.total()
            for request in list(islice(pool.queue.turns(rank), most)):
                if request.waits:
                    found[self._plane.admission.reason(request, self._plane.now())[1]] += 1
                await asyncio.sleep(0)
        return found


async def _paces(
    backends: list[Backend], now_s: float, streaming: Mapping[Backend, RecentPace]
) -> dict[Backend, Pace]:
    found = {}
    for number, (backend, pace) in enumerate(slower(backends, now_s, streaming), 1):
        found[backend] = pace
        if not number % AT_ONCE:
            await asyncio.sleep(0)
    return found


def _link(runbook: str | None, verdict: Verdict) -> str | None:
    part = section(verdict.finding)
    return f"{runbook}#{part}" if runbook and part else None


def _identity(pool: str, finding: Finding) -> dict[str, object]:
    """Which trouble it is, as JSON."""
    backend, tenant = finding.backend or None, finding.tenant or None
    return {"pool": pool, "kind": finding.kind, "backend": backend, "tenant": tenant}


def _told(pool: str, verdict: Verdict, now_s: float, now_unix_s: float) -> dict[str, object]:
    finding = verdict.finding
    sentence, remedies = words(finding, now_s - verdict.seen_s)
    return _identity(pool, finding) | {
        "detail": finding.detail or None,
        "sentence": sentence,
        "to_do": list(remedies),
        "since": round(now_unix_s - (now_s - verdict.since_s), 3),
        "for_s": round(now_s - verdict.since_s, 1),
        "figures": {name: round(value, 4) for name, value in finding.figures.items()},
    }
