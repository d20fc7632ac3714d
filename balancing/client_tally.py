"""How many of some events were of other clients than the one with most of them."""

from typing import Final

# So many events of others make one of them the most frequent client, however many it had before.
VOTES_MAX: Final = 64


class ClientTally:
    """Counts in constant memory (majority vote: Boyer and Moore, 1981).

    `most`: the client with most of them, empty before the first. `others`: those of all others.
    """

    __slots__ = ("_votes", "most", "others", "total")

    def __init__(self) -> None:
        self.most = ""
        self._votes = 0
        self.others = self.total = 0

    def add(self, client: str) -> None:
        self.total += 1
        if client == self.most:
            self._votes = min(VOTES_MAX, self._votes + 1)
        elif not self._votes:
            self.most, self._votes = client, 1
        else:
            self._votes -= 1
            self.others += 1

    def add_of_nobody(self) -> None:
        """Count one that no client has caused."""
        self.total += 1
        self.others += 1
