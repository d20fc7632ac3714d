"""Who looks at the page: a bounded number in all and from each address.

When all places are taken, the address with the most viewers gives one to an address with fewer. So
nobody keeps all others from looking.
"""

from collections.abc import Callable
from typing import Final

# Half of the admin port's connections, so that commands and probes always have the others.
VIEWERS_MAX: Final = 32
OWN_MAX: Final = 16


class Viewer:
    """One viewer. `leave` is called when it must give way."""

    __slots__ = ("leave", "owner")

    def __init__(self, owner: str, leave: Callable[[], None]) -> None:
        self.owner = owner
        self.leave = leave


class Viewers:
    """All viewers, the first one first."""

    def __init__(self) -> None:
        self._all: dict[Viewer, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, owner: str, leave: Callable[[], None]) -> Viewer | None:
        """A place for one more from this address. None if there is none."""
        held: dict[str, int] = {}
        for each in self._all:
            held[each.owner] = held.get(each.owner, 0) + 1
        mine = held.get(owner, 0)
        if mine >= OWN_MAX:
            return None
        if len(self._all) >= VIEWERS_MAX:
            most = max(held.values())
            if most <= mine + 1:
                return None
            loser = next(each for each in self._all if held[each.owner] == most)
            del self._all[loser]
            loser.leave()
        viewer = Viewer(owner, leave)
        self._all[viewer] = None
        return viewer

    def exit(self, viewer: Viewer) -> None:
        """It looks no more. It may have given way before."""
        self._all.pop(viewer, None)
