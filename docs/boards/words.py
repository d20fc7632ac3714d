"""States as numbers, because a panel draws numbers: the queries, and what each number is called.

A state is a set of series of which one is 1. Where replicas of penstock differ, the highest number
is shown, so what is worse has a higher one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.balancing.backend import AdminState, State
from penstock.balancing.verdict.cause import Kind


class Word(NamedTuple):
    """What a number means. `metric` and `matchers` find the series that is 1 then."""

    text: str
    color: str
    metric: str
    matchers: str


_COLORS: Final = {
    Kind.FINE: "green",
    Kind.COMPUTE: "orange",
    Kind.MEMORY: "dark-orange",
    Kind.SCHEDULER: "yellow",
    Kind.WAITING: "light-orange",
    Kind.DEMAND: "semi-dark-orange",
    Kind.UNEVEN: "purple",
    Kind.CLIENT: "light-purple",
    Kind.STARTING: "blue",
    Kind.FAILING: "red",
    Kind.MISSED: "semi-dark-yellow",
}
VERDICTS: Final = tuple(
    Word(kind.value, _COLORS[kind], "penstock_bottleneck", f'kind="{kind.value}"') for kind in Kind
)


def _health(state: State, color: str) -> Word:
    return Word(state.value, color, "penstock_backend_state", f'state="{state.value}"')


def _admin(state: AdminState, color: str) -> Word:
    matchers = f'admin_state="{state.value}"'
    return Word(state.value, color, "penstock_backend_admin_state", matchers)


# An operator's word counts more than a probe's.
STATES: Final = (
    _health(State.READY, "green"),
    _health(State.WARMING, "light-green"),
    _health(State.STARTING, "blue"),
    _health(State.SUSPECT, "orange"),
    _health(State.EJECTED, "red"),
    _admin(AdminState.DRAIN, "light-blue"),
    _admin(AdminState.MAINT, "brown"),
)


def numbered(words: Sequence[Word], by: str, matchers: str) -> str:
    """The query for the number of each `by`."""
    parts = [
        f"{number} * ({word.metric}{{{word.matchers}, {matchers}}} == 1)"
        for number, word in enumerate(words)
    ]
    return f"max by ({by}) (\n  " + "\n  or ".join(parts) + "\n)"
