"""What a request would cost in a pool, so that a route can compare its targets.

The policy of a pool compares places there. Between pools two things more count: how long the
request would wait for room, and those who would come to the pool while a long prompt is computed.
"""

from collections.abc import Callable, Iterable, Sequence
from math import exp, inf
from typing import Final

from penstock.balancing.admission.controller import Admission
from penstock.balancing.admission.dry_run import Fate
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate, Look
from penstock.balancing.output_length import PRIOR_TOKENS
from penstock.balancing.speed.estimates import work_of

# Upper bound on actual / estimated prompt length.
ESTIMATE_OFF: Final = 1.15
# Of the mean number of requests at a backend.
MEAN_TAU_S: Final = 30.0


class MeanRequests:
    """How many requests a pool's backends have, in the mean of the last half minute.

    The number at one moment is often none where few come that end soon, and a decision that lasts
    for seconds needs to know how many will come. It is taken when requests come: those see what
    there is in the mean.
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._at_s = 0.0

    def look(self, backends: Sequence[Backend], now_s: float) -> float:
        """The mean of one of these backends, with what it has now."""
        there = sum([each.requests_in_flight for each in backends]) / len(backends)
        new = 1.0 - exp(min(0.0, self._at_s - now_s) / MEAN_TAU_S)
        self._mean += new * (there - self._mean)
        self._at_s = now_s
        return max(self._mean, there)


class PoolCosts:
    """The costs in the pools of one gate."""

    def __init__(self, gate: Gate, fleet: Callable[[], Fleet], admission: Admission) -> None:
        self._gate = gate
        self._fleet = fleet
        self._admission = admission
        self._means: dict[str, MeanRequests] = {}  # by pool

    def cost_s(self, request: QueuedRequest, now_s: float) -> float:
        """What a dry request would cost in its pool, in seconds.

        inf: it would not be served there, or its model has no context for it. 0.0 where there is
        room and the policy does not count in seconds.
        """
        try:
            pools = self._fleet().resolve(request.ask)
            pool, able, ask = self._gate.among(pools, request.ask, now_s, ())
        except (LookupError, OverContext):
            return inf
        policy = pool.policy
        longest = ask.prompt_tokens * (1.0 if ask.counted else ESTIMATE_OFF)
        fit = [each for each in able if not each.is_closed(ask.client, now_s)]
        fit = [each for each in fit if _holds(each, ask.model, longest)]
        if not fit or pool.full:
            return inf
        there = self._means.setdefault(pool.name, MeanRequests()).look(fit, now_s)
        costs = list(policy.costs(fit, ask, now_s))
        if policy.costs_seconds:
            for number, backend in enumerate(fit):
                costs[number] += _held_up_s(backend, there, ask)
        least = min(costs)
        chosen = fit[costs.index(least)]
        waits_s = 0.0
        if self._admission.enabled:
            waits_s = self._waits_s(request, Look(pool, fit, ask, chosen), now_s)
        return waits_s + (least if policy.costs_seconds else 0.0)

    def _waits_s(self, request: QueuedRequest, look: Look, now_s: float) -> float:
        """How long it would wait for room, beside what the cost of its place has. inf: refused."""
        if self._admission.takes_now(request, look, now_s):
            return 0.0
        chosen = look.chosen
        found = self._admission.forecast(request, now_s)
        if found.fate is Fate.REFUSE:
            return inf
        if found.fate is Fate.AT_ONCE:
            return 0.0
        ahead_s = chosen.wait_work(now_s) * chosen.prefill_speed.work_s
        return max(0.0, found.predicted_s - ahead_s - _own_s(chosen, request.ask))


def _own_s(backend: Backend, ask: Ask) -> float:
    own = ask.prompt_tokens - backend.cache.cached_tokens(ask)
    return work_of(own, ask.prompt_tokens, ask.prompts) * backend.prefill_speed.work_s


def _held_up_s(backend: Backend, there: float, ask: Ask) -> float:
    """How long those wait in all that would come to a backend while it computes this prompt.

    `there`: the mean number of requests at a backend of the pool. So many come in the time that one
    stays. Each waits for half of the prompt: both their number and their waits grow with it.
    """
    own_s = _own_s(backend, ask)
    stay_s = PRIOR_TOKENS * backend.decode_speed.itl_s(backend.active_decode_tokens)
    return there * own_s * own_s / (2.0 * stay_s)


def _holds(backend: Backend, model: str | None, tokens: float) -> bool:
    """Whether a prompt is within the model's context, as far as that is known."""
    context = backend.context_tokens(model)
    return not context or tokens < context


# How often it is looked at.
LOOK_S: Final = 1.0
# The most that one look adds: the process may have slept.
ADDS_S_MAX: Final = 2.0


class GpuFloor:
    """Adds to `gpu_floor_s` of backends.

    How long each backend did nothing while requests of its pool waited: paid for and not used.

    Requests wait in the proxy, or in an engine of the pool. A backend does nothing if it has no
    request and its engine tells of none, or if its GPUs hardly compute. One that may get no
    requests does not count.
    """

    def __init__(self) -> None:
        self._looked_s: float | None = None

    def look(self, pools: Iterable[Pool], queued: Callable[[str], int], now_s: float) -> None:
        """Look at all pools, if it is time. `queued`: how many requests of one wait in the proxy.

        What is seen is taken for true since the last look.
        """
        passed_s = now_s - self._looked_s if self._looked_s is not None else 0.0
        if self._looked_s is not None and passed_s < LOOK_S:
            return
        self._looked_s = now_s
        for pool in pools:
            if queued(pool.name) or _waits_in_engine(pool, now_s):
                for backend in pool.backends:
                    if backend.fit and _idles(backend, now_s):
                        backend.gpu_floor_s += min(passed_s, ADDS_S_MAX)


def _waits_in_engine(pool: Pool, now_s: float) -> bool:
    for backend in pool.backends:
        report = backend.report
        if report is not None and report.waiting and report.freshness(now_s) > 0.0:
            return True
    return False


def _idles(backend: Backend, now_s: float) -> bool:
    gpus = backend.gpus
    if gpus is not None and gpus.idles(now_s):
        return True
    if backend.requests_in_flight:
        return False
    report = backend.report
    return report is None or not report.freshness(now_s) or not report.running + report.waiting
