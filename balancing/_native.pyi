"""What `c/module.c` offers. Interpreted installations do not have it."""

from typing import Final

UNCLEAN: Final[int]
MORE: Final[int]
WHOLE: Final[int]

class Scan:
    """One pass over a JSON object: where the values of some top-level keys are."""

    def __new__(cls, text: bytes, keys: tuple[bytes, ...]) -> Scan: ...
    def go_on(self, work: int) -> int:
        """Go on for about `work` tokens: MORE, WHOLE, or UNCLEAN if something is not right."""

    def places(self) -> list[tuple[bytes, int, int]]:
        """(key, begin, end) of the value of each key that is there. Empty before WHOLE."""

    def names_media(self) -> bool:
        """Whether a "type" of a part that is not text was seen, anywhere."""

class BlockHashes:
    """The chained hashes of a text's blocks of 512 bytes."""

    def __new__(cls, chained: int) -> BlockHashes: ...
    def add(self, text: bytes | memoryview, squeezed: bool) -> bool:
        """Take more text, `squeezed`: without the blanks between values.

        False: all blocks are full.
        """

    def hashes(self) -> tuple[int, ...]:
        """The hashes of all full blocks, 2,048 at most."""

    def size_bytes(self) -> int:
        """The size of what was taken, without the blanks that were left out."""

def kinds_of(text: bytes | memoryview) -> tuple[int, int, int, int, int, int, int]:
    """Words, letters, digits, signs, backslashes, bytes of wide characters, and escapes of such."""
