"""How many bytes of backends' answers are held back. Only leases change the numbers."""

from typing import Final

# For all held answers of one backend, which may begin a great many and finish none.
KEPT_BYTES_MAX: Final = 33_554_432
# A client, or a backend, may have more held only if a quarter of its new total stays free. Answers
# that never end must not take the room of others (the same rule as in `Bodies`).
LEFT: Final = 4


class KeptRoom:
    """The held answers of all backends together."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = 2**62) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0


class KeptAnswers:
    """The held answers of one backend, by client. They take a part of `room`."""

    __slots__ = ("by_client", "room", "total_bytes")

    def __init__(self) -> None:
        self.room = KeptRoom()
        self.total_bytes = 0
        self.by_client: dict[str, int] = {}

    def change(self, client: str, more_bytes: int) -> bool:
        """Add `more_bytes`, which may be negative. False when there is no room: nothing changes."""
        room = self.room
        total_bytes = self.total_bytes + more_bytes
        own_bytes = self.by_client.get(client, 0) + more_bytes
        if more_bytes > 0:
            held_bytes = room.held_bytes + more_bytes
            if total_bytes + own_bytes // LEFT > KEPT_BYTES_MAX:
                return False
            if held_bytes + total_bytes // LEFT > room.limit_bytes:
                return False
        assert own_bytes >= 0
        room.held_bytes += more_bytes
        self.total_bytes = total_bytes
        if own_bytes:
            self.by_client[client] = own_bytes
        else:
            del self.by_client[client]
        return True
