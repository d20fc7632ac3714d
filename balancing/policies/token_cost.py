"""Where a request costs the fleet least, in seconds: its own time and what it takes of others'.

With W the prefill ahead of it, w its own (what the backend's prefix cache holds costs nothing),
M the requests there, K the tokens that they hold, p its prompt, o the tokens of answer expected,
t a decode step of a stream alone and k what each held token adds to a step, a place costs

    W + w                     its own first token
    + LATER x W x w / w_mean  the wait of later requests: work on top of work delays them the more
    + g x M x w               the wait of the requests there: each of them stands still for w
    + STEP x o x t            its own decoding, however idle the place
    + o x k x K               its own decoding, slower by the tokens held there

LATER keeps long prompts off long queues. g says how far streams that stand still count. It is twice
the share of requests that wait for their prefill, and at most 1. In a fleet bound by decoding it
is near 0: such a fleet is as slow wherever a prompt goes. In a fleet bound by prefill it is near 1:
most is lost where a long prompt stops many streams. STEP is small. In a mixed fleet the whole
difference would fill the fast backends, and the streams there would suffer. None of the weights is
a time: a fleet that is twice as slow is balanced alike. bench/RESULTS.md has each term, and what is
lost without it.

Requests that came past us are thought to hold as many tokens as this prompt has.

All times are at the fleet's mean speeds times a backend's slowness (`speed.compare`), in prefill
(W, w) and in decoding (t, k). When several places cost the same, as idle ones do, the one is taken
that was not taken for longest, by weight.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from random import Random
from typing import ClassVar, Final, NamedTuple

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fair_table import KeyTable
from penstock.balancing.output_length import NAME_MAX
from penstock.balancing.policies.policy import Explanation, Part, Policy
from penstock.balancing.speed.compare import ORDINARY_S, Speeds, compare
from penstock.balancing.speed.estimates import (
    PRIOR_HELD_TOKEN_S,
    PRIOR_STEP_S,
    PRIOR_WORK_PER_S,
    work_of,
)

# About the last hundred requests count. Before there are any, a prefill takes 50 ms.
FADE: Final = 0.99
# Speeds change slowly: the backends are compared once in so many choices. The number is a prime.
# With requests for two models in turn, another number could compare the backends of one model only.
COMPARE: Final = 17
# A backend counts as gone when it was in no comparison for so many choices.
FORGET: Final = 2_000
SESSIONS_MAX: Final = 65_536
# How much more than the least cost a session's home may cost, as a share.
STAYS: Final = 0.02
# How much more than the cheapest a strict session's home may cost: twice the time to first token
# that is still good.
STRICT_S_MAX: Final = 10.0
# How much more a sound place may cost than one that has just failed. Without this limit the
# failures of some backends would bury the last sound one under requests.
SHUNS_S_MAX: Final = 10.0


class Weights(NamedTuple):
    """How much each term counts. Fitted on the first windows of published traces."""

    wait: float = 1.0
    prefill: float = 1.0
    later: float = 0.4
    others: float = 2.0
    step: float = 0.2
    held: float = 1.0


class Cost:
    """What one backend would cost, in seconds, by its terms.

    No dataclass: compiled, that would take half of the time of a choice.
    """

    __slots__ = ("held_s", "later_s", "others_s", "prefill_s", "step_s", "wait_s")

    def __init__(
        self,
        wait_s: float,
        prefill_s: float,
        later_s: float,
        others_s: float,
        step_s: float,
        held_s: float,
    ) -> None:
        self.wait_s = wait_s
        self.prefill_s = prefill_s
        self.later_s = later_s
        self.others_s = others_s
        self.step_s = step_s
        self.held_s = held_s

    @property
    def seconds(self) -> float:
        own = self.wait_s + self.prefill_s + self.step_s + self.held_s
        return own + self.later_s + self.others_s

    @property
    def terms(self) -> Mapping[str, float]:
        """Every term by its name, in the order of `Weights`."""
        return {
            "wait_s": self.wait_s,
            "prefill_s": self.prefill_s,
            "later_s": self.later_s,
            "others_s": self.others_s,
            "step_s": self.step_s,
            "held_s": self.held_s,
        }


WEIGHTS: Final = Weights()
UNKNOWN: Final = Speeds(1.0 / PRIOR_WORK_PER_S, PRIOR_STEP_S, PRIOR_HELD_TOKEN_S, {}, frozenset())


class TokenCost:
    """Takes the place of least cost.

    It knows two things of about the last hundred requests: the mean time of their prefill, and the
    share of requests in flight that waited for their prefill. It also knows how fast each backend
    is beside the others, and where sessions were last.
    """

    needs_sessions: ClassVar[bool] = True
    needs_prefixes: ClassVar[bool] = True
    costs_seconds: ClassVar[bool] = True

    def __init__(self, weights: Weights = WEIGHTS, *, strict: bool = False) -> None:
        """`strict`: a session stays at its home while that can serve it in time."""
        self._weights = weights
        self._strict = strict
        self._choices = 0  # that were followed: requests placed
        self._looked = -1  # at which of them the speeds were looked at last
        self._costs: Sequence[Cost] = ()  # of the last choice
        self._speeds = UNKNOWN
        self._trying = False  # the last one went where little is known: compare again soon
        self._seen: dict[Backend, int] = {}  # at which choice
        # Whose turn it is among equals: a choice moves a backend back by one over its weight.
        self._turns: dict[Backend, float] = {}
        self._turn = 0.0
        self._count = 1.0
        self._prefills_s = ORDINARY_S
        self._waiting = 0.0
        # The backend of each session's last turn. The text of prompts tells what a cache holds, so
        # this decides only between backends that cost about the same, or where sessions must stay.
        self._homes: KeyTable[str] = KeyTable(SESSIONS_MAX)

    @property
    def homes(self) -> KeyTable[str]:
        return self._homes

    def home(self, ask: Ask) -> str | None:
        return self._homes.find(_session_of(ask)) if ask.generates else None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        if ask.generates:
            self._homes.put(_session_of(ask), chosen.name, ask.client)

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        if self._choices != self._looked:
            self._looked = self._choices
            if self._choices % COMPARE == 1:
                self._compare(fit, now_s)
            elif self._trying:
                self._look(now_s)
        costs = self._costs = self.places(fit, ask, now_s)
        best = self._best(fit, costs, ask, now_s)
        return best[0] if len(best) == 1 else rng.choice(best)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        if ask.engine and ask.likely == 1.0:
            self._learn(fit, self._costs)
        self._choices += 1
        self._turn = max(self._turn, self._turns.get(chosen, 0.0))
        self._turns[chosen] = self._turn + 1.0 / chosen.weight
        self._trying = chosen in self._speeds.unknown

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        """The seconds. Away from the home of a strict session, so many more as it may cost."""
        costs = self.places(fit, ask, now_s)
        if not self._strict or ask.home is None:
            return [cost.seconds for cost in costs]
        return [
            cost.seconds + STRICT_S_MAX * (backend.name != ask.home)
            for backend, cost in zip(fit, costs, strict=True)
        ]

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        costs = self.places(fit, ask, now_s)
        best = self._best(fit, costs, ask, now_s)
        bar_s = min([cost.seconds for each, cost in zip(fit, costs, strict=True) if each in best])
        if best[0].name == ask.home:
            bar_s = self._bar_s(bar_s)
        parts = [
            Part(cost.seconds, cost.terms)
            if backend in best
            else _part_of(backend, cost, best[0], bar_s, ask, now_s)
            for backend, cost in zip(fit, costs, strict=True)
        ]
        return Explanation(best, parts)

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        assert isinstance(new, TokenCost)
        self._strict = new._strict
        stay = set(backends)
        self._seen = {each: at for each, at in self._seen.items() if each in stay}
        self._turns = {each: at for each, at in self._turns.items() if each in stay}
        if not self._seen:  # all backends are new: there is nothing to compare
            self._trying, self._speeds = False, UNKNOWN

    def _bar_s(self, home_s: float) -> float:
        """A session leaves a home that costs `home_s` for a backend that costs less than this."""
        return home_s - STRICT_S_MAX if self._strict else home_s / (1.0 + STAYS)

    def _best(
        self, fit: Sequence[Backend], costs: Sequence[Cost], ask: Ask, now_s: float
    ) -> list[Backend]:
        """The session's home, if its cost is within the bar. Otherwise the cheapest backends, and
        among equals those that were not taken for longest.

        A backend with a penalty is taken only if all have one, or the others cost far more. It is
        empty because it fails. Where the others have much to do, an empty backend with its penalty
        would still cost less.
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
                if backend.name == ask.home and may and self._bar_s(seconds[place]) <= lowest_s:
                    return [backend]
        best = [backend for place, backend in enumerate(fit) if seconds[place] == lowest_s]
        if len(best) == 1:
            return best
        turns = [self._turns.get(each, self._turn) for each in best]
        first = min(turns)
        return [each for each, turn in zip(best, turns, strict=True) if turn == first]

    def _compare(self, fit: Sequence[Backend], now_s: float) -> None:
        """Compare the backends' speeds.

        All backends that were fit recently are compared, not only those of this request. Two
        subsets have different mean speeds.
        """
        for backend in fit:
            self._seen[backend] = self._choices
        oldest = self._choices - FORGET
        self._seen = {each: at for each, at in self._seen.items() if at >= oldest}
        self._turns = {each: at for each, at in self._turns.items() if each in self._seen}
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        self._speeds = compare(list(self._seen), self._prefills_s / self._count, now_s)

    def _learn(self, fit: Sequence[Backend], costs: Sequence[Cost]) -> None:
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

    def places(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[Cost]:
        """What a place at each backend costs, in the same order."""
        wait, prefill, later, others, step, held = self._weights
        mean_s, step_s, token_s, apart, _ = self._speeds
        mean = (mean_s, 1.0)
        others = min(1.0, others * self._waiting / self._count)
        # No prefill is quicker than a step, even if nearly all of every prompt is cached.
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
            hidden = backend.hidden_requests(now_s)
            there = (backend.requests_in_flight + hidden) / weight
            held_tokens = (backend.active_decode_tokens + hidden * prompt) / weight
            decode = output * pace
            costs.append(
                Cost(
                    wait * wait_s,
                    prefill * prefill_s,
                    later * wait_s * prefill_s,
                    others * there * prefill_s,
                    step * decode * step_s,
                    held * decode * token_s * held_tokens,
                )
            )
        return costs


def _session_of(ask: Ask) -> str:
    """The key of a session at one model. Another model's cache holds nothing of it."""
    return f"{(ask.model or '')[:NAME_MAX]} {ask.session}"


def _part_of(
    backend: Backend, cost: Cost, best: Backend, bar_s: float, ask: Ask, now_s: float
) -> Part:
    """What to say of a backend that is not chosen: it would have to cost less than `bar_s`.

    `best` is chosen. Each way to win is the least change of one thing, where nothing else changes.
    The wait and the prefill enter the cost linearly, each with its share of the product of both.
    """
    gap_s = cost.seconds - bar_s
    penalty_s = backend.penalty.read(now_s, ask.client)
    share = penalty_s / cost.wait_s if penalty_s else 0.0
    waits_s = (1.0 - share) * (cost.wait_s + cost.later_s)
    gap_s -= share * (cost.wait_s + cost.later_s)
    before = f"the end of its penalty for failures, in {penalty_s:.1f} s" if penalty_s else ""
    if before and gap_s <= 0.0:
        return _winning(cost, before)
    if gap_s <= 0.0:
        tie = f"a longer time without a request: now it costs the same as {best.name}"
        return _winning(cost, tie)
    ways = []
    if waits_s >= gap_s:
        ahead = backend.waiting_tokens(now_s)
        ways.append(f"{ceil(ahead * gap_s / waits_s):,} fewer tokens to prefill before it")
    prefills_s = cost.prefill_s + cost.later_s + cost.others_s
    if prefills_s >= gap_s:
        uncached = ask.prompt_tokens - backend.cache.cached_tokens(ask)
        ways.append(
            f"{ceil(uncached * gap_s / prefills_s):,} more tokens of the prompt in its cache"
        )
    if cost.held_s >= gap_s:
        less = ceil(backend.active_decode_tokens * gap_s / cost.held_s)
        ways.append(f"{less:,} fewer tokens held by open streams")
    load_s = waits_s + cost.others_s + cost.held_s
    if not ways and load_s * (1.0 + 1e-9) >= gap_s:  # as idle as the best, but for rounding
        ways.append(f"{gap_s / load_s:.0%} less load of every kind")
    if ways:
        return _winning(cost, " or ".join(f"{before} and {way}" if before else way for way in ways))
    why_not = "it would be slower even when idle"
    if best.name == ask.home:
        why_not = f"the session stays at {best.name} unless the cost rises there"
    return Part(cost.seconds, cost.terms, why_not=why_not)


def _winning(cost: Cost, to_win: str) -> Part:
    return Part(cost.seconds, cost.terms, to_win)
