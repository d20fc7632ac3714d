"""Where a request costs the fleet least, in seconds: its own time and what it takes of others'.

With W the prefill ahead of it, w its own (what the backend's prefix cache holds costs nothing),
M the requests there, K the tokens that they hold, p its prompt, o the tokens of answer expected,
t a decode step of a stream alone and k what each held token adds to a step, a place costs

    W + w                     its own first token
    + LATER x W x w / w_mean  those who come after: work on top of work delays them the more
    + g x M x w               those who are there: each of them stands still for w
    + STEP x o x t            its own decoding, however idle the place
    + o x k x K               its own decoding, for what is held there
    + BESIDE x o x k x M x p  theirs, for what it will hold

LATER keeps long prompts off long queues; g, how far streams that stand still count, is twice the
share of requests that wait for their prefill, from nothing (a fleet bound by decoding is as slow
wherever a prompt goes) to all of it (one bound by prefill loses most where a long prompt stops
many). STEP is small: in a mixed fleet the whole of the difference would fill the fast ones at the
expense of those who are there. None of them is a time: a fleet twice as slow is balanced alike.
Each term is in bench/RESULTS.md, with what is lost without it.

All are at the fleet's mean speeds times a backend's slowness, in prefill (W, w) and in decoding
(t, k), by `slowness`. Of places that cost the same, as idle ones do, the one that was given least
of late, by its weight.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.decode_speed import PRIOR_HELD_TOKEN_S, PRIOR_STEP_S
from balancing.prefill_speed import PRIOR_WORK_PER_S, work_of
from balancing.slowness import Speeds, compare

# About the last hundred requests count; before there are any a prefill takes 50 ms.
FADE: Final = 0.99
# Speeds change slowly: how fast each is beside the others is looked at once in so many choices. A
# prime: of requests for two models in turn it would always be the same one's backends otherwise.
COMPARE: Final = 17
# A backend that was not asked for that many choices has gone.
FORGET: Final = 2_000
# What it may cost more to stay where its session is, of the least cost.
STAYS: Final = 0.02
# What a strict session's place may cost more than the cheapest: twice the time to first token that
# is still good.
STRICT_S_MAX: Final = 10.0
# What a place may cost more than one that has just failed: beyond that the failures of some would
# bury the last one that had none.
SHUNS_S_MAX: Final = 10.0
MEAN_PRIOR_S: Final = 0.05


class Weights(NamedTuple):
    """How much each term counts. Fitted on the first windows of published traces."""

    wait: float = 1.0
    prefill: float = 1.0
    later: float = 0.4
    others: float = 2.0
    step: float = 0.2
    held: float = 1.0
    beside: float = 0.5


class Cost:
    """What one backend would cost, in seconds, by what it is made of.

    No dataclass: compiled, that would take half of the time of a choice.
    """

    __slots__ = ("beside_s", "held_s", "later_s", "others_s", "prefill_s", "step_s", "wait_s")

    def __init__(
        self,
        wait_s: float,
        prefill_s: float,
        later_s: float,
        others_s: float,
        step_s: float,
        held_s: float,
        beside_s: float,
    ) -> None:
        self.wait_s = wait_s
        self.prefill_s = prefill_s
        self.later_s = later_s
        self.others_s = others_s
        self.step_s = step_s
        self.held_s = held_s
        self.beside_s = beside_s

    @property
    def seconds(self) -> float:
        own = self.wait_s + self.prefill_s + self.step_s + self.held_s
        return own + self.later_s + self.others_s + self.beside_s


WEIGHTS: Final = Weights()
UNKNOWN: Final = Speeds(1.0 / PRIOR_WORK_PER_S, PRIOR_STEP_S, PRIOR_HELD_TOKEN_S, {}, frozenset())


class TokenCost:
    """Knows of its own, of about the last hundred requests, how long their prefill took in the mean
    and what share of those in flight then were waiting for theirs; and how fast each backend is
    beside the others."""

    def __init__(self, weights: Weights = WEIGHTS, *, strict: bool = False) -> None:
        """`strict`: a session stays where it is as long as that can serve it in time."""
        self._weights = weights
        self._strict = strict
        self._choices = 0
        self._speeds = UNKNOWN
        self._trying = False  # the last one went where little is known: look again soon
        self._given: dict[Backend, float] = {}
        self._seen: dict[Backend, int] = {}  # at which choice
        self._count = 1.0
        self._prefills_s = MEAN_PRIOR_S
        self._waiting = 0.0

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        if self._choices % COMPARE == 1:
            self._compare(fit, now_s)
        elif self._trying:
            self._look(now_s)
        costs = self.costs(fit, ask, now_s)
        best = self._best(fit, costs, ask, now_s)
        chosen = best[0] if len(best) == 1 else rng.choice(best)
        if ask.engine and ask.likely == 1.0:
            self._learn(fit, costs)
        tokens = ask.prompt_tokens * ask.likely + ask.output_tokens * ask.choices
        self._given[chosen] = self.given_tokens(chosen) + tokens
        self._choices += 1
        self._trying = chosen in self._speeds.tried
        return chosen

    def preferred(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[Backend]:
        """Those of which it would choose one now. Learns nothing from it."""
        return self._best(fit, self.costs(fit, ask, now_s), ask, now_s)

    def bar_s(self, home_s: float) -> float:
        """What another must cost less than for a session to leave a home that costs `home_s`."""
        return home_s - STRICT_S_MAX if self._strict else home_s / (1.0 + STAYS)

    def _best(
        self, fit: Sequence[Backend], costs: Sequence[Cost], ask: Ask, now_s: float
    ) -> list[Backend]:
        """A session's home, where that is no dearer than it may be; else the cheapest, and of
        several those that were given least.

        One that has a penalty only where all have, or the others are too dear: it is empty because
        it fails, and what is empty costs less than the penalty where others have much to do.
        """
        client = ask.client
        seconds = [cost.seconds for cost in costs]
        lowest_s = min(seconds)
        if fit[seconds.index(lowest_s)].penalty.read(now_s, client):
            sound = [each for each in range(len(fit)) if not fit[each].penalty.read(now_s, client)]
            sound_s = min([seconds[each] for each in sound], default=lowest_s)
            if sound_s - lowest_s <= SHUNS_S_MAX:
                lowest_s = sound_s
        if ask.home is not None:
            for place, backend in enumerate(fit):
                may = self._strict or not backend.penalty.read(now_s, client)
                if backend.name == ask.home and may and self.bar_s(seconds[place]) <= lowest_s:
                    return [backend]
        best = [backend for place, backend in enumerate(fit) if seconds[place] == lowest_s]
        if len(best) == 1:
            return best
        given = [self.given_tokens(backend) / backend.weight for backend in best]
        least = min(given)
        return [backend for backend, tokens in zip(best, given, strict=True) if tokens == least]

    def given_tokens(self, backend: Backend) -> float:
        """Tokens of prompts and answers that it was given of about the last hundred requests."""
        return self._given.get(backend, 0.0)

    def _compare(self, fit: Sequence[Backend], now_s: float) -> None:
        """See how fast each is beside the others, and forget some of what each was given.

        Beside all that were asked of late, not only those that this request may go to: the speeds
        of two subsets have different means.
        """
        for backend in fit:
            self._seen[backend] = self._choices
        oldest = self._choices - FORGET
        self._seen = {each: at for each, at in self._seen.items() if at >= oldest}
        faded = FADE**COMPARE
        self._given = {each: self.given_tokens(each) * faded for each in self._seen}
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        self._speeds = compare(list(self._seen), self._prefills_s / self._count, now_s)

    def _learn(self, fit: Sequence[Backend], costs: Sequence[Cost]) -> None:
        """Count the request that is placed among the last hundred."""
        requests = streams = 0
        for backend in fit:
            requests += backend.requests_in_flight
            streams += backend.streams
        least_s = costs[0].prefill_s
        for cost in costs:
            least_s = min(least_s, cost.prefill_s)
        self._count = self._count * FADE + 1.0
        self._prefills_s = self._prefills_s * FADE + least_s
        self._waiting = self._waiting * FADE
        if requests:
            self._waiting += (requests - streams) / requests

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[Cost]:
        """Of each backend, in the same order."""
        wait, prefill, later, others, step, held, beside = self._weights
        mean_s, step_s, token_s, apart, _ = self._speeds
        mean = (mean_s, 1.0)
        others = min(1.0, others * self._waiting / self._count)
        # Where nearly all of every prompt is cached: none is quicker than a step.
        later /= max(self._prefills_s / self._count, step_s)
        output, prompts = ask.output_tokens, ask.prompts
        client = ask.client
        prompt = ask.prompt_tokens if ask.engine else 0
        likely = ask.likely
        context = prompt / prompts
        costs = []
        for backend in fit:
            speed_s, pace = apart.get(backend, mean)
            weight = backend.weight
            penalty_s = backend.penalty.read(now_s, client)
            wait_s = backend.wait_work(now_s) * speed_s / weight + penalty_s
            uncached = prompt - backend.cache.cached_tokens(ask)
            prefill_s = work_of(uncached, context, prompts) * likely * speed_s
            there = (backend.requests_in_flight + backend.hidden_requests(now_s)) / weight
            decode = output * pace
            costs.append(
                Cost(
                    wait * wait_s,
                    prefill * prefill_s,
                    later * wait_s * prefill_s,
                    others * there * prefill_s,
                    step * decode * step_s,
                    held * decode * token_s * backend.active_decode_tokens / weight,
                    beside * decode * token_s * there * prompt * likely,
                )
            )
        return costs
