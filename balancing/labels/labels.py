"""What a classifier has said, and whether it may be asked more.

Nobody pays for another: each client has a share of the memory for labels and of the questions that
are asked at once. Its labels are its own, so that nobody learns by the time of an answer what
others have asked. They are kept by a keyed hash of the text, not by the text.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.balancing.fair_table import FairTable
from penstock.balancing.field_values import UNREADABLE

KEPT_S: Final = 600.0
# Questions at once, of all clients and of one. At 10 ms each that is 6,400 a second, and 1,600.
AT_ONCE: Final = 64
AT_ONCE_OF_ONE: Final = 16
# After this many failures in a row, a client's questions are not asked for HELD_UP_S. Then one at a
# time is. Failures are counted for each client, because its own text may make the classifier fail.
IN_A_ROW: Final = 5
HELD_UP_S: Final = 5.0
# The most clients whose failures are counted. One that is forgotten is asked for again.
CLIENTS_MAX: Final = 1_024
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


class _Run:
    """A client's failures since its last answer. While it is held up, one question `tries`."""

    __slots__ = ("failures", "tries", "until_s")

    def __init__(self) -> None:
        self.failures = 0
        self.until_s = 0.0
        self.tries = False

    @property
    def holds(self) -> bool:
        return self.failures >= IN_A_ROW


class Labels:
    """The labels that are remembered, and the questions that are asked now."""

    def __init__(self, entries: int, key: bytes) -> None:
        """`key` is secret: who knows it can tell which texts were asked about."""
        self._key = key
        self._known: FairTable[tuple[str, float]] = FairTable(entries)
        self._asking: dict[str, int] = {}
        self._runs: OrderedDict[str, _Run] = OrderedDict()
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
        run = self._runs.get(client)
        if run is not None and run.holds:
            if run.tries or now_s < run.until_s:
                return False
            run.tries = True
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
        if label is not None:
            self._runs.pop(client, None)
            self._known.put(client, mark, (label, now_s + KEPT_S))
            return False
        run = self._runs.get(client)
        if run is None:
            run = self._runs[client] = _Run()
            if len(self._runs) > CLIENTS_MAX:
                self._runs.popitem(last=False)
        run.failures += 1
        run.tries, run.until_s = False, now_s + HELD_UP_S
        return run.holds
