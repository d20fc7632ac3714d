"""Clients in a few groups, each of which can be left out of the evidence, and their fresh keys.

One client is in one group. The first clients have a group each; all others share them by hash. So
a table of a fixed size is enough, however many clients there are.

A key (a session, a user, a client) draws the version, and its first answer tells the client which
one it got. Most keys are the client's to choose: it can look for one that is on the canary, and
then send what fails by its own doing. It cannot do so with the first request of a key. These alone
are drawn by lot, whoever sends them and under whatever name. That needs a split that no client can
compute, nor try out under another client's name: its hash takes in a secret and the client.
"""

from base64 import b64decode, b64encode
from typing import Final

import xxhash

GROUPS: Final = 16
# Of keys, for each group: 1 KiB.
BITS: Final = 8_192


class Groups:
    """Which group a client is in."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}

    def of(self, client: str) -> int:
        """The group of a client, always the same one."""
        known = self._first.get(client)
        if known is not None:
            return known
        if len(self._first) < GROUPS:
            self._first[client] = len(self._first)
            return len(self._first) - 1
        return xxhash.xxh3_64_intdigest(client.encode()) % GROUPS

    @property
    def number(self) -> int:
        """How many groups have a client."""
        return len(self._first)


class FreshKeys:
    """The keys that were used since the canary began, as bits that nobody can push out.

    A key whose bit is taken is not fresh: that loses evidence and never makes any. A client that
    makes up keys uses up the bits of its group.
    """

    def __init__(self, bits: bytes = bytes(GROUPS * BITS // 8)) -> None:
        self._bits = bytearray(bits)

    def use(self, group: int, key: int | None) -> bool:
        """A request with this key begins. Returns whether the key is fresh.

        None: the version was drawn for this request alone.
        """
        if key is None:
            return True
        place, bit = divmod(group * BITS + key % BITS, 8)
        fresh = not self._bits[place] >> bit & 1
        self._bits[place] |= 1 << bit
        return fresh

    def to_text(self) -> str:
        """All of it, 22 KB."""
        return b64encode(self._bits).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> "FreshKeys":
        """Raises ValueError if it is none."""
        bits = b64decode(text, validate=True)
        if len(bits) != GROUPS * BITS // 8:
            raise ValueError("not the bits of fresh keys")
        return cls(bits)
