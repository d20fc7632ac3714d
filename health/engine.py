"""Which engine a backend is, so that another one in its place is noticed.

An engine is known by its version and by its base models with their contexts. A restart of the same
engine changes neither. Adapters come and go while it runs, so they do not count.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from penstock.balancing.backend import Backend, State

VERSION_CHARS_MAX: Final = 64
# The first of these in the order of their names are enough.
MODELS_MAX: Final = 16


def read_version(body: bytes) -> str:
    """The version in an answer to `/version`. Empty if it tells none."""
    try:
        told = orjson.loads(body)
    except ValueError:
        return ""
    version = told.get("version") if isinstance(told, dict) else None
    return version[:VERSION_CHARS_MAX] if isinstance(version, str) else ""


class Engine:
    """What engine `backend` was when it was asked last."""

    __slots__ = ("_backend", "_known", "_restarts")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: tuple[str, ...] | None = None
        self._restarts = backend.restarts

    @property
    def restarted(self) -> bool:
        """Whether it was restarted since it was asked."""
        return self._backend.restarts != self._restarts

    @property
    def is_due(self) -> bool:
        """Whether another engine may be there: it is out, unknown, or was restarted."""
        return self.restarted or self._backend.state in (State.STARTING, State.EJECTED)

    def tell(self, version: str, models: Mapping[str, bytes]) -> bool:
        """What it says of itself now. Returns whether it is another one than before."""
        before, self._known = self._known, (version, *_bases(models))
        self._restarts = self._backend.restarts
        return before is not None and before != self._known


def _bases(models: Mapping[str, bytes]) -> list[str]:
    """The base models, with what they are made of and their contexts."""
    found = []
    for name in sorted(models):
        card = orjson.loads(models[name])
        if card.get("parent") is None:
            found.append(f"{name} {card.get('root')} {card.get('max_model_len')}")
        if len(found) == MODELS_MAX:
            break
    return found
