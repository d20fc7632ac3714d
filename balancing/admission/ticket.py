"""A request that may have to wait for room at a backend, and whom it is counted for."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from math import inf
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease


class Refused(Exception):
    """It would come too late. `retry_after_s`: when there should be room, spread."""

    def __init__(self, retry_after_s: float, predicted_s: float) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s
        self.predicted_s = predicted_s


class Flow:
    """A tenant, or one of the queues for clients without a key.

    `served`: the tokens that it was given, divided by its weight, as virtual token counters have
    them (VTC, Sheng et al., OSDI 2024). `queues` and `queued_tokens` have an entry for each class.
    """

    __slots__ = ("answer_tokens", "name", "queued_tokens", "queues", "served", "weight")

    def __init__(self, name: str, classes: int, weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight
        self.served = 0.0
        self.answer_tokens = 0.0  # the mean of its answers. 0.0: unknown
        self.queues: list[OrderedDict[Ticket, None]] = [OrderedDict() for _ in range(classes)]
        self.queued_tokens = [0] * classes

    def expect(self, ask: Ask) -> float:
        """How many tokens the answer to one of its requests will have, all choices together."""
        return (self.answer_tokens or ask.output_tokens) * ask.prompts * ask.choices

    def charge(self, tokens: float) -> None:
        """Count tokens that it was given. Negative ones give back what was charged too much."""
        self.served += tokens / self.weight


NO_FLOW: Final = Flow("", 0)


class Ticket:
    """One request, from its arrival at the queue to the end of its lease.

    `rank`: its class, 0 is the highest. `deadline_s`: how long its client waits for a first token.
    `ready` is called once if it had to wait: with its lease, or with why it gets none.
    """

    __slots__ = (
        "answer_tokens",
        "ask",
        "charged_tokens",
        "deadline_s",
        "flow",
        "name",
        "pool",
        "predicted_s",
        "rank",
        "raw_s",
        "ready",
        "retry",
        "since_s",
        "tokens",
        "tried",
        "waits",
    )

    def __init__(
        self,
        ask: Ask,
        since_s: float,
        ready: Callable[[Lease | Exception], None],
        *,
        name: str = "",
        rank: int = 0,
        deadline_s: float = inf,
    ) -> None:
        """`name`: whose it is. `since_s`: when it came."""
        self.ask = ask
        self.since_s = since_s
        self.ready = ready
        self.name = name
        self.rank = rank
        self.deadline_s = deadline_s
        self.tried: Collection[Backend] = ()  # backends that have failed it
        self.retry = False  # an engine may have worked on it there
        self.pool = ""  # in whose line it waits
        self.flow = NO_FLOW
        self.tokens = 0  # to prefill, as far as is known while it waits
        self.waits = False
        self.charged_tokens = 0.0
        self.answer_tokens = 0.0  # of all its choices, as was expected when it was sent
        self.predicted_s = 0.0  # until its first token, when it began to wait. 0.0: it did not
        self.raw_s = 0.0  # the same before it was corrected by what is learnt
