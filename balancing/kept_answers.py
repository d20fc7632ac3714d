"""How many bytes of a backend's answers are held back, by client. Its leases change the numbers."""

from typing import Final

# For all held answers of one backend, which may begin a great many and finish none.
KEPT_BYTES_MAX: Final = 33_554_432
# A client may have more held only if a quarter of its new total stays free. Answers that it does
# not read must not take the room of other clients' answers (the same rule as in `Bodies`).
LEFT: Final = 4


class KeptAnswers:
    """The held bytes of one backend's answers."""

    __slots__ = ("by_client", "total_bytes")

    def __init__(self) -> None:
        self.total_bytes = 0
        self.by_client: dict[str, int] = {}

    def change(self, client: str, more_bytes: int) -> bool:
        """Add `more_bytes`, which may be negative. False when there is no room: nothing changes."""
        total_bytes = self.total_bytes + more_bytes
        own_bytes = self.by_client.get(client, 0) + more_bytes
        if more_bytes > 0 and total_bytes + own_bytes // LEFT > KEPT_BYTES_MAX:
            return False
        assert own_bytes >= 0
        self.total_bytes = total_bytes
        if own_bytes:
            self.by_client[client] = own_bytes
        else:
            del self.by_client[client]
        return True
