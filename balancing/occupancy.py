"""What is told when a request gives up some of its backend's room.

Not an abstract class: with one, mypyc would check each attribute of it at each read.
"""

from penstock.balancing.queued_prompts import QueuedPrompts


class Occupancy:
    """Counts who is at one backend (`admission.pool_queue` does)."""

    __slots__ = ()

    def prefilled(self, prompts: QueuedPrompts, now_s: float) -> None:
        """All prompts of a lease have left the backend's prefill queue."""
        raise NotImplementedError

    def ended(self, prompts: QueuedPrompts, now_s: float) -> None:
        """A lease has ended."""
        raise NotImplementedError
