"""The prompts that one engine has still to prefill, oldest first.

Engines prefill first come, first served, so only the oldest prompt is being worked on, and the
measured speed tells how far it is. An engine has begun with all prompts but as many as it reports
to wait: those are taken for prefilled when they have had twice their time. A request that something
keeps from the engine (an image to fetch, a grammar to compile) is not in its queue, nor is one
whose first tokens are not shown. Both are noticed when later requests are served first.
"""

from math import inf
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.speed.estimates import PRIOR_WORK_PER_S, work_of

# A request that was overtaken is set aside when it has waited this much longer than twice its work
# and the work before it take. One of several engines behind an address may be slow with a long
# prompt, and first tokens of one step come in any order.
ASIDE_S: Final = 0.5
ASIDE_TIMES: Final = 2.0
# The same for one with which the engine has begun by its report: a step, and twice its work and
# the work before it. The speed may be measured wrong (an answer whose first tokens are not shown
# makes an engine look slow), so no more than four times the time of an unmeasured engine. Where no
# first token has shown the speed yet, the engine is taken for a fast one, for about as much as a
# step has room for.
BEGUN_S: Final = 0.1
BEGUN_TIMES: Final = 2.0
UNMEASURED_TIMES: Final = 0.25
# What a step of most engines has room for.
STEP_WORK: Final = 8_192.0
SLOWEST_WORK_S: Final = 4.0 / PRIOR_WORK_PER_S
# If more prompts are queued, the work before each is not corrected one by one.
CORRECTED_MAX: Final = 128


class QueuedPrompts:
    """What a backend still has to prefill for one request: all that its queue knows of a lease.

    In tokens and as work. Not an abstract class: with one, mypyc would check each attribute of a
    lease at each read.
    """

    def __init__(self, ask: Ask, cached_tokens: int) -> None:
        """`cached_tokens`: prompt tokens that the backend's cache should hold."""
        self.ask = ask
        self.cached_tokens = cached_tokens
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


class Occupancy:
    """Is told when a request gives up room at one backend (`admission.pool_queue` counts them)."""

    __slots__ = ()

    def prefilled(self, prompts: QueuedPrompts, now_s: float) -> None:
        """All prompts of a lease have left the backend's prefill queue."""
        raise NotImplementedError

    def ended(self, prompts: QueuedPrompts, now_s: float) -> None:
        """A lease has ended."""
        raise NotImplementedError


class PrefillQueue:
    """The queue of one backend. `work_s`, where it is asked for: seconds for a unit of work.

    `head`: the oldest, on which the engine works. It is kept: each choice reads it of each backend.
    """

    def __init__(self) -> None:
        self._prompts: dict[QueuedPrompts, None] = {}  # a dict as an ordered set
        self.head: QueuedPrompts | None = None
        self._head_since_s = 0.0
        self.uncorrected = 0  # how often work left the queue undone and was not corrected

    def __len__(self) -> int:
        return len(self._prompts)

    def head_done(self, work_s: float, now_s: float) -> float:
        """The part of the oldest prompt that is prefilled, 0 to 1."""
        head = self.head
        whole_s = head.queued_work * work_s if head is not None else 0.0
        elapsed_s = now_s - self._head_since_s
        return min(1.0, max(0.0, elapsed_s / whole_s)) if whole_s else 1.0

    def head_s(self, now_s: float) -> float:
        """How long the engine has worked on the oldest prompt."""
        return max(0.0, now_s - self._head_since_s)

    def begin(
        self, prompts: QueuedPrompts, work_s: float, now_s: float, *, measured: bool = True
    ) -> None:
        """Add a lease's prompts. `measured`: first tokens have shown `work_s`."""
        if self.head is None:
            self.head, self._head_since_s = prompts, now_s
        prompts.aside_s = now_s + ASIDE_S + ASIDE_TIMES * prompts.ahead_work * work_s
        fast = not measured and prompts.ahead_work <= 1.25 * STEP_WORK  # a step, and its own
        times = UNMEASURED_TIMES if fast else BEGUN_TIMES
        begun_s = times * prompts.ahead_work * min(work_s, SLOWEST_WORK_S)
        prompts.prefilled_by_s = now_s + BEGUN_S + begun_s
        self._prompts[prompts] = None

    def overtake(self, prompts: QueuedPrompts, now_s: float) -> None:
        """A lease has its first token.

        So earlier leases whose answers show no first token are prefilled, too. Other earlier ones
        are set aside if they have waited too long.
        """
        if len(self._prompts) < 2 or prompts not in self._prompts:
            return
        if self.head is prompts:
            return
        before = []
        for each in self._prompts:
            if each is prompts:
                break
            each.overtaken = True
            if each.silent or now_s >= each.aside_s:
                before.append(each)
        for each in before:
            if each.silent:
                each.assume_prefilled(now_s)
            else:
                each.set_aside(now_s)

    def end(self, prompts: QueuedPrompts, now_s: float) -> None:
        """A lease's prompts are prefilled or given up. The next ones are worked on."""
        if prompts not in self._prompts:
            return
        del self._prompts[prompts]
        if self.head is prompts:
            self.head, self._head_since_s = next(iter(self._prompts), None), now_s

    def drop(self, prompts: QueuedPrompts, work_s: float, now_s: float) -> None:
        """Prompts leave before they are done. Those behind them did not wait for what is left."""
        if prompts not in self._prompts:
            return
        if len(self._prompts) > CORRECTED_MAX:
            self.uncorrected += 1
            return
        left = prompts.queued_work
        if self.head is prompts and not prompts.overtaken:
            left = round(left * (1.0 - self.head_done(work_s, now_s)))
        behind = False
        for each in self._prompts:
            if behind:
                each.ahead_work = max(float(each.queued_work), each.ahead_work - left)
            behind = behind or each is prompts

    def advance(self, work_s: float, now_s: float, waiting: float = inf) -> None:
        """End prefills that must be over by now, and set aside what was overtaken.

        A plain answer shows no first token. So its prefill ends by the measured speed, once it is
        at the head of the queue. `waiting`: so many requests wait in the engine by its report,
        those that came last. It has begun with all others.
        """
        while (head := self.head) is not None:
            if head.overtaken and now_s >= head.aside_s:
                head.set_aside(now_s)
                continue
            if len(self._prompts) > waiting and now_s >= head.prefilled_by_s:
                head.leave_queue(now_s)
                continue
            if not head.silent:
                return
            due_s = self._head_since_s + head.queued_work * work_s
            if due_s > now_s:
                return
            head.assume_prefilled(due_s)
