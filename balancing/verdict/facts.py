"""What is known of one pool at one moment, as far as a verdict needs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.speed.compare import ALIKE, Pace
from penstock.balancing.verdict.cause import Missed


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend. Counters grow; the rest is as of now. 0 or None: not known."""

    name: str
    can_serve: bool = True
    state: str = "ready"
    reason: str = ""
    left_alone: bool = False  # it has just refused a request for load
    streams: int = 0
    sequences: int = 0  # of all requests sent there: what its engine should run or queue
    overdue_s: float = 0.0  # its oldest prompt is that much later than its own work explains
    backlog_s: float = 0.0  # the prefill before a new prompt, at its measured speed
    held_share: float = 0.0  # of its KV cache, by our own count
    step_s: float = 0.0  # between two tokens with what it holds and no prefill beside
    pace: Pace = ALIKE  # how many times as long as its peers it takes
    wanted: int = 0  # requests in the queue that would go there
    requests_total: int = 0  # that have ended: all that an engine works on, and what failed
    failures_total: int = 0
    # Of other clients than the one with most of them (`client_counter`), and who that is.
    failures_apart_total: int = 0
    requests_apart_total: int = 0
    failed_most: str = ""
    asks_most: str = ""
    starting_s: float = 0.0  # how long it has been starting
    # The engine's own metrics, if they are fresh.
    told_s: float | None = None  # when they were read
    running: int = 0
    waiting: int = 0  # for room
    deferred: int = 0  # for something else, such as a grammar
    kv_usage: float = 0.0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    step_tokens: int = 0  # that these steps computed, of prompts and of answers


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool. `lacks`: of the next requests in the queue, how many wait for what.

    `waiting_by_tenant`: requests in the queue. `served_by_tenant`: requests under way.
    `given_by_tenant`: the tokens that each was given in about the last minute.
    """

    at_s: float
    backends: tuple[BackendFacts, ...] = ()
    waiting: int = 0
    oldest_s: float = 0.0  # how long the first of the queue waits
    lacks: Mapping[WaitReason, int] = field(default_factory=dict)
    waiting_by_tenant: Mapping[str, int] = field(default_factory=dict)
    served_by_tenant: Mapping[str, int] = field(default_factory=dict)
    given_by_tenant: Mapping[str, float] = field(default_factory=dict)
    refused_total: int = 0  # for want of room
    clients: int = 0  # that have a request under way, or an answer that they have not taken
    slow_clients: int = 0  # of these, clients that do not take what came
    slow_by_tenant: Mapping[str, int] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()  # service levels
