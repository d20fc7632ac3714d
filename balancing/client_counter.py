"""Counts events by client in constant memory, to answer: is it more than one client?

The clients with the most events are counted by name. A client that is not among the names takes
one event from each of them, and a name without events left is dropped (Misra and Gries, 1982). So a
flood of one client never looks like many clients, however many events there are. Of many clients
that are alike, up to a ninth of the events count as those of the most frequent one.
"""

from typing import Final

NAMES_MAX: Final = 8
# At this number all counts are halved. So a client that was the most frequent long ago gives way.
NAMED_MAX: Final = 64


class ClientCounter:
    """`count`: all events. `most`: the most frequent client, empty before the first event.
    `others`: events that `most` did not cause. Once another client is the most frequent, its
    earlier events still count as those of others."""

    def __init__(self) -> None:
        self._named: dict[str, int] = {}
        self.most = ""
        self.count = self.others = 0

    def add(self, client: str | None) -> None:
        """Add an event. `client` is None if no client can have caused it: it counts as another."""
        self.count += 1
        named = self._named
        if client is None:
            self.others += 1
            return
        known = named.get(client, 0)
        if known or len(named) < NAMES_MAX:
            known += 1
            named[client] = known
            if client != self.most and known > named.get(self.most, 0):
                self.most = client
            if known >= NAMED_MAX:
                self._named = {each: number // 2 for each, number in named.items() if number > 1}
        else:
            self._named = {each: number - 1 for each, number in named.items() if number > 1}
        if client != self.most:
            self.others += 1

    def clear(self) -> None:
        """Forget all events."""
        if self.count:
            self._named = {}
            self.most = ""
            self.count = self.others = 0

    def acquit(self) -> None:
        """Forget the events of the most frequent client: it caused them itself."""
        self._named.pop(self.most, None)
        self.most = max(self._named, key=self._named.__getitem__, default="")
        self.count, self.others = self.others, 0
