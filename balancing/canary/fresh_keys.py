"""Which requests came from a key whose version their client could not know yet.

A sticky split draws the version by a key: a session, a user, a client. Its first answer tells the
client which version it got, and most keys are for the client to choose. So a client can look for
a key that is on the canary, and then send what fails by its own doing. It cannot do so with the
first request of a key. These alone are drawn by lot, whoever sends them and under whatever name.
That needs a split that no client can compute, nor try out under another client's name: its hash
takes in a secret, and the client beside the key.

Keys are remembered as bits that nobody can push out (a Bloom filter with one hash). A key whose
bit is taken already is not fresh: that loses evidence and never makes any. Each group of clients
has bits of its own, so that a client that makes up keys uses up those of its group.
"""

from base64 import b64decode, b64encode
from typing import Final

from penstock.balancing.canary.groups import GROUPS

# 1 KiB for each group.
BITS: Final = 8_192


class FreshKeys:
    """The keys that were used since the canary began."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits = [bytearray(BITS // 8) for _ in range(GROUPS)]

    def use(self, group: int, key: int | None) -> bool:
        """A request with this key begins. Returns whether the key is fresh.

        None: the version was drawn for this request alone.
        """
        if key is None:
            return True
        bits = self._bits[group]
        place, bit = divmod(key % BITS, 8)
        fresh = not bits[place] >> bit & 1
        bits[place] |= 1 << bit
        return fresh

    def to_text(self) -> str:
        """All of it, 22 KB."""
        return b64encode(b"".join(self._bits)).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> "FreshKeys":
        """Raises ValueError if it is none."""
        every = b64decode(text, validate=True)
        if len(every) != GROUPS * BITS // 8:
            raise ValueError("not the bits of fresh keys")
        keys = cls()
        size = BITS // 8
        keys._bits = [bytearray(every[i * size : (i + 1) * size]) for i in range(GROUPS)]
        return keys
