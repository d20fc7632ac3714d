"""When a request that waits will have its first token, and whether that is too late.

What is ahead of it goes at the pace that higher classes leave. What the engines have queued, and
its own prompt on one of them, go at the pace of all. The sum is off by a factor that depends on the
size of the prompt. The factor is learnt from true waits, for each tenant apart, so that nobody
teaches what others are told.

A request that comes too late was computed for nobody: its client has left, or calls the answer
late. So it is refused when it comes, and again when it would be sent. That is what keeps a fleet at
its best above its capacity.
"""

from collections.abc import Sequence
from math import exp, log
from random import Random
from typing import Final

from penstock.balancing.admission.queued_request import QueuedRequest, TooLate
from penstock.balancing.admission.tenant_queue import SIZES, TenantQueue
from penstock.balancing.backend import Backend

# The time constant of the pace.
TAU_S: Final = 5.0
# Before requests have waited, measured speeds stand in for as much as half a second of the pace.
PRIOR_S: Final = 0.5
# A pause of all engines, behind a stranger's long prompt say, says little of what comes after it.
SLOWEST: Final = 16.0
# While requests wait, the pace is looked at twenty times a second. A longer time between two looks
# is a time in which the process did not run.
LOOK_MAX_S: Final = 0.5
# Prompts below 256, 1,024, 4,096 and 16,384 tokens, and longer ones, are corrected apart.
SMALLEST_BITS: Final = 8
# A wait moves the correction by 3 %, whatever it was, and all of them at most that far.
STEP: Final = 0.03
FACTOR_MAX: Final = 3.0
# Shorter times are as good as these.
LEAST_S: Final = 0.05
# The share of its deadline after which a first token is predicted too late.
SHARE: Final = 0.6
# This part of its own prefill does not count beside the share. Otherwise long prompts are refused
# first.
OWN_SHARE: Final = 0.75
SURELY_LATE: Final = 0.95
# When it would be sent: waited, and still to do there, beside the deadline.
LATE: Final = 0.9
# Hints are longer than a second and shorter than what SDKs obey, and spread.
HINT_MIN_S: Final = 1.0
HINT_MAX_S: Final = 59.0


class Ttft:
    """The pace and the predictions of one pool: how many prompt tokens of each class get their
    first token in a second while requests wait."""

    def __init__(self, classes: int, rng: Random) -> None:
        self._rng = rng
        self._tokens = [0.0] * classes
        self._seconds = 0.0  # in which requests waited
        self._last_s = 0.0
        self.busy = False  # requests wait
        self.refused_total = 0

    def reshape(self, classes: int) -> None:
        """There are other classes now. What was counted was of the last one."""
        self._tokens = [0.0] * (classes - 1) + [sum(self._tokens)]

    def look(self, now_s: float) -> None:
        """Let what was counted fade. Call it before `busy` changes."""
        if self.busy:
            passed_s = min(LOOK_MAX_S, max(0.0, now_s - self._last_s))
            fade = exp(-passed_s / TAU_S)
            self._tokens = [tokens * fade for tokens in self._tokens]
            self._seconds = self._seconds * fade + TAU_S * (1.0 - fade)
        self._last_s = now_s

    def count(self, tokens: int, rank: int, now_s: float) -> None:
        """A prompt of so many tokens has its first token."""
        if self.busy:
            self.look(now_s)
            self._tokens[rank] += tokens

    def _per_s(self, prior_per_s: float, above: int = 0) -> float:
        """Tokens a second. `above`: without those of so many highest classes."""
        tokens = sum(self._tokens[above:])
        pace = (tokens + PRIOR_S * prior_per_s) / (self._seconds + PRIOR_S)
        return max(1.0, pace, prior_per_s / SLOWEST)

    # Predictions --------------------------------------------------------------------------------

    def before_s(
        self, ahead_tokens: float, rank: int, queued_tokens: float, speed_per_s: float
    ) -> float:
        """Seconds until an engine begins with a request of this class. Not corrected.

        `speed_per_s`: tokens a second of all engines.
        """
        wait_s = ahead_tokens / self._per_s(speed_per_s, rank)
        return wait_s + queued_tokens / self._per_s(speed_per_s)

    def predict(
        self,
        request: QueuedRequest,
        tokens: int,
        ahead_tokens: float,
        backends: Sequence[Backend],
        now_s: float,
    ) -> TooLate | None:
        """Predict the first token of one that must wait, with `tokens` to prefill. Returns the
        refusal if that is too late. Sets `raw_s` and `predicted_s`."""
        speed = sum([each.prefill_speed.work_per_s for each in backends])
        queued = float(sum([each.queued_prefill_tokens for each in backends]))
        own_s = tokens * len(backends) / self._per_s(speed)
        tenant = request.tenant
        assert tenant is not None
        client = request.ask.client
        busy_s = min([each.left_alone.read(now_s, client) for each in backends], default=0.0)
        request.raw_s = self.before_s(ahead_tokens, request.rank, queued, speed) + own_s + busy_s
        request.predicted_s = request.raw_s * exp(tenant.errors[size_of(tokens)])
        seconds = request.predicted_s + now_s - request.since_s
        beside = OWN_SHARE if request.impatient else 1.0
        late = seconds - beside * own_s > SHARE * request.deadline_s
        if late or _counted_s(request, seconds, own_s) > SURELY_LATE * request.deadline_s:
            return self.refuse(request, seconds)
        return None

    def too_late(self, request: QueuedRequest, chosen: Backend, now_s: float) -> TooLate | None:
        """The refusal of one that would be sent there now and come too late."""
        speed = chosen.prefill_speed
        tokens = request.wait.tokens if request.wait is not None else request.ask.prompt_tokens
        own_s = tokens * speed.work_s
        seconds = now_s - request.since_s + chosen.wait_work(now_s) * speed.work_s + own_s
        seconds += speed.step_s
        if _counted_s(request, seconds, own_s) > LATE * request.deadline_s:
            return self.refuse(request, seconds)
        return None

    def refuse(self, request: QueuedRequest, seconds: float) -> TooLate:
        """The refusal, with a time to come back. In a dry run that is the least of such times."""
        self.refused_total += not request.dry
        hint_s = max(HINT_MIN_S, seconds - SHARE * request.deadline_s)
        spread = 1.0 if request.dry else self._rng.uniform(1.0, 2.0)
        return TooLate(min(HINT_MAX_S, hint_s * spread), seconds)


def learn(tenant: TenantQueue, raw_s: float, tokens: int, waited_s: float) -> None:
    """A request of this tenant has its first token, so long after it came. `raw_s`: as was
    predicted. 0.0: it did not wait, and teaches nothing."""
    if not raw_s:
        return
    errors, size = tenant.errors, size_of(tokens)
    true = log(max(LEAST_S, waited_s) / max(LEAST_S, raw_s))
    errors[size] = _moved(errors[size], true)
    tenant.error = _moved(tenant.error, true)


def _moved(error: float, true: float) -> float:
    """A correction that is moved towards a true one."""
    most = log(FACTOR_MAX)
    return min(most, max(-most, error + (STEP if true > error else -STEP)))


def size_of(tokens: int) -> int:
    """Which of the sizes that are corrected apart a prompt has."""
    return min(SIZES - 1, max(0, (tokens.bit_length() - SMALLEST_BITS + 1) // 2))


def _counted_s(request: QueuedRequest, seconds: float, own_s: float) -> float:
    """How much of the time until its first token counts for its deadline."""
    return seconds if request.impatient else seconds - own_s
