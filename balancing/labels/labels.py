"""When a classifier that fails is asked again.

After some failures in a row it is not asked for a while, and then by one request at a time until it
answers. A client may have the classifier fail by what it sends, and must not take it from others.
So each client has a run of failures of its own. In the run of all it counts twice at most: three
clients must meet failures, and nobody an answer, before the others are held up. Then who has met
none tries first: those who have would otherwise take every try.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.balancing.fair_table import FairTable
from penstock.balancing.field_values import UNREADABLE

# A run of so many failures holds questions up. One failure may be chance.
IN_A_ROW: Final = 5
OF_ONE_MAX: Final = 2
HELD_UP_S: Final = 5.0
# The most clients whose failures are counted. One that is forgotten is asked for again.
CLIENTS_MAX: Final = 1_024


class _Run:
    """Failures since the last answer. Of one client at most `of_one` count."""

    __slots__ = ("_by", "_of_one", "_until_s", "count", "probing")

    def __init__(self, of_one: int) -> None:
        self._of_one = of_one
        self._by: dict[str, int] = {}
        self._until_s = 0.0
        self.count = 0
        self.probing = False  # while it is held up, one question tries

    @property
    def holds(self) -> bool:
        return self.count >= IN_A_ROW

    def may_ask(self, now_s: float) -> bool:
        return not self.holds or (now_s >= self._until_s and not self.probing)

    def lets(self, client: str, now_s: float) -> bool:
        """The same for one of many clients. Who has met failures tries later than others."""
        return self.may_ask(now_s) and (
            not self.holds or client not in self._by or now_s >= self._until_s + HELD_UP_S
        )

    def failed(self, client: str, now_s: float) -> None:
        self.probing = False
        counted = self._by.get(client, 0)
        if not self.holds and counted < self._of_one:
            self._by[client] = counted + 1
            self.count += 1
        elif len(self._by) < CLIENTS_MAX:
            self._by.setdefault(client, 0)
        if self.holds:
            self._until_s = now_s + HELD_UP_S


class Failures:
    """The runs of all clients together, and of each. `begins` and `ends` go around a question."""

    def __init__(self) -> None:
        self._all = _Run(OF_ONE_MAX)
        self._of: OrderedDict[str, _Run] = OrderedDict()

    def may_ask(self, client: str, now_s: float) -> bool:
        """Whether the classifier may be asked now for this client."""
        own = self._of.get(client)
        return (own is None or own.may_ask(now_s)) and self._all.lets(client, now_s)

    def begins(self, client: str) -> None:
        """A question is asked, which may be asked."""
        own = self._of.get(client)
        self._all.probing = self._all.holds
        if own is not None:
            own.probing = own.holds

    def ends(self, client: str, now_s: float, *, answered: bool) -> None:
        """It was answered, or not."""
        if answered:
            self._of.pop(client, None)
            self._all = _Run(OF_ONE_MAX)
            return
        own = self._of.get(client)
        if own is None:
            own = self._of[client] = _Run(IN_A_ROW)
            if len(self._of) > CLIENTS_MAX:
                self._of.popitem(last=False)
        own.failed(client, now_s)
        self._all.failed(client, now_s)


KEPT_S: Final = 600.0
# Questions at once, of all clients and of one. At 10 ms each that is 6,400 a second, and 1,600.
AT_ONCE: Final = 64
AT_ONCE_OF_ONE: Final = 16
LABEL_CHARS_MAX: Final = 63
_MARK_BYTES: Final = 16


class _Said(msgspec.Struct):
    label: str


_said: Final = msgspec.json.Decoder(_Said)


def label_in(body: bytes) -> str | None:
    """The label in an answer. None: there is none, or it is too long for one."""
    try:
        label = _said.decode(body).label
    except (*UNREADABLE, RecursionError):
        return None
    return label if 0 < len(label) <= LABEL_CHARS_MAX else None


class Labels:
    """The labels that are remembered, and the questions that are asked now."""

    def __init__(self, entries: int, key: bytes) -> None:
        """`key` is secret: who knows it can tell which texts were asked about."""
        self._key = key
        self._known: FairTable[tuple[str, float]] = FairTable(entries)
        self._asking: dict[str, int] = {}
        self._failures = Failures()
        self.asking = 0

    def mark(self, question: bytes) -> bytes:
        """What stands for a question."""
        return blake2b(question, key=self._key, digest_size=_MARK_BYTES).digest()

    def find(self, client: str, mark: bytes, now_s: float) -> str | None:
        """The label that is remembered. None: none is."""
        found = self._known.use(client, mark)
        return found[0] if found is not None and now_s < found[1] else None

    def begin(self, client: str, now_s: float) -> bool:
        """Begin a question, which `end` ends. False: it may not be asked now."""
        own = self._asking.get(client, 0)
        if self.asking >= AT_ONCE or own >= AT_ONCE_OF_ONE:
            return False
        if not self._failures.may_ask(client, now_s):
            return False
        self._failures.begins(client)
        self._asking[client] = own + 1
        self.asking += 1
        return True

    def end(self, client: str, mark: bytes, label: str | None, now_s: float) -> bool:
        """A question has ended. `label` is None if it failed, which is not remembered.

        Returns whether its client is held up now.
        """
        self.asking -= 1
        left = self._asking.pop(client) - 1
        if left:
            self._asking[client] = left
        self._failures.ends(client, now_s, answered=label is not None)
        if label is not None:
            self._known.put(client, mark, (label, now_s + KEPT_S))
        return not self._failures.may_ask(client, now_s)
