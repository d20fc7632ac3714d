"""The phases of a client's connection."""

from enum import Enum
from typing import Final

# A close with unread bytes resets the connection and destroys the error. So they are read.
LINGER_S: Final = 2.0
LINGER_BYTES_MAX: Final = 4_194_304


class Phase(Enum):
    """What the next bytes of the connection are."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"  # a request is being answered: the bytes belong to the next one
    LINGER = "linger"  # an error was sent: the bytes are dropped
    CLOSING = "closing"
