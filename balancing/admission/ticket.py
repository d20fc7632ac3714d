"""A request that may have to wait for room at a backend, and whom it is counted for."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from math import exp, inf
from typing import Final

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.long_pace import Long
from penstock.balancing.admission.spread import TIMES_MAX, Spread
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease

# How many sizes of prompts are told apart in predictions.
SIZES: Final = 5


# How much an answer changes the mean of its flow.
MEAN_SHARE: Final = 0.02
# What a flow was given lately is forgotten with this time constant.
LATELY_TAU_S: Final = 60.0


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

    __slots__ = (
        "answer_tokens",
        "answers",
        "errors",
        "given",
        "given_s",
        "name",
        "queued_tokens",
        "queues",
        "served",
        "spread",
        "weight",
    )

    def __init__(self, name: str, classes: int, weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight
        self.served = 0.0
        self.given = self.given_s = 0.0  # the tokens that it was given lately, at that time
        self.answer_tokens = 0.0  # the mean of its answers. 0.0: unknown
        self.answers = 0  # how many were whole
        self.spread = Spread()  # of its answers' lengths around the mean
        self.errors = [0.0] * SIZES  # log of true over predicted waits, by size of the prompt
        self.queues: list[OrderedDict[Ticket, None]] = [OrderedDict() for _ in range(classes)]
        self.queued_tokens = [0] * classes

    def answered(self, tokens: int) -> float:
        """One of its answers is whole. Returns how many times the mean before it was."""
        mean = self.answer_tokens or float(tokens)
        times = tokens / mean
        self.answers += 1
        share = max(MEAN_SHARE, 1.0 / self.answers)  # the first ones count more
        self.answer_tokens = mean * (1.0 + share * (min(TIMES_MAX, times) - 1.0))
        self.spread.observe(times)
        return times

    def expect(self, ask: Ask) -> float:
        """How many tokens the answer to one of its requests will have, all choices together.

        The mean of its answers now, not what was expected when the request came. An answer takes
        seconds, and while answers grow that expectation is long out of date at its end.
        """
        if not ask.generates:
            return 0.0
        each = self.answer_tokens or ask.output_tokens
        if ask.max_tokens is not None and ask.max_tokens < each:
            each = float(ask.max_tokens)
        return each * ask.prompts * ask.choices

    def left_tokens(self, ask: Ask, generated_tokens: int, others: Spread) -> float:
        """The mean of what is still to come of an answer, all its choices together.

        `others`: the spread of all answers, for a flow with few.
        """
        expected = self.expect(ask)
        if not expected:
            return 0.0
        spread = self.spread if self.spread.known else others
        left = spread.left(generated_tokens / expected) * expected
        if ask.max_tokens is None:
            return left
        most = ask.max_tokens * ask.prompts * ask.choices
        return min(left, max(0.0, float(most - generated_tokens)))

    def charge(self, tokens: float, now_s: float) -> None:
        """Count tokens that it was given. Negative ones give back what was charged too much."""
        self.served += tokens / self.weight
        self.given = self.given_lately(now_s) + tokens
        self.given_s = now_s

    def given_lately(self, now_s: float) -> float:
        """The tokens that it was given in about the last minute. A generated one counts as two."""
        return self.given * exp(min(0.0, self.given_s - now_s) / LATELY_TAU_S)


NO_FLOW: Final = Flow("", 0)


def _nowhere() -> bool:
    return False


class Ticket:
    """One request, from its arrival at the queue to the end of its lease.

    `rank`: its class, 0 is the highest. `deadline_s`: how long its client waits for a first token.
    `ready` is called once if it had to wait: with its lease, or with why it gets none.
    """

    __slots__ = (
        "answer_tokens",
        "ask",
        "beside_work",
        "charged_tokens",
        "deadline_s",
        "dry",
        "elsewhere",
        "exposed_tokens",
        "flow",
        "general",
        "general_then",
        "giant",
        "held_since_s",
        "holds",
        "impatient",
        "kept_before",
        "lack",
        "long",
        "most_tokens",
        "name",
        "only",
        "owed",
        "pinned_tokens",
        "pool",
        "predicted_s",
        "queued_tokens",
        "rank",
        "raw_s",
        "ready",
        "reserve",
        "retry",
        "sampled_tokens",
        "since_s",
        "stays_until_s",
        "tokens",
        "tried",
        "waits",
        "wanted",
        "way",
    )

    def __init__(
        self,
        ask: Ask,
        since_s: float,
        ready: Callable[[Lease | Exception], None],
        name: str = "",
        rank: int = 0,
        deadline_s: float = inf,
        reserve: float = 0.0,
        *,
        impatient: bool = True,
        dry: bool = False,
    ) -> None:
        """`name`: whose it is. `since_s`: when it came. `reserve`: the share of each KV cache that
        its class always leaves to higher ones. `impatient`: its client leaves at the deadline.
        Otherwise that bounds its wait, and the time of its own prompt comes on top. `dry`: it is
        only asked what would become of it, so nothing is noted."""
        self.ask = ask
        self.since_s = since_s
        self.ready = ready
        self.name = name
        self.rank = rank
        self.deadline_s = deadline_s
        self.reserve = reserve
        self.impatient = impatient
        self.dry = dry
        self.tried: Collection[Backend] = ()  # backends that have failed it
        self.retry = False  # an engine may have worked on it there
        # Whether its route has another place for it while its pool serves nobody, and all of the
        # route that this depends on.
        self.elsewhere: Callable[[], bool] = _nowhere
        self.way: tuple[object, ...] = ()
        self.pool = ""  # in whose line it waits
        self.flow = NO_FLOW
        self.tokens = 0  # to prefill, as far as is known while it waits
        self.queued_tokens = 0  # as many of these as count for those behind it
        self.waits = False
        self.lack: Lack | None = None  # what the last look at it found missing there
        self.owed = 0.0  # the share that its class is owed, while it is looked at for that
        self.kept_before = False  # a backend is or was kept for it
        self.wanted: Backend | None = None  # where the policy would send it while it waits
        self.general = True  # every backend of its pool may serve it
        self.general_then = True  # whether it will be so when it is held no more
        self.held_since_s: float | None = None  # when its wait for a backend that serves began
        self.stays_until_s = -inf  # until when it is held on: another pool would have refused it
        self.charged_tokens = 0.0
        self.answer_tokens = 0.0  # of all its choices, as was expected when it was sent
        self.most_tokens = 0.0  # the most that may be left of them at any moment, then
        self.giant = False  # where it is, nobody else is sent
        self.exposed_tokens = 0.0  # what its answer may come to, as was thought when it was sent
        self.beside_work = 0  # of its prompt, if it is never held back
        self.long: Long | None = None  # while the engine works on its prompts, if that takes long
        self.sampled_tokens = 0  # generated when its stream was looked at last
        self.holds = False  # its prompt's blocks are counted where it is
        self.pinned_tokens = 0  # the cached ones of its prompt, until it is prefilled
        self.only: Backend | None = None  # the one that holds what is asked for
        self.predicted_s = 0.0  # until its first token, when it began to wait. 0.0: it did not
        self.raw_s = 0.0  # the same before it was corrected by what is learnt

    def release(self, now_s: float) -> None:
        """It is held no more. Also a backend that has failed it may serve: it has come back."""
        if self.held_since_s is None:
            return
        self.since_s = now_s - self.waited_s(now_s)
        self.held_since_s = None
        self.tried = ()

    def waited_s(self, now_s: float) -> float:
        """How much of its time is over. A wait for any backend at all is nobody's delay."""
        if self.held_since_s is not None and not self.impatient:
            return self.held_since_s - self.since_s
        return now_s - self.since_s

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nobody has waited meanwhile."""
        self.since_s += time_s
        if self.held_since_s is not None:
            self.held_since_s += time_s
