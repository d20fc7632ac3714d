"""What operators have ordered: states of backends, and backends beside the configuration.

Orders outlast reloads of what was found, and restarts where `state.dir` is set. A state lasts until
another one is ordered. An added backend lasts until it is removed or the configuration is reloaded:
from then on the configuration counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from penstock.balancing.backend import AdminState, Backend
from penstock.conf.pools import BackendSettings
from penstock.conf.settings import Settings
from penstock.proxy.discovery.found import KEYS, Allowed, Entries

# So many names are remembered. Pods come and go with theirs: the oldest order is forgotten first.
STATES_MAX: Final = 4_096
ADDED_MAX: Final = 256
# An operator may name any address, as in the configuration.
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")


class CannotAdd(Exception):
    """Why a backend is not added. The text is for people."""


@dataclass(frozen=True, slots=True)
class Added:
    """A backend that an operator has added, and when (Unix time)."""

    pool: str
    settings: BackendSettings
    since_s: float


class Operators:
    """`changed`: something is to be kept (`process/state_files.py`)."""

    def __init__(self) -> None:
        self.changed = False
        self._states: dict[str, AdminState] = {}
        self._added: dict[str, Added] = {}  # by name
        self._entries = Entries(Allowed(_ANYWHERE))

    def set_state(self, backend: Backend, state: AdminState) -> None:
        """Order a state."""
        self._states.pop(backend.name, None)
        if state is not AdminState.READY:
            self._states[backend.name] = state
            if len(self._states) > STATES_MAX:
                del self._states[next(iter(self._states))]
        backend.admin_state = state
        self.changed = True

    def apply(self, backends: Iterable[Backend]) -> None:
        """Give backends of a new configuration the states that were ordered for their names."""
        for backend in backends:
            backend.admin_state = self._states.get(backend.name, AdminState.READY)

    def add(self, settings: Settings, entry: object, now_s: float) -> BackendSettings:
        """Add a backend to these settings: an entry as sources tell it, with its `pool`.

        `now_s`: Unix time. Raises CannotAdd.
        """
        if not isinstance(entry, dict):
            raise CannotAdd("the body must be a JSON object with pool and url")
        pool = next((each for each in settings.pools if each.name == entry.get("pool")), None)
        if pool is None:
            names = ", ".join(each.name for each in settings.pools[:20])
            raise CannotAdd(f"pool must be one of {names}")
        found = self._entries.found([{key: entry[key] for key in entry.keys() - {"pool"}}])
        if found.faults:
            raise CannotAdd(found.faults[0].partition(": ")[2])
        (backend,) = found.backends
        if len(self._added) >= ADDED_MAX:
            raise CannotAdd(
                f"{ADDED_MAX} backends have been added: write them in the configuration"
            )
        if any(backend.name == each.name for pool in settings.pools for each in pool.backends):
            raise CannotAdd(f"the name {backend.name} is taken")
        if any(backend.url == each.url for each in pool.backends):
            raise CannotAdd(f"the pool has a backend at {backend.url}")
        self._added[backend.name] = Added(pool.name, backend, now_s)
        self.changed = True
        return backend

    def remove(self, name: str) -> bool:
        """Remove an added backend. Returns whether there was one."""
        self.changed = self.changed or name in self._added
        return self._added.pop(name, None) is not None

    def drop_added(self) -> None:
        """The configuration was reloaded."""
        self.changed = self.changed or bool(self._added)
        self._added.clear()

    def origin(self, name: str) -> dict[str, object] | None:
        """Where an added backend comes from and since when, as JSON. None: nobody added it."""
        added = self._added.get(name)
        return {"source": "operator", "since": added.since_s} if added is not None else None

    def merged(self, settings: Settings) -> Settings:
        """These settings with what was added, as far as they leave its name free."""
        added = tuple(self._added.values())  # a copy: this may run in a thread
        if not added:
            return settings
        taken = {each.name for pool in settings.pools for each in pool.backends}
        pools = []
        for pool in settings.pools:
            urls = {each.url for each in pool.backends}
            of_pool = [each.settings for each in added if each.pool == pool.name]
            new = [each for each in of_pool if each.name not in taken and each.url not in urls]
            pools.append(pool.model_copy(update={"backends": (*pool.backends, *new)}))
        return settings.model_copy(update={"pools": tuple(pools)})

    def to_state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        added = [
            each.settings.model_dump(include=set(KEYS), exclude_none=True)
            | {"pool": each.pool, "since": each.since_s}
            for each in self._added.values()
        ]
        return {name: kept for name, kept in (("states", self._states), ("added", added)) if kept}

    def resume(self, known: dict[str, Any]) -> None:
        """Take what `to_state` told. What cannot be read is left out."""
        states = known.get("states")
        for name, state in states.items() if isinstance(states, dict) else ():
            if state in list(AdminState):
                self._states[name] = AdminState(state)
        added = known.get("added")
        for entry in added if isinstance(added, list) else ():
            if not isinstance(entry, dict):
                continue
            pool, since_s = entry.pop("pool", None), entry.pop("since", None)
            for backend in self._entries.found([entry]).backends:
                if isinstance(pool, str) and isinstance(since_s, float):
                    self._added[backend.name] = Added(pool, backend, since_s)
