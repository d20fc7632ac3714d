"""Requests whose engines go on in the background, when their clients have a `queued` or have left.

Such a request keeps its place at the backend. Otherwise a client would have as many as it likes at
once, and the engine's room would be counted as free. The place is given back when somebody asks for
the response and it is over or unknown, when the engine reports fewer requests or is gone, or when
it has had time for the longest answer it may be. An engine that made no token since it came has
ended nothing, whatever it reports: the places at one that hangs would be free, and draw others.

Its tenant is charged the longest answer it may be, until somebody reads what it took.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.budget import Charge
from penstock.balancing.fair_table import FairTable
from penstock.balancing.lease import Lease
from penstock.proxy.data.budgets import longest
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.telemetry.usage import TenantUsage, Used

# So many are kept, of one client and of all. Any further one gives its place back at once, although
# its engine still works on it.
CLIENT_MAX: Final = 256
ALL_MAX: Final = 2_048
LOOK_S: Final = 1.0
# A report that was asked for so long after a request was sent knows it.
REPORTED_S: Final = 1.0
# So many bills are open, of all tenants, each for so long.
BILLS_MAX: Final = 8_192
BILL_S: Final = 3_600.0

# The tenant, and the id of the response, or its lease if that is unknown.
Key = tuple[str, Hashable]


class _Bill:
    """What a response costs. `used`: where that is counted, once it is final."""

    def __init__(
        self, lease: Lease, charge: Charge | None, used: Used, timer: asyncio.TimerHandle
    ) -> None:
        self.counts = Usage(lease.ask.prompt_tokens, longest(lease))
        self.made_tokens: int | None = None  # what its engine had time for, once it is over
        self.charge = charge
        self.used = used
        self.timer = timer

    def settle(self, now_s: float) -> None:
        """Charge as many tokens as are known now."""
        counts, cached = self.counts, self.counts.cached_tokens or 0
        if self.charge is not None:
            self.charge.correct(counts.prompt_tokens - cached + counts.completion_tokens, now_s)

    def close(self, usage: Usage | None, now_s: float) -> None:
        """`usage`: as its backend counted. None: it is not known, and never will be."""
        self.counts = counts = usage or self.counts
        self.settle(now_s)
        cached = counts.cached_tokens or 0
        self.used.add(Used(1, counts.prompt_tokens, cached, counts.completion_tokens))
        self.timer.cancel()


class _Kept:
    """One lease. `due_s`: when its engine has had its time. `restarts`: those of the engine when
    it was sent, and `progress` of it when it was kept."""

    def __init__(
        self, lease: Lease, charge: Charge | None, bill: _Bill | None, now_s: float
    ) -> None:
        self.charge = charge
        self.bill = bill
        backend = lease.backend
        step_s = backend.decode_speed.itl_s(backend.active_decode_tokens)
        work_s = lease.ahead_work * backend.prefill_speed.work_s
        self.due_s = now_s + work_s + longest(lease) * step_s  # at the measured speeds
        self.restarts = lease.backend.restarts
        self.progress = lease.backend.progress


class Background:
    """The leases of such requests, and what their tenants were charged."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], usage: TenantUsage
    ) -> None:
        self._loop = loop
        self._now = now
        self._usage = usage
        self._bills: dict[Hashable, _Bill] = {}  # by `Key`
        self._shares: FairTable[None] = FairTable(BILLS_MAX)  # of the same, for each tenant
        self._kept: dict[Lease, _Kept] = {}
        # Clients may choose ids: of those with one id here is the last.
        self._leases: dict[Key, Lease] = {}
        self._by_client: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def keeps(self, request: Request, lease: Lease, relay: Relay | None) -> bool:
        """Take over the lease of a request whose engine goes on, and its charge. False: none does.

        An answer that tells of a response which is over ends the lease of that one, and settles it.
        """
        ask = lease.ask
        if not ask.engine:
            if relay is not None and relay.is_over:
                response_id = ask.response_id or relay.response_id
                self._settle((ask.tenant, response_id), request.record.usage)
            return False
        goes_on = relay.goes_on if relay is not None else request.record.sent_s > 0.0
        if not ask.background or lease.ended or not goes_on:
            return False
        now_s, response_id = self._now(), relay.response_id if relay is not None else ""
        key = ask.tenant, response_id or lease
        if ask.tenant:
            self._open(key, request, lease, now_s)
        mine = self._by_client.get(ask.client, 0)
        if mine >= CLIENT_MAX or len(self) >= ALL_MAX:
            _ended_charge(request.charge, now_s)
            return False
        lease.assume_prefilled(now_s)  # what comes of it is not seen any more, and proves nothing
        self._by_client[ask.client] = mine + 1
        self._kept[lease] = _Kept(lease, request.charge, self._bills.get(key), now_s)
        if response_id:
            self._leases[ask.tenant, response_id] = lease
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        return True

    def close(self) -> None:
        """The process ends: nobody reads what its responses took any more."""
        for bill in self._bills.values():
            bill.close(None, self._now())

    def _open(self, key: Key, request: Request, lease: Lease, now_s: float) -> None:
        """Open the bill of a response. One with the same id is final: clients may choose ids."""
        self._close(key, None)
        tenant, model = key[0], lease.ask.model
        listed = model if model is not None and lease.backend.lists(model) else None
        timer = self._loop.call_later(BILL_S, self._close, key, None)
        bill = _Bill(lease, request.charge, self._usage.of(tenant, listed), timer)
        bill.settle(now_s)
        self._bills[key], request.billed = bill, True
        gone = self._shares.put(tenant, key, None)
        if gone is not None:
            self._bills.pop(gone).close(None, now_s)

    def _close(self, key: Key, usage: Usage | None) -> None:
        bill = self._bills.pop(key, None)
        if bill is not None:
            self._shares.remove(key[0], key)
            bill.close(usage, self._now())

    def _settle(self, key: Key, usage: Usage | None) -> None:
        """A response is over. `usage`: None if it has failed or was cancelled, so nobody counted
        what it took. Then it is what its engine had time for."""
        bill = self._bills.get(key)
        self._over(key)
        if usage is None and bill is not None and bill.made_tokens is not None:
            counts = bill.counts
            made_tokens = min(counts.completion_tokens, bill.made_tokens)
            usage = Usage(counts.prompt_tokens, made_tokens)
        self._close(key, usage)

    def unknown(self, ask: Ask, backend: Backend) -> None:
        """A backend does not know the response that is asked for: its engine is another one."""
        if ask.response_id is not None:
            key = ask.tenant, ask.response_id
            lease = self._leases.get(key)
            if lease is not None and lease.backend is backend:
                self._over(key)

    def _look(self) -> None:
        """End those that have had their time, and those that their engine cannot have any more."""
        self._timer, now_s = None, self._now()
        by_backend: dict[Backend, list[Lease]] = {}
        for lease, kept in list(self._kept.items()):
            backend = lease.backend
            if now_s >= kept.due_s or not backend.healthy or backend.restarts != kept.restarts:
                self._end(lease)
            else:
                by_backend.setdefault(backend, []).append(lease)
        for backend, leases in by_backend.items():
            for lease in _ended(backend, leases):
                if backend.progress != self._kept[lease].progress:
                    self._end(lease)
        self._leases = {key: each for key, each in self._leases.items() if each in self._kept}
        if self._kept:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _over(self, key: Key) -> None:
        lease = self._leases.pop(key, None)
        if lease is not None and lease in self._kept:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        kept, ask, now_s = self._kept.pop(lease), lease.ask, self._now()
        charge = kept.charge
        if kept.bill is not None:
            kept.bill.made_tokens = round(lease.tokens_in(now_s - lease.began_s))
        lease.end(now_s)
        _ended_charge(charge, now_s)
        self._by_client[ask.client] -= 1
        if not self._by_client[ask.client]:
            del self._by_client[ask.client]


def _ended_charge(charge: Charge | None, now_s: float) -> None:
    """It is under way no more. What it took may be known later."""
    if charge is not None:
        charge.settle(1, charge.tokens, now_s)


def _ended(backend: Backend, leases: list[Lease]) -> list[Lease]:
    """Which of these have ended if their engine works: it has fewer requests. The oldest ones."""
    report = backend.report
    if report is None:
        return []
    known = [each for each in leases if each.began_s < report.at_s - REPORTED_S]
    known.sort(key=_began)
    return known[: max(0, len(known) - report.running - report.waiting)]


def _began(lease: Lease) -> float:
    return lease.began_s
