"""Which cause explains what is seen of a pool: one rule for each, the surest first.

What is out or starting is certain. One backend that differs from its peers explains its own queue,
and a limit of ours what waits by it. Only what is left is a matter of the engines: of
their caches, their schedulers or their arithmetic. Without a queue or slow tokens nothing is wrong,
however busy the engines are. If nearly all that waits is of one tenant, the finding names it: the
engines are still what it waits for.

Engines tell little that is new (they are scraped each second or two, and their histograms know only
requests that have ended), so ages of open requests tell first.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

from penstock.balancing.admission.lack import Lack
from penstock.balancing.verdict.cause import FINE, Finding, Kind
from penstock.balancing.verdict.window import Seen, Window

# A request that waits for longer than this, beyond its own work, is slow.
WAIT_S: Final = 1.0
# Slower tokens than that are slow: MLPerf's limit for chat with a 70B model is 0.2 s a token, for
# 8B 0.1 s.
GAP_S: Final = 0.1
# A full cache (llm-d warns at 0.9). Below the second figure it is no reason to wait.
FULL: Final = 0.9
ROOMY: Final = 0.85
# Steps that take at most so many times what they take without prefill leave most of a GPU idle.
IDLE_STEP: Final = 1.5
# A backend is apart from its peers if it takes so many times as long.
SLOWER: Final = 3.0
# So many attempts must have failed, and this share.
FAILURES_MIN: Final = 3
FAILURES_SHARE: Final = 0.05
# Where requests wait, so many of the backends must be out to be the cause.
OUT_SHARE: Final = 0.2
# Of what waits, or of clients, most: and nearly all.
MOST: Final = 0.5
NEARLY_ALL: Final = 0.8
WAITING_MIN: Final = 2.0
CLIENTS_MIN: Final = 3.0
PREEMPTIONS_MIN: Final = 3

_LIMITS: Final = (Lack.REQUESTS, Lack.GIANT, Lack.GIANTS)
# What all requests share, so that one tenant may use it up.
_ENGINES: Final = (Kind.MEMORY, Kind.SCHEDULER, Kind.COMPUTE, Kind.DEMAND)
_CACHE: Final = (Lack.KV_CACHE, Lack.ANSWERS)


class Scene:
    """A window, and what several rules ask of it."""

    def __init__(self, window: Window, backends: list[Seen]) -> None:
        self.window = window
        self.now = window.now
        self.backends = backends
        self.serving = [each for each in self.backends if each.now.can_serve]
        self.lacks = window.lacks()
        self.queued_s = window.waits_s if window.waiting >= WAITING_MIN else 0.0

    @property
    def waits_s(self) -> float:
        """How long requests wait, in penstock or in engines, beyond their own work."""
        return max([self.queued_s, *[each.overdue_s for each in self.serving]])

    @property
    def waits(self) -> bool:
        return self.waits_s >= WAIT_S

    @property
    def gap_s(self) -> float:
        """The usual time between two tokens of a stream. 0.0: not known."""
        gaps = [each.gap_s for each in self.serving if each.gap_s]
        return median(gaps) if gaps else 0.0

    def share(self, *lacks: Lack) -> float:
        """Of the next ones in the queue, how many wait for one of these."""
        if not self.queued_s or not self.lacks:
            return 0.0
        return sum(self.lacks[each] for each in lacks) / self.lacks.total()


def find(window: Window, backends: list[Seen]) -> Finding:
    """What is wrong now, as far as this window tells of the pool and of these backends of it."""
    scene = Scene(window, backends)
    for rule in _RULES:
        finding = rule(scene)
        if finding is not None:
            return replace(finding, tenant=_crowd(scene)) if finding.kind in _ENGINES else finding
    return FINE


def _crowd(scene: Scene) -> str:
    """The tenant that has nearly all that waits, while others are served. Else empty."""
    now = scene.now
    if not scene.queued_s or not now.waiting_by_tenant:
        return ""
    tenant, waiting = max(now.waiting_by_tenant.items(), key=lambda each: each[1])
    others = sum(now.served_by_tenant.values()) - now.served_by_tenant.get(tenant, 0)
    return tenant if others and waiting >= NEARLY_ALL * now.waiting else ""


def _starting(scene: Scene) -> Finding | None:
    """Nobody serves yet, or what has just begun to serve is not enough."""
    fresh = [each for each in scene.backends if each.now.state in ("starting", "warming")]
    if not fresh or (scene.serving and not scene.waits):
        return None
    if not scene.serving and any(each.now.state == "ejected" for each in scene.backends):
        return None
    figures = {"backends": float(len(fresh)), "of": float(len(scene.backends))}
    return Finding(Kind.STARTING, backend=_only(fresh), figures=figures)


def _failing(scene: Scene) -> Finding | None:
    if not scene.backends:
        return Finding(Kind.FAILING, figures={"out": 0.0, "of": 0.0})
    out = [each for each in scene.backends if each.now.state == "ejected"]
    failures = sum(each.failures for each in scene.backends)
    requests = sum(each.requests for each in scene.backends)
    often = failures >= max(FAILURES_MIN, FAILURES_SHARE * requests)
    if scene.waits and len(out) < OUT_SHARE * len(scene.backends):
        out = []  # too few to explain that the others have a queue
    if not out and not often:
        return None
    figures = {
        "out": float(len(out)),
        "of": float(len(scene.backends)),
        "failures": float(failures),
    }
    worst = out or [each for each in scene.backends if each.failures * 2 > failures]
    detail = out[0].now.reason if out else "requests"
    return Finding(Kind.FAILING, detail, backend=_only(worst), figures=figures)


def _uneven(scene: Scene) -> Finding | None:
    """One is several times slower than its peers, or what waits, waits for it alone."""
    if len(scene.serving) < 2:
        return None
    slowest = max(scene.serving, key=lambda each: each.now.slower)
    elsewhere = scene.waits and _pending(slowest) < WAIT_S  # it is slow, and others have the queue
    if slowest.now.slower >= SLOWER and not elsewhere:
        figures = {"slower": slowest.now.slower}
        return Finding(Kind.UNEVEN, "slow", backend=slowest.now.name, figures=figures)
    if not scene.waits:
        return None
    hottest = max(scene.serving, key=_pending)
    others = [_pending(each) for each in scene.serving if each is not hottest]
    wanted = sum(each.wanted for each in scene.serving)
    alone = not wanted or hottest.wanted >= NEARLY_ALL * wanted
    if alone and _pending(hottest) >= WAIT_S and max(others) < WAIT_S / 4:
        figures = {"wait_s": _pending(hottest), "others_s": max(others)}
        return Finding(Kind.UNEVEN, "hot", backend=hottest.now.name, figures=figures)
    return None


def _unread(scene: Scene) -> Finding | None:
    """Most clients do not read."""
    return _client(scene, MOST)


def _limited(scene: Scene) -> Finding | None:
    """A limit of ours keeps them waiting: `max_requests`, or requests with many choices."""
    if not scene.waits or scene.share(*_LIMITS) < MOST:
        return None
    worst = max(_LIMITS, key=lambda each: scene.lacks[each])
    return Finding(Kind.WAITING, worst.value, figures=_queue(scene))


def _memory(scene: Scene) -> Finding | None:
    full = [each for each in scene.serving if each.kv_usage >= FULL]
    stopped = sum(each.preemptions for each in scene.serving)
    waits_there = any(each.waiting >= 1.0 for each in full)
    slow = scene.waits and (scene.share(*_CACHE) >= MOST or waits_there)
    if not slow and (stopped < PREEMPTIONS_MIN or not full):
        return None
    usage = max([each.kv_usage for each in scene.serving], default=0.0)
    figures = {"kv_usage": usage, "full": float(len(full)), "preemptions": float(stopped)}
    return Finding(Kind.MEMORY, backend=_only(full), figures=figures | _queue(scene))


def _scheduler(scene: Scene) -> Finding | None:
    """Caches have room, and yet requests are not taken up, or in small steps only."""
    if not scene.waits:
        return None
    sent = sum(each.sent for each in scene.serving)
    unseen = sum(each.unseen for each in scene.serving)
    if unseen >= max(WAITING_MIN, MOST * sent):
        figures = {"unseen": unseen, "sent": sent}
        return Finding(Kind.SCHEDULER, "api_server", figures=figures | _queue(scene))
    roomy = [each for each in scene.serving if each.kv_usage < ROOMY]
    stuck = [each for each in roomy if each.waiting >= 1.0 and each.backlog_s < WAIT_S / 4]
    if scene.share(Lack.SEQUENCES) >= MOST or (stuck and not scene.share(Lack.PROMPTS)):
        running = max([each.running for each in stuck or scene.serving], default=0.0)
        figures = {"running": running}
        return Finding(Kind.SCHEDULER, "sequences", figures=figures | _queue(scene))
    short = [each for each in roomy if _idles(each)]
    if short and len(short) * 2 > len(scene.serving):
        steps_s = median(each.engine_step_s or each.gap_s for each in short)
        figures = {"step_s": steps_s, "idle_step_s": median(each.now.step_s for each in short)}
        return Finding(Kind.SCHEDULER, "token_budget", figures=figures | _queue(scene))
    return None


def _compute(scene: Scene) -> Finding | None:
    if scene.waits:
        backlog_s = max([each.backlog_s for each in scene.serving], default=0.0)
        figures = {"backlog_s": backlog_s, "gap_s": scene.gap_s}
        return Finding(Kind.COMPUTE, "prefill", figures=figures | _queue(scene))
    if scene.gap_s >= GAP_S:
        streams = sum(each.now.streams for each in scene.serving)
        return Finding(Kind.COMPUTE, "decode", figures={"gap_s": scene.gap_s, "streams": streams})
    return None


def _demand(scene: Scene) -> Finding | None:
    """Requests are refused, and nothing else explains it."""
    if scene.window.refused < FAILURES_MIN:
        return None
    return Finding(Kind.DEMAND, figures={"refused": float(scene.window.refused)} | _queue(scene))


def _clients(scene: Scene) -> Finding | None:
    """Engines are fine, and many clients do not read."""
    return _client(scene, MOST / 2)


def _client(scene: Scene, share: float) -> Finding | None:
    slow, clients = scene.window.slow_clients, scene.window.clients
    if slow < CLIENTS_MIN or slow < share * clients:
        return None
    return Finding(Kind.CLIENT, figures={"slow": slow, "clients": clients})


_RULES: Final[tuple[Callable[[Scene], Finding | None], ...]] = (
    _starting,
    _failing,
    _uneven,
    _unread,
    _limited,
    _memory,
    _scheduler,
    _compute,
    _demand,
    _clients,
)


def _idles(seen: Seen) -> bool:
    """Whether its steps take hardly longer than without prefill, while prompts wait."""
    step_s = seen.engine_step_s or seen.gap_s
    return bool(step_s) and step_s <= IDLE_STEP * seen.now.step_s


def _pending(seen: Seen) -> float:
    """How long a new request waits at one backend: for prompts before it, or overdue ones."""
    return max(seen.backlog_s, seen.overdue_s)


def _queue(scene: Scene) -> dict[str, float]:
    return {"waiting": scene.window.waiting, "wait_s": scene.waits_s}


def _only(backends: list[Seen]) -> str:
    """The name of the only one."""
    return backends[0].now.name if len(backends) == 1 else ""
