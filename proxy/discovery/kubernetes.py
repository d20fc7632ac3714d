"""Backends of a Kubernetes cluster: the endpoints of a Service, or the pods with some labels.

A pod that is ready and does not terminate is a backend. Its name is the pod's, so one that takes
over an address is another backend. The server's list is whole: when it is empty, so is the pool.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from random import Random
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from penstock.conf.discover import KubernetesSettings
from penstock.proxy.discovery.cluster import Cluster, NoCluster
from penstock.proxy.discovery.found import Entries, Entry, Found, Unusable, bounded
from penstock.proxy.discovery.list_watch import Items, ListWatch

# Between two lists that are told: changes within this time are told together.
TOGETHER_S: Final = 0.6
# The pause before another look for the pod's namespace.
NO_CLUSTER_S: Final = 30.0
SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
PODS: Final = "/api/v1/namespaces/{}/pods"
SERVICE_LABEL: Final = "kubernetes.io/service-name"
WEIGHT_LABEL: Final = "penstock/weight"
# Of a backend in another zone than penstock's.
ELSEWHERE: Final = 0.5

Told = Mapping[str, Any]


def of_slice(
    told: Told, port: int | str | None, prefix: str = "", zone: str | None = None
) -> Iterator[Entry]:
    """The backends of an EndpointSlice. What is not told is ready (API conventions).

    `zone`: penstock's own.
    """
    number = _port_of(told.get("ports") or (), port, "port")
    for endpoint in (told.get("endpoints") or ()) if number else ():
        conditions = endpoint.get("conditions") or {}
        target = endpoint.get("targetRef") or {}
        ready = conditions.get("ready") is not False and not conditions.get("terminating")
        if ready and endpoint.get("addresses"):
            entry = _entry(endpoint["addresses"][0], number, target.get("name"), prefix)
            elsewhere = zone and endpoint.get("zone") not in (None, zone)
            yield {**entry, "weight": ELSEWHERE} if elsewhere else entry


def of_pod(told: Told, port: int | str | None, prefix: str = "") -> Iterator[Entry]:
    """The backend of a pod, if it is ready and does not terminate."""
    metadata, status = told["metadata"], told.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    ports = [
        each
        for container in told.get("spec", {}).get("containers") or ()
        for each in container.get("ports") or ()
    ]
    number = _port_of(ports, port, "containerPort")
    ends = metadata.get("deletionTimestamp") is not None
    if ends or conditions.get("Ready") != "True" or not status.get("podIP") or not number:
        return
    entry = _entry(status["podIP"], number, metadata["name"], prefix)
    weight = (metadata.get("labels") or {}).get(WEIGHT_LABEL)
    yield entry if weight is None else {**entry, "weight": _number(weight)}


def _port_of(ports: Any, wanted: int | str | None, key: str) -> int | None:
    """The number of the port. None: there is none of this name."""
    if isinstance(wanted, int):
        return wanted
    named = [each for each in ports if wanted is None or each.get("name") == wanted]
    return named[0].get(key) if named else None


def _entry(address: str, port: int | None, name: str | None, prefix: str) -> dict[str, object]:
    host = f"[{address}]" if ":" in address else address
    entry: dict[str, object] = {"url": f"http://{host}:{port}"}
    return entry | {"name": bounded(prefix + name)} if name else entry


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # the entry is left out, with a reason


class KubernetesSource:
    """Tells the backends of a Service, or of pods with some labels."""

    def __init__(
        self,
        settings: KubernetesSettings,
        entries: Entries,
        cluster: Cluster,
        rng: Random,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._rng = rng
        self._now = now
        self._entries = entries
        # Of each object: as the server told it, and its backends. None: it cannot be read.
        self._read: dict[str, tuple[Told, tuple[Entry, ...] | None]] = {}
        self._items: Items = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = -inf

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None:
        """Tell them, until it is cancelled."""
        loop = asyncio.get_running_loop()

        def told() -> None:
            self._timer, self._told_s = None, loop.time()
            tell(self._found(self._items))

        def changed(items: Items) -> None:
            self._items = items
            self._timer = self._timer or loop.call_at(self._told_s + TOGETHER_S, told)

        try:
            path, query = self._asked()
            await ListWatch(
                self._cluster,
                *(path, query, changed, lambda why: tell(Unusable(why)), self._rng, self._now),
            ).follow()
        except NoCluster as error:  # its namespace is not known
            tell(Unusable(str(error)))
            await asyncio.sleep(NO_CLUSTER_S)
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._cluster.close()

    def _asked(self) -> tuple[str, dict[str, str]]:
        settings = self._settings
        namespace = quote(settings.namespace or self._cluster.namespace())
        if settings.service is not None:
            return SLICES.format(namespace), {
                "labelSelector": f"{SERVICE_LABEL}={settings.service}"
            }
        assert settings.selector is not None
        return PODS.format(namespace), {"labelSelector": settings.selector}

    def _found(self, items: Items) -> Found:
        """What these objects tell. Only those that have changed are read."""
        read = {}
        for name, told in items.items():
            known = self._read.get(name)
            if known is None or known[0] is not told:
                known = told, self._entries_of(told)
            read[name] = known
        self._read = read
        # Of a pod with addresses of both families there are two slices: IPv4 comes first.
        by_family = sorted(read.values(), key=lambda each: str(each[0].get("addressType")))
        pods: dict[object, Entry] = {}
        for entry in [entry for _, entries in by_family for entry in entries or ()]:
            pods.setdefault(entry.get("name", entry["url"]), entry)
        odd = [name for name, (_, entries) in read.items() if entries is None]
        found = self._entries.found(pods.values(), whole=True)
        return replace(found, faults=(*[f"{name} cannot be read" for name in odd], *found.faults))

    def _entries_of(self, told: Told) -> tuple[Entry, ...] | None:
        settings, prefix = self._settings, self._entries.prefix
        try:
            if settings.service is not None:
                return tuple(of_slice(told, settings.port, prefix, settings.zone))
            return tuple(of_pod(told, settings.port, prefix))
        except (KeyError, IndexError, TypeError, AttributeError):
            return None
