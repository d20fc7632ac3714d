"""What `c/module.c` offers. Interpreted installations do not have it."""

class FieldParser:
    """Reads usual header lines. `names`: those of usual headers, in lower case, 64 at most.

    `decisive`: those that may come only once.
    """

    def __new__(cls, names: tuple[bytes, ...], decisive: frozenset[bytes]) -> FieldParser: ...
    def parse(self, lines: bytes) -> tuple[list[tuple[bytes, bytes]], dict[bytes, bytes]] | None:
        """(lower-case name, value) of each line, and the decisive ones by name.

        None: something is not plainly right.
        """

class Buffer:
    """Keeps a body of a known length while it comes, as a BytesIO would, and moves it less."""

    def __new__(cls, length: int) -> Buffer: ...
    def write(self, piece: bytes) -> int:
        """Add a piece. Raises ValueError if it is more than was announced."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Where the next bytes go, 256 KiB at most. Raises BufferError while another is kept."""

    def landed(self, size_bytes: int) -> None:
        """So many bytes were written there. Raises ValueError if there was no room for them."""

    def tell(self) -> int:
        """How much there is."""

    def getvalue(self) -> bytes:
        """The whole body, once. Raises ValueError if it is not whole."""

def whole_chunks(read: bytes) -> tuple[bytes, int] | None:
    """What whole chunks hold, and how many they are. None: there is anything else in the read."""

def lines_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Each field as `name: value` and a line end."""

def line_ends(data: bytes, begin: int, end: int) -> int:
    """How many line feeds and carriage returns there are. Raises ValueError beyond the data."""

def ordinary_events(read: bytes, like: bytes) -> int:
    """As `event_ends.any_ordinary_events`."""

def chunk_of(data: bytes) -> bytes:
    """One HTTP chunk with this data."""
