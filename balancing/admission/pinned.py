"""What one engine keeps of its cache for cached prompts, from when they are sent until prefilled.

Its report counts that, too. If it were not taken out there, prompts would seem to be estimated too
low, and it would count twice.
"""

from penstock.balancing.admission.held_blocks import HeldBlocks
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport


class Pinned:
    """`tokens`: the cached ones of the prompts that were sent there and are not prefilled."""

    __slots__ = ("_backend", "_blocks", "_report", "_reported_tokens", "tokens")

    def __init__(self, backend: Backend, blocks: HeldBlocks) -> None:
        """`blocks`: of all prompts there."""
        self._backend = backend
        self._blocks = blocks
        self._report: EngineReport | None = None  # the last one that was seen here
        self._reported_tokens = 0.0  # how many of `tokens` that report counts
        self.tokens = 0

    def add(self, ticket: Ticket, tokens: int) -> None:
        """A prompt is sent of which so many tokens are cached. Its blocks are added later."""
        self._look()
        ticket.pinned_tokens = tokens
        self.tokens += tokens

    def remove(self, ticket: Ticket) -> None:
        """Its prompt counts as a whole from now on, or not at all. Its blocks change later."""
        self._look()
        self.tokens -= ticket.pinned_tokens
        ticket.pinned_tokens = 0

    @property
    def unknown_tokens(self) -> float:
        """What the engine held at its last report beyond its streams, its prompts and these."""
        self._look()
        return max(0.0, self._backend.unknown_tokens - self._reported_tokens)

    def _look(self) -> None:
        """Before anything changes: note what a new report counts. It counts shared blocks once."""
        if self._backend.report is not self._report:
            self._report = self._backend.report
            self._reported_tokens = max(0.0, self.tokens - self._blocks.shared_tokens)
