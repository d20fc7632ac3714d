"""What all backends' answers share while they are read: a part of each turn of the loop.

With a part for each backend, hundreds of large answers from sixty backends would hold the loop for
sixty times as long.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

from penstock.proxy.wire.records import RecordReads
from penstock.proxy.wire.scheduler import Scheduler


class AnswerReads:
    """Decides what is read of answers at once, and whose turn is next."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = monotonic
    ) -> None:
        # Parties are backends for what they send, and clients for the ends of their large answers.
        self.scheduler = Scheduler(loop, now=now)
        self.records = RecordReads(loop)
