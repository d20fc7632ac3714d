"""Server-sent events out of pieces of a stream. Of several that came at once the latest is news."""

from typing import Final

# More than any snapshot has. A stream without an end of an event is no stream of ours.
EVENT_BYTES_MAX: Final = 67_108_864
_END: Final = b"\n\n"
_DATA: Final = b"data: "


class TooLong(Exception):
    """An event without an end."""


class EventBuffer:
    """Holds what has come of the event that is not whole yet."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._searched = 0

    def add(self, piece: bytes) -> bytes | None:
        """The data of the latest whole event, if one has become whole. Raises TooLong."""
        self._bytes += piece
        end = self._bytes.rfind(_END, max(0, self._searched - 1))
        self._searched = len(self._bytes)
        if end < 0:
            if len(self._bytes) > EVENT_BYTES_MAX:
                raise TooLong
            return None
        begin = self._bytes.rfind(_END, 0, end)
        event = bytes(self._bytes[0 if begin < 0 else begin + len(_END) : end])
        del self._bytes[: end + len(_END)]
        self._searched = len(self._bytes)
        return event.removeprefix(_DATA) if event.startswith(_DATA) else None
