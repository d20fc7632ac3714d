"""A loop without a clock: a test calls what is to run in the next turn."""

from collections.abc import Callable
from typing import Any


class Turns:
    """Keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.next: list[Callable[[], None]] = []

    @property
    def loop(self) -> Any:
        """The same, for what takes a loop and only calls `call_soon`."""
        return self

    def call_soon(self, call: Callable[[], None]) -> None:
        self.next.append(call)

    def turn(self) -> bool:
        """One turn; whether there was anything in it."""
        calls, self.next = self.next, []
        for call in calls:
            call()
        return bool(calls)

    def run(self) -> None:
        """All turns in which there is anything."""
        while self.turn():
            pass


class Shared(Turns):
    """All work shares one call a turn."""

    def turn(self) -> bool:
        assert len(self.next) <= 1
        return super().turn()
