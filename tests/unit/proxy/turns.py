"""A loop without a clock: a test calls what is to run in the next turn."""

import asyncio
from collections.abc import Callable
from typing import cast


class Turns:
    """Keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.next: list[Callable[[], None]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The same, for what takes a loop and only calls `call_soon`."""
        return cast(asyncio.AbstractEventLoop, self)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.next.append(call)

    def turn(self) -> None:
        calls, self.next = self.next, []
        for call in calls:
            call()
