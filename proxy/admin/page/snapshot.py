"""What the page shows of one moment, as JSON: parts of what the other paths tell.

A long list is made in slices, between which others run.
"""

from collections.abc import Callable
from time import time
from typing import Any, Final

import orjson

from penstock import proxy
from penstock.proxy.admin.answers import json_list
from penstock.proxy.admin.fleet_listing import FleetListing
from penstock.proxy.admin.listings import busiest_tenants, canary_listing, slo_listing
from penstock.proxy.admin.page.history import History
from penstock.proxy.admin.queue_listing import queue_listing
from penstock.proxy.admin.request_listing import brief
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.data.account import count_all
from penstock.proxy.data.plane import DataPlane

REQUESTS_MAX: Final = 20
# Of what waits in each pool so many are told: what one waits for takes a choice.
HEADS_MAX: Final = 4
TENANTS_MAX: Final = 10
BUSIEST_MAX: Final = 20
_BACKEND: Final = (
    *("name", "pool", "state", "reason", "admin_state", "removed", "can_serve", "share"),
    *("requests_in_flight", "queued_prefill_tokens", "active_decode_tokens", "streams"),
    *("requests_total", "prefill_tokens_per_s", "token_ms", "slower", "slower_in", "newcomer"),
    *("verdict", "lately"),
)
_CANARY: Final = ("route", "pool", "stage", "percent", "why")
_ENGINE: Final = ("running", "waiting", "kv_usage", "prefix_hit_rate")


class Snapshot:
    """Makes snapshots. `proxy_told`: what `/api/v1/proxy` tells."""

    def __init__(
        self,
        plane: DataPlane,
        fleet: FleetListing,
        verdicts: Verdicts,
        proxy_told: Callable[[], dict[str, object]],
        history: History,
    ) -> None:
        self._plane = plane
        self._fleet = fleet
        self._verdicts = verdicts
        self._proxy_told = proxy_told
        self._history = history

    async def __call__(self) -> bytes:
        """The snapshot of now, in one line."""
        count_all(self._plane)
        queue = await queue_listing(self._plane, HEADS_MAX)
        queue["tenants"] = self._verdicts.waiting_by_tenant(TENANTS_MAX)
        backends = await json_list(_row(each) for each in self._fleet.entries())
        told = {
            "at": round(time(), 3),
            "version": proxy.__version__,
            "proxy": self._proxy_told(),
            "verdicts": self._verdicts.listing(),
            "slos": slo_listing(self._plane.slos.evaluated(), self._plane.now()),
            "canaries": self._canaries(),
            "queue": queue,
            "rates": self._history.rates,
            "tenants": busiest_tenants(self._plane, self._plane.now(), BUSIEST_MAX),
            "requests": self._requests(),
        }
        return b'%b,"backends":%b}' % (orjson.dumps(told)[:-1], backends.rstrip())

    def _canaries(self) -> list[dict[str, object]]:
        trials = self._plane.canaries.trials.values()
        listed = canary_listing(trials, self._plane.now())
        return [{name: each[name] for name in _CANARY} for each in listed]

    def _requests(self) -> dict[str, list[dict[str, object]]]:
        recent, now_s = self._plane.recent, self._plane.now()
        return {
            name: [brief(each, now_s) for each in found[:REQUESTS_MAX]]
            for name, found in (("slow", recent.slow()), ("failed", recent.failed()))
        }


def _row(told: dict[str, Any]) -> dict[str, object]:
    """What a row needs of a backend. What its engine has not told lately is left out."""
    row = {name: told[name] for name in _BACKEND}
    engine = told["engine"]
    row["engine"] = None
    if engine is not None and engine["fresh"]:
        row["engine"] = {name: engine[name] for name in _ENGINE}
        if not engine["kv_told"]:
            row["engine"]["kv_usage"] = None
    return row
