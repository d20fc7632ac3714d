"""A request's prompts in a backend's prefill queue: all that a backend knows of a lease.

Not an abstract class: with one, mypyc would check each attribute of a lease at each read.
"""

from math import inf

from penstock.balancing.ask import Ask
from penstock.balancing.prefill_speed import work_of


class QueuedPrompts:
    """What a backend still has to prefill for one request, in tokens and as work."""

    __slots__ = (
        "ahead_work",
        "aside_s",
        "ask",
        "began_s",
        "cached_tokens",
        "overtaken",
        "prefilled_by_s",
        "queued_tokens",
        "queued_work",
    )

    def __init__(self, ask: Ask, cached_tokens: int) -> None:
        """`cached_tokens`: prompt tokens that the backend's cache should hold."""
        self.ask = ask
        self.cached_tokens = cached_tokens
        self.began_s = -inf  # when it came
        self.overtaken = False  # a later request has its first token
        self.aside_s = inf  # when it is set aside if it was overtaken
        self.prefilled_by_s = inf  # when it should be, if the engine keeps nothing waiting
        self.ahead_work = 0.0  # the work before it when it began, with its own
        self.queued_tokens = self.queued_work = 0  # without an engine there is no prefill
        if ask.engine:
            self.queued_tokens = ask.prompt_tokens - cached_tokens
            if ask.likely < 1.0:
                self.queued_tokens = max(1, int(self.queued_tokens * ask.likely))
            context = ask.prompt_tokens / ask.prompts
            self.queued_work = max(1, round(work_of(self.queued_tokens, context, ask.prompts)))

    @property
    def whole_work(self) -> float:
        """The prefill work of the whole prompts, as if nothing were cached or refused."""
        ask = self.ask
        return work_of(ask.prompt_tokens, ask.prompt_tokens / ask.prompts, ask.prompts)

    @property
    def silent(self) -> bool:
        """Whether it generates but shows no first token before the whole answer."""
        return self.ask.generates and not self.ask.stream

    def assume_prefilled(self, now_s: float) -> None:
        """End the prefill by the clock: a plain JSON answer shows no first token."""
        raise NotImplementedError

    def leave_queue(self, now_s: float) -> None:
        """By its engine's report it does not wait, and its time for a prefill is over."""
        raise NotImplementedError

    def set_aside(self, now_s: float) -> None:
        """Later requests were served first, so this one is not in the engine's queue."""
        raise NotImplementedError
