"""Attempts to sign in: each is put off by what came before it, and no address locks out another.

A token is compared only after the delay, so who leaves earlier has learnt nothing. The delay grows
with the failures of the last minute, those of the same address above all, and has a bound. How many
wait is bounded too: for one more, one of the address with the most gives way.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

QUIET_S: Final = 60.0  # after so long without an attempt, an address has a clean sheet
FREE: Final = 3  # so many failures cost nothing: people mistype
STEP_S: Final = 0.25
OWN_MAX_S: Final = 2.0
# From many addresses at once: after so many failures everybody waits for this.
FREE_OF_ALL: Final = 60
ALL_MAX_S: Final = 0.5
ADDRESSES_MAX: Final = 1_024
WAITING_MAX: Final = 16


class Attempt:
    """One attempt. `displaced` is called when it must give way."""

    __slots__ = ("displaced", "owner", "put_off_s")

    def __init__(self, owner: str, put_off_s: float, displaced: Callable[[], None]) -> None:
        self.owner = owner
        self.put_off_s = put_off_s
        self.displaced = displaced


class Attempts:
    """The attempts of the last minute, by address."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()  # the longest quiet first
        self._all = 0
        self._all_s = 0.0
        self._waiting: dict[Attempt, None] = {}

    def begin(self, owner: str, now_s: float, displaced: Callable[[], None]) -> Attempt:
        """An attempt begins, and counts as a failure until it succeeds."""
        count = self._own(owner, now_s) + 1
        everybody = self._all + 1 if now_s < self._all_s + QUIET_S else 1
        self._all, self._all_s = everybody, now_s
        self._note(owner, count, now_s)
        put_off_s = min(OWN_MAX_S, STEP_S * max(0, count - FREE))
        if everybody > FREE_OF_ALL:
            put_off_s = max(put_off_s, ALL_MAX_S)
        if len(self._waiting) >= WAITING_MAX:
            self._make_room()
        attempt = Attempt(owner, put_off_s, displaced)
        self._waiting[attempt] = None
        return attempt

    def end(self, attempt: Attempt, now_s: float, *, succeeded: bool) -> int:
        """It is over. Returns how many of its address have failed."""
        self._waiting.pop(attempt, None)
        count = self._own(attempt.owner, now_s)
        if succeeded and count:
            # It takes back itself only: a token for readers clears no guesses at the other.
            count -= 1
            self._all -= self._all > 0
            self._note(attempt.owner, count, now_s)
        return count

    def _own(self, owner: str, now_s: float) -> int:
        count, at_s = self._counts.get(owner, (0, 0.0))
        return count if now_s < at_s + QUIET_S else 0

    def _note(self, owner: str, count: int, now_s: float) -> None:
        self._counts[owner] = count, now_s
        self._counts.move_to_end(owner)
        if len(self._counts) > ADDRESSES_MAX:
            self._counts.popitem(last=False)

    def _make_room(self) -> None:
        held: dict[str, int] = {}
        for each in self._waiting:
            held[each.owner] = held.get(each.owner, 0) + 1
        most = max(held.values())
        # The last of them: those that came before it have waited longer.
        loser = [each for each in self._waiting if held[each.owner] == most][-1]
        del self._waiting[loser]
        loser.displaced()
