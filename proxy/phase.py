"""Where a client's connection stands."""

from enum import Enum


class Phase(Enum):
    """What the connection's next bytes are."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"  # a request is being answered: they belong to the next one
    LINGER = "linger"  # an error was sent: they are dropped
    CLOSING = "closing"
