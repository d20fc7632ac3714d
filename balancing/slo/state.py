"""Whether an objective is met, nearly missed or missed, without flapping at a limit."""

from enum import IntEnum
from typing import Final

WARNS_ABOVE: Final = 0.8
CALM_BELOW: Final = 0.7
CRITICAL_ABOVE: Final = 1.0
EASED_BELOW: Final = 0.9


class State(IntEnum):
    """The state of an objective."""

    OK = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


def next_state(before: State, used: float) -> State:
    """The state after `before`. `used`: how much of the limit is used, 1 is all of it.

    A worse state begins at once. A better one begins when 10 % less is used than would have been
    needed for the worse one.
    """
    if used > CRITICAL_ABOVE or (before is State.CRITICAL and used > EASED_BELOW):
        return State.CRITICAL
    if used > WARNS_ABOVE or (before is not State.OK and used > CALM_BELOW):
        return State.WARNING
    return State.OK
