"""A request before admission: what it asks for, its wait, and what it takes of a backend.

Three records, each with an owner. `QueuedRequest` comes with the request. `Wait` exists while the
request waits in a queue. `Charge` exists while its lease counts at a backend.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease


class WaitReason(StrEnum):
    """The resource that a request waits for. Operators read these words: they stay as they are."""

    PROMPTS = "prompts"  # the backend still has a window of other prompts to prefill
    SEQUENCES = "sequences"  # the backend runs as many streams as it can
    KV_CACHE = "kv_cache"  # its KV cache has no room for the prompt and the expected answer
    REQUESTS = "requests"  # the backend or the pool has all requests that it may have
    BUSY = "busy"  # the backend refuses requests for load
    SHARE = "share"  # the rest of the backend is left to other tenants and higher classes
    LARGE = "large"  # its prompt takes long, and others ask, or stream there
    CHOICES = "choices"  # its choices may fill the engine, and enough such requests run
    CLASS = "class"  # a request of a higher class goes first
    TURN = "turn"  # other requests go first
    BACKEND = "backend"  # no backend can serve it now
    ADAPTER = "adapter"  # no backend has loaded its adapter yet


@dataclass(frozen=True, slots=True)
class TooLate:
    """It is refused: its first token would come too late.

    `retry_after_s`: when there should be room, spread. `predicted_s`: until its first token.
    """

    retry_after_s: float
    predicted_s: float


class Elsewhere:
    """A fall-back of its route may take it. It waits until it has gone there."""


# What becomes of a request. An exception is why the gate has no backend for it.
Outcome = Lease | TooLate | Elsewhere | Exception


def _nowhere() -> bool:
    return False


class Wait:
    """Where a request waits, and for which backend."""

    def __init__(self, pool: str, tokens: int, answer_tokens: float) -> None:
        """`tokens`: to prefill, as far as is known. `answer_tokens`: expected, of all choices."""
        self.pool = pool
        self.tokens = tokens
        self.answer_tokens = answer_tokens
        self.wanted: Backend | None = None  # where the policy would send it
        self.only: Backend | None = None  # the one that holds what is asked for
        self.kept_before = False  # a backend is or was kept for it
        self.parked_s: float | None = None  # since when no backend can serve it
        self.stays_s = -inf  # until when it stays: another pool would have refused it


class QueuedRequest:
    """One request: its tenant, how long it may wait, and who is told the outcome.

    `rank`: its class, 0 is the highest. `deadline_s`: how long its client waits for a first token.
    `ready` is called once if it had to wait, with the outcome. `dry`: it only asks what would
    happen, so nothing is noted.
    """

    def __init__(
        self,
        ask: Ask,
        since_s: float,
        ready: Callable[[Outcome], None],
        name: str = "",
        rank: int = 0,
        deadline_s: float = inf,
        *,
        impatient: bool = True,
        dry: bool = False,
    ) -> None:
        """`name`: of its tenant, or of a queue for clients without one. `impatient`: its client
        leaves at the deadline. Otherwise the time of its own prompt comes on top of that."""
        self.ask = ask
        self.since_s = since_s
        self.ready = ready
        self.name = name
        self.rank = rank
        self.deadline_s = deadline_s
        self.impatient = impatient
        self.dry = dry
        self.tried: Collection[Backend] = ()  # backends that have failed it
        self.again = False  # it was sent before
        self.retry = False  # an engine may have worked on it there
        # Whether its route has another place for it while its pool serves nobody.
        self.elsewhere: Callable[[], bool] = _nowhere
        self.tenant: TenantQueue | None = None  # where it waits, or is counted
        self.wait: Wait | None = None  # None: it does not wait
        self.reason: WaitReason | None = None  # what was missing when it was looked at last
        self.predicted_s = 0.0  # until its first token, when it began to wait. 0.0: it did not
        self.raw_s = 0.0  # the same before it was corrected by what is learnt

    @property
    def waits(self) -> bool:
        return self.wait is not None

    def waited_s(self, now_s: float) -> float:
        """How long it has waited. Time spent parked counts only for an impatient client."""
        wait = self.wait
        if wait is not None and wait.parked_s is not None and not self.impatient:
            return wait.parked_s - self.since_s
        return now_s - self.since_s

    def unpark(self, now_s: float) -> None:
        """A backend can serve it again, perhaps one that has failed it before."""
        if self.wait is not None and self.wait.parked_s is not None:
            self.since_s = now_s - self.waited_s(now_s)
            self.wait.parked_s = None
            self.tried = ()


class Charge:
    """What a request counts for at its backend, from when it is sent to the end of its lease."""

    def __init__(self, request: QueuedRequest, tenant: TenantQueue, lease: Lease) -> None:
        ask = lease.ask
        self.tenant = tenant
        self.rank = request.rank
        self.since_s = request.since_s
        self.raw_s = request.raw_s  # its predicted wait, until that is compared with the true one
        self.charged_tokens = 0.0  # to its tenant, so far
        self.answer_tokens = tenant.expect(ask)  # of all choices, as was expected then
        self.surprise_tokens = 0.0  # how many more its answer may have than expected
        self.cached_tokens = 0  # of its prompt, until that is prefilled
        self.sequences = ask.prompts * ask.choices if ask.generates else 0
        self.seen_tokens = 0  # generated when its stream was sampled last
        self.holds = False  # the blocks of its prompt are counted
        self.large = False  # it has the lane for large requests
        self.fills = False  # its choices may fill the engine

    def add(self, tokens: float, now_s: float) -> None:
        """Charge its tenant for more tokens, or for fewer if negative."""
        self.charged_tokens += tokens
        self.tenant.charge(tokens, now_s)
