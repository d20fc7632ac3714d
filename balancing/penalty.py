"""What a failure costs its backend: for a while it looks as if it had work queued.

A backend that fails within a millisecond always holds the least load, so every
policy that reads loads would send it everything that comes. A penalty makes a
failure as dear as the work it pretends to have done. It is no part of the
ledger: an idle backend holds nothing, penalised or not.

What one client alone met makes the backend dear to that client alone: whether it is the
backend's fault, a second one tells.
"""

from typing import Final

# The base of Linkerd's load biaser: about what a client loses by a failure.
PENALTY_S: Final = 5.0
# Failures in a row add up, so that a backend which only fails is tried ever more
# rarely; by this many it is ejected too, where its pool can spare it.
ROW_MAX: Final = 5
# A hint of the backend's own counts as it is up to here; by then probes know more.
HINT_S_MAX: Final = 60.0


class Penalty:
    """Seconds of work that a backend looks to have; they pass as work would, one a second."""

    __slots__ = ("_client", "_client_until_s", "_explained", "_until_s", "until_s")

    def __init__(self) -> None:
        self.until_s = 0.0  # for anybody
        self._until_s = 0.0  # for everybody
        self._client = ""  # for one alone
        self._client_until_s = 0.0
        self._explained = False  # by that client's own requests

    def charge(self, now_s: float, *, in_row: int = 1, hint_s: float = 0.0) -> None:
        """Charge a failure, the `in_row`th one, or what the backend's Retry-After hints."""
        self._until_s = max(self._until_s, now_s + _seconds(in_row, hint_s))
        self.until_s = max(self.until_s, self._until_s)

    def charge_for(
        self,
        client: str,
        now_s: float,
        *,
        in_row: int = 1,
        hint_s: float = 0.0,
        explained: bool = False,
    ) -> bool:
        """Charge what `client` met, for it alone; False where another has met something too.

        `explained`: its requests fail everywhere, so that what it met says nothing to others.
        """
        if client != self._client:
            if self._client_until_s > now_s and (explained or not self._explained):
                return False
            self._client = client
            self._client_until_s = 0.0
            self._explained = explained
        self._client_until_s = max(self._client_until_s, now_s + _seconds(in_row, hint_s))
        self.until_s = max(self.until_s, self._client_until_s)
        return True

    def forgive(self) -> None:
        """It has proved that it generates: what it may take now is slow start's to say."""
        self.until_s = self._until_s = self._client_until_s = 0.0

    def read(self, now_s: float, client: str = "") -> float:
        """Seconds still to go for what `client` asks, 0.0 for most."""
        if self.until_s <= now_s:
            return 0.0
        until_s = self._until_s
        if client == self._client:
            until_s = max(until_s, self._client_until_s)
        return until_s - now_s if until_s > now_s else 0.0


def _seconds(in_row: int, hint_s: float) -> float:
    return min(hint_s, HINT_S_MAX) or PENALTY_S * max(1, min(in_row, ROW_MAX))
