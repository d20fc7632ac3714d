"""Which versions were rolled back, also while a reload has dropped their canary.

A version is a route's pool and model. It stays rolled back until an operator lets it begin again.
"""

from collections.abc import Iterator
from typing import Final

from penstock.conf.canary import CanarySettings

# The oldest is forgotten first. Only the operator's own configurations add any.
VERSIONS_MAX: Final = 256
Version = tuple[str, str, str | None]


def version_of(route: str, settings: CanarySettings) -> Version:
    """What a route's canary tries."""
    return route, settings.pool, settings.model


class RolledBack:
    """The versions, with the reason of each."""

    __slots__ = ("_why",)

    def __init__(self) -> None:
        self._why: dict[Version, str] = {}

    def note(self, version: Version, why: str) -> None:
        """A version was rolled back."""
        self.forget(version)
        self._why[version] = why
        if len(self._why) > VERSIONS_MAX:
            del self._why[next(iter(self._why))]

    def forget(self, version: Version) -> None:
        """An operator has let it go on."""
        self._why.pop(version, None)

    def why(self, version: Version) -> str | None:
        """Why it was rolled back. None: it was not."""
        return self._why.get(version)

    def to_state(self) -> list[list[str | None]]:
        """All of them, as JSON."""
        return [[*version, why] for version, why in self._why.items()]

    def read(self, state: object) -> None:
        """Take what was kept. What cannot be read is left out."""
        for route, pool, model, why in _readable(state):
            self.note((route, pool, model), why)


def _readable(state: object) -> Iterator[tuple[str, str, str | None, str]]:
    for each in state if isinstance(state, list) else []:
        match each:
            case [str(route), str(pool), str() | None as model, str(why)]:
                yield route, pool, model, why
            case _:
                pass
