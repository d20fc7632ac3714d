"""Which cause explains what is seen of a pool: one rule for each, the surest first.

What is out or starting is certain. One backend that differs from its peers explains its own queue,
and a limit what waits by it. Only what is left is a matter of the engines: of their caches, their
schedulers or their arithmetic. Without a queue or slow tokens nothing is wrong, however busy the
engines are. If nearly all that waits is of one tenant, the finding names it: the engines are still
what it waits for.

Engines tell little that is new (they are scraped each second or two, and their histograms know only
requests that have ended), so ages of open requests tell first.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.verdict.cause import FINE, Finding, Kind
from penstock.balancing.verdict.facts import FULL
from penstock.balancing.verdict.failures import (
    all_fail,
    faulty_client,
    nearly_all_fail,
    one_fails,
    some_fail,
)
from penstock.balancing.verdict.window import (
    MOST,
    NEARLY_ALL,
    WAIT_S,
    WAITING_MIN,
    Scene,
    Seen,
    Window,
    only,
)

# Slower tokens than that are slow: MLPerf's limit for chat with a 70B model is 0.2 s a token, for
# 8B 0.1 s.
GAP_S: Final = 0.1
# A cache that is less full is no reason to wait.
ROOMY: Final = 0.85
# Steps that take at most so many times what they take without prefill leave most of a GPU idle.
IDLE_STEP: Final = 1.5
# With fewer tokens in a step a GPU reads its weights longer than it computes (roofline model,
# Williams et al., CACM 2009): 16-bit weights and 312 TFLOP/s over 2.0 TB/s give 153 on an A100,
# 989 over 3.35 give 295 on an H100 (NVIDIA's data sheets).
RIDGE_TOKENS: Final = 128.0
# With fewer streams, and a cache that is no fuller, tokens take about as long as with one: engines
# read all of their weights for each step.
FEW_STREAMS: Final = 32
FEW_KV_USAGE: Final = 0.5
# A backend is apart from its peers if it takes so many times as long.
SLOWER: Final = 3.0
REFUSALS_MIN: Final = 3
# Streams that get a token in so many steps are stalled.
STALLED_STEPS: Final = 5.0
# A backend that has not served after this time is out: a large model loads for some minutes.
STARTING_MAX_S: Final = 600.0
# Where requests wait, so many of the backends must be out to be the cause.
OUT_SHARE: Final = 0.2
# Admission gives a backend so much prefill beforehand: with more than a third of it, it is in use.
WINDOW_S: Final = 0.1
CLIENTS_MIN: Final = 3.0
PREEMPTIONS_MIN: Final = 3
# Who takes the most is named only if it is so many times what the next one takes.
AHEAD: Final = 1.5
# Tokens of about the last minute. With fewer a tenant has hardly been there.
GIVEN_MIN: Final = 100.0

_LIMITS: Final = (WaitReason.REQUESTS, WaitReason.BUSY, WaitReason.CHOICES)
# What all requests share, so that one tenant may use it up: the engines, or places before them.
_ENGINES: Final = (Kind.MEMORY, Kind.SCHEDULER, Kind.COMPUTE, Kind.DEMAND)
# The same of one backend, or of turns: nobody else's requests need be in the way.
_OWN: Final = ((Kind.UNEVEN, "hot"), (Kind.WAITING, WaitReason.CHOICES.value))
_CACHE: Final = (WaitReason.KV_CACHE, WaitReason.SHARE)
_PREFILL: Final = (WaitReason.PROMPTS, WaitReason.LARGE)


def find(window: Window, backends: list[Seen]) -> Finding:
    """What is wrong now, as far as this window tells of the pool and of these backends of it."""
    scene, missed = Scene(window, backends), window.now.missed
    for rule in _RULES:
        finding = rule(scene)
        if finding is not None:
            tenant, role = _whose(finding, scene)
            return replace(finding, tenant=tenant, role=role, missed=missed)
    return Finding(Kind.MISSED, missed=missed) if missed else _calm(scene)


def _calm(scene: Scene) -> Finding:
    """Nothing waits. Backends that are not ready are told nevertheless."""
    unready = [each for each in scene.backends if each.now.state != "ready"]
    if not unready:
        return FINE
    figures = {"backends": float(len(unready)), "of": float(len(scene.backends))}
    states = {each.now.state for each in unready}
    return Finding(
        Kind.FINE, states.pop() if len(states) == 1 else "unready", only(unready), figures=figures
    )


def _whose(finding: Finding, scene: Scene) -> tuple[str, str]:
    """The tenant to name beside a finding, and for what."""
    which = finding.kind, finding.detail
    if which == (Kind.WAITING, WaitReason.REQUESTS.value):
        return _tenant(scene, by_requests=True)
    if finding.kind in _ENGINES or which in _OWN:
        tenant, role = _tenant(scene)
        return (tenant, role) if which not in _OWN or role == "waits" else ("", "")
    return finding.tenant, finding.role


def _tenant(scene: Scene, *, by_requests: bool = False) -> tuple[str, str]:
    """The tenant to name, and for what: `waits`: it has nearly all that waits, while others are
    served. `takes`: it had most of what engines did, while others wait. `holds`: it has most of
    the requests under way, while others wait. Else empty.

    `by_requests`: what waits, waits for a place. A tenant may hold places for long and take few
    tokens. Who waits and has less than its even share is no cause.
    """
    now = scene.now
    if not scene.queued_s or not now.waiting_by_tenant:
        return "", ""
    tenant, waiting = max(now.waiting_by_tenant.items(), key=lambda each: each[1])
    # Short requests are seldom there when somebody looks.
    lately = {each for each, tokens in now.given_by_tenant.items() if tokens >= GIVEN_MIN}
    served = now.served_by_tenant.keys() | (lately - now.waiting_by_tenant.keys())
    shares = now.served_by_tenant if by_requests else now.given_by_tenant
    known = now.waiting_by_tenant.keys() | (shares.keys() if by_requests else served)
    has = {each: float(shares.get(each, 0.0)) for each in known if each}
    total = sum(has.values())
    most = max(has, key=has.__getitem__, default="")
    second = max([share for each, share in has.items() if each != most], default=0.0)
    others_wait = total and len(has) > 1 and now.waiting_by_tenant.get(most, 0) < now.waiting
    named = others_wait and has[most] >= max(MOST * total, AHEAD * second)
    is_most = tenant and served - {tenant} and waiting >= NEARLY_ALL * now.waiting
    if is_most and has[tenant] * len(has) >= total and (most == tenant or not named):
        return tenant, "waits"
    return (most, "holds" if by_requests else "takes") if named else ("", "")


def _starting(scene: Scene) -> Finding | None:
    """Nobody serves yet, or what has just begun to serve is not enough."""
    fresh = [each for each in scene.backends if _starts(each)]
    few = len(fresh) < OUT_SHARE * len(scene.backends)
    most = 2 * sum(each.now.state == "starting" for each in fresh) > len(scene.backends)
    waits = scene.waits and not few and not _memory(scene)
    if not fresh or (scene.serving and not most and not waits):
        return None
    if not scene.serving and any(each.now.state == "ejected" for each in scene.backends):
        return None
    figures = {"backends": float(len(fresh)), "of": float(len(scene.backends))}
    figures["starting_s"] = max(each.now.starting_s for each in fresh)
    figures["serve"] = float(len(scene.serving))
    return Finding(Kind.STARTING, backend=only(fresh), figures=figures)


def _starts(seen: Seen) -> bool:
    """Whether it is about to serve more. One that starts for too long is out."""
    if seen.now.state == "starting":
        return seen.now.starting_s < STARTING_MAX_S
    return seen.now.state == "warming"


def _is_out(seen: Seen) -> bool:
    return seen.now.state == "ejected" or (seen.now.state == "starting" and not _starts(seen))


def _out(scene: Scene) -> Finding | None:
    """Backends are out: none is left, or too few for what is asked."""
    if not scene.backends:
        return Finding(Kind.FAILING, figures={"out": 0.0, "of": 0.0})
    out = [each for each in scene.backends if _is_out(each)]
    if not out or (scene.waits and len(out) < OUT_SHARE * len(scene.backends)):
        return None  # or too few to explain that the others have a queue
    rest = [each for each in scene.backends if not _is_out(each)]
    everywhere = all_fail(scene, rest)
    if everywhere is not None:
        return everywhere
    others = sum(each.failures for each in rest)
    figures = {"out": float(len(out)), "of": float(len(scene.backends)), "others": float(others)}
    whole = [each for each in scene.serving if not _is_out(each)]
    figures |= {"serve": float(len(whole)), "resort": float(len(scene.serving) - len(whole))}
    figures["failed"] = float(sum(each.minute_failures for each in out))
    figures |= _queue(scene)
    return Finding(Kind.FAILING, out[0].now.reason, backend=only(out), figures=figures)


def _uneven(scene: Scene) -> Finding | None:
    """One is several times slower than its peers, or what waits, waits for it alone."""
    full = [each for each in scene.serving if _is_full(each)]
    if len(scene.serving) < 2 or (scene.waits and 2 * len(full) > len(scene.serving)):
        return None  # streams that are paused for lack of room look slow
    if scene.share(*_CACHE, WaitReason.SEQUENCES) >= MOST:
        return None  # what waits has no room anywhere, whichever of them is slower
    slowest = max(scene.serving, key=lambda each: each.now.pace.slower)
    elsewhere = scene.waits and _pending(slowest) < WAIT_S  # it is slow, and others have the queue
    pace = slowest.now.pace
    if pace.slower >= SLOWER and not elsewhere:
        # A server that is slow in both is told by its tokens, or the sentence would alternate.
        work = "decode" if pace.decode >= SLOWER else "prefill"
        figures = {work: getattr(pace, work)}
        return Finding(Kind.UNEVEN, "slow", backend=slowest.now.name, figures=figures)
    if not scene.waits:
        return None
    wanted = sum(each.wanted for each in scene.serving)
    hottest = max(scene.serving, key=_pending)
    if wanted >= WAITING_MIN:  # what waits in penstock waits for it
        hottest = max(scene.serving, key=lambda each: each.wanted)
        if hottest.wanted < NEARLY_ALL * wanted:
            return None
    elif scene.window.waiting >= WAITING_MIN:
        return None  # what waits in penstock waits for none of them alone
    others = [each for each in scene.serving if each is not hottest]
    rest = wanted >= WAITING_MIN and all(_rests(each, hottest) for each in others)
    stuck = _pending(hottest) >= WAIT_S and max(map(_pending, others)) < WAIT_S / 4
    if not rest and not stuck:
        return None
    figures = {"wait_s": scene.waits_s, "others_s": max(map(_pending, others))}
    return Finding(Kind.UNEVEN, "hot", backend=hottest.now.name, figures=figures)


def _rests(seen: Seen, hottest: Seen) -> bool:
    """Whether a backend has next to nothing to do beside the one that all wait for."""
    few = _sequences(seen) <= _sequences(hottest) / 2
    return few and seen.backlog_s < WINDOW_S / 3 and seen.kv_usage < FULL / 2


def _sequences(seen: Seen) -> float:
    """What is there, as its engine tells or by our own count: an engine may tell nothing."""
    return max(seen.sent, seen.running + seen.waiting)


def _unread(scene: Scene) -> Finding | None:
    """Most clients do not read, and so what waits has no room by our count.

    Engines know no slow clients: they are busy or full for other reasons.
    """
    full = [each for each in scene.serving if each.now.report is not None and each.kv_usage >= FULL]
    if scene.waits and (full or scene.share(*_CACHE) < MOST):
        return None
    return _client(scene, MOST)


def _limited(scene: Scene) -> Finding | None:
    if not scene.waits or scene.share(*_LIMITS) < MOST:
        return None
    worst = max(_LIMITS, key=lambda each: scene.lacks[each])
    return Finding(Kind.WAITING, worst.value, figures=_queue(scene))


def _memory(scene: Scene) -> Finding | None:
    full = [each for each in scene.serving if _is_full(each)]
    stopped = sum(each.preemptions for each in scene.serving)
    waits_there = any(each.waiting >= 1.0 for each in full)
    lacks = (WaitReason.KV_CACHE,) if _spare_places(scene) else _CACHE
    # Steps that are full of prompts would not be shorter with more room.
    no_room = scene.share(*lacks) >= MOST and (full or not _most_compute(scene))
    slow = scene.waits and (no_room or waits_there)
    if not slow and (stopped < PREEMPTIONS_MIN or not full):
        return None
    # As it is now: rows of backends tell that, too.
    full = full and [each for each in scene.serving if max(each.kv_usage, _kv_usage(each)) >= FULL]
    # One that was just full may have paused a stream: the mean is what explains the wait.
    usage = max(
        [max(each.kv_usage, _kv_usage(each)) for each in full or scene.serving], default=0.0
    )
    figures = {"kv_usage": usage, "full": float(len(full)), "preemptions": float(stopped)}
    return Finding(Kind.MEMORY, backend=only(full), figures=figures | _queue(scene))


def _is_full(seen: Seen) -> bool:
    """Whether its cache has no room. It pauses streams only then, and is less full afterwards."""
    return seen.kv_usage >= FULL or seen.preemptions > 0


def _spare_places(scene: Scene) -> bool:
    """Whether what is left to other tenants is places: caches have much more room than that."""
    told = [_with_one_more(each) for each in scene.serving if each.now.report is not None]
    return bool(told) and max(told) < FEW_KV_USAGE


def _with_one_more(seen: Seen) -> float:
    """How full its cache is with one more sequence like those that run."""
    return seen.kv_usage * (1.0 + 1.0 / max(1.0, seen.running))


def _scheduler(scene: Scene) -> Finding | None:
    """Caches have room, and yet requests are not taken up, or in small steps only."""
    if not scene.waits:
        return None
    sent = sum(each.sent for each in scene.serving)
    unseen = sum(each.unseen for each in scene.serving)
    if unseen >= max(WAITING_MIN, MOST * sent):
        figures = {"unseen": unseen, "sent": sent}
        return Finding(Kind.SCHEDULER, "api_server", figures=figures | _queue(scene))
    if _most_compute(scene):
        return None
    usable = [each for each in scene.serving if not _computes(each)]
    roomy = [each for each in usable if _with_one_more(each) < ROOMY and not _is_full(each)]
    stuck = [each for each in roomy if each.waiting >= 1.0 and each.backlog_s < WAIT_S / 4]
    # Engines that run the same number all the time, with others behind, have no more places.
    steady = [each for each in roomy if each.waiting >= 1.0 and each.steady and _idles(each)]
    taken = (WaitReason.SEQUENCES, *[WaitReason.SHARE] * _spare_places(scene))
    no_places = scene.share(*taken) >= MOST or (stuck and not scene.share(*_PREFILL))
    # With more places streams that are slow now would be slower.
    if scene.gap_s < GAP_S and (no_places or len(steady) * 2 > len(scene.serving)):
        # As of now, which rows of backends tell, too: a mean still grows after a rush.
        running = max([_running(each) for each in steady or stuck or scene.serving], default=0.0)
        figures = {"running": running}
        return Finding(Kind.SCHEDULER, "sequences", figures=figures | _queue(scene))
    short = [each for each in roomy if _idles(each)]
    if short and len(short) * 2 > len(scene.serving):
        steps_s = median(each.engine_step_s or each.gap_s for each in short)
        figures = {"step_s": steps_s, "idle_step_s": median(each.now.step_s for each in short)}
        tokens = [x for each in short if (x := each.prefill_step_tokens) is not None]
        if tokens:
            figures["prefill_step_tokens"] = median(tokens)
        return Finding(Kind.SCHEDULER, "token_budget", figures=figures | _queue(scene))
    return None


def _compute(scene: Scene) -> Finding | None:
    """Engines have prompts to compute, or many streams."""
    backlog_s = max([each.backlog_s for each in scene.serving], default=0.0)
    prompts = backlog_s >= WAIT_S / 4 or scene.share(*_PREFILL) > 0.0 or _most_compute(scene)
    decodes = scene.gap_s >= GAP_S and not prompts
    if scene.waits and not decodes and (prompts or not scene.lacks):
        figures = {"backlog_s": backlog_s, "gap_s": scene.gap_s}
        return Finding(Kind.COMPUTE, "prefill", figures=figures | _queue(scene))
    if scene.gap_s >= GAP_S:
        streams = sum(each.now.streams for each in scene.serving)
        figures = {"gap_s": scene.gap_s, "streams": float(streams)}
        most = max(max(_sequences(each), each.now.streams) for each in scene.serving)
        roomy = max(each.kv_usage for each in scene.serving) < FEW_KV_USAGE
        if most < FEW_STREAMS and roomy and not prompts:
            return Finding(Kind.COMPUTE, "slow_decode", figures=figures | {"most": most})
        return Finding(Kind.COMPUTE, "decode", figures=figures)
    return None


def _stalled(scene: Scene) -> Finding | None:
    """Engines go on, and most of their streams get no tokens of it."""
    stalled = [each for each in scene.serving if _stalls(each)]
    if len(stalled) * 2 <= len(scene.serving):
        return None
    streams = sum(each.now.streams for each in stalled)
    figures = {"gap_s": median(each.gap_s for each in stalled), "streams": float(streams)}
    return Finding(Kind.FAILING, "stalled", backend=only(stalled), figures=figures)


def _others_first(scene: Scene) -> Finding | None:
    """They wait for their turn, and engines are not the cause."""
    if not scene.waits:
        return None
    return Finding(Kind.WAITING, WaitReason.TURN.value, figures=_queue(scene))


def _refusing(scene: Scene) -> Finding | None:
    refusing = [each for each in scene.serving if each.left_alone >= MOST]
    if not refusing:
        return None
    share = max(each.left_alone for each in refusing)
    return Finding(Kind.DEMAND, "busy", backend=only(refusing), figures={"share": share})


def _demand(scene: Scene) -> Finding | None:
    if scene.window.refused < REFUSALS_MIN:
        return None
    return Finding(Kind.DEMAND, figures={"refused": float(scene.window.refused)} | _queue(scene))


def _clients(scene: Scene) -> Finding | None:
    """Engines are fine, and many clients do not read."""
    return _client(scene, MOST / 2)


def _client(scene: Scene, share: float) -> Finding | None:
    slow, clients = scene.window.slow_clients, scene.window.clients
    if slow < CLIENTS_MIN or slow < share * clients:
        return None
    by_tenant = scene.now.slow_by_tenant
    tenant = max(by_tenant, key=by_tenant.__getitem__, default="")
    if not tenant or by_tenant[tenant] < NEARLY_ALL * scene.now.slow_clients:
        tenant = ""
    figures = {"slow": slow, "clients": clients}
    return Finding(Kind.CLIENT, tenant=tenant, role="reads" if tenant else "", figures=figures)


_RULES: Final[tuple[Callable[[Scene], Finding | None], ...]] = (
    _starting,
    _out,
    nearly_all_fail,
    _uneven,
    _unread,
    _limited,
    _memory,
    _scheduler,
    _stalled,
    _compute,
    some_fail,
    one_fails,
    _refusing,
    _demand,
    _others_first,
    _clients,
    faulty_client,
)


def _most_compute(scene: Scene) -> bool:
    return 2 * len([each for each in scene.serving if _computes(each)]) > len(scene.serving)


def _computes(seen: Seen) -> bool:
    """Whether its steps have enough of prompts to use the whole GPU."""
    return seen.prefill_step_tokens is not None and seen.prefill_step_tokens >= RIDGE_TOKENS


def _idles(seen: Seen) -> bool:
    """Whether its steps compute few prompt tokens although prompts wait. If it does not tell how
    many: whether a step takes hardly longer than one without prompts."""
    if seen.prefill_step_tokens is not None:
        return seen.prefill_step_tokens < RIDGE_TOKENS and seen.gap_s < GAP_S
    step_s = seen.engine_step_s or seen.gap_s
    return bool(step_s) and step_s <= IDLE_STEP * seen.now.step_s


def _stalls(seen: Seen) -> bool:
    """Whether a stream waits for many steps of its engine. Each step has a token for each one."""
    step_s = seen.engine_step_s
    return step_s > 0.0 and seen.gap_s >= max(GAP_S, STALLED_STEPS * step_s)


def _pending(seen: Seen) -> float:
    """How long a new request waits at one backend: for prompts before it, or overdue ones."""
    return max(seen.backlog_s, seen.overdue_s)


def _queue(scene: Scene) -> dict[str, float]:
    """How many wait, and for how long: as of now, which the queue's own rows tell, too."""
    now = scene.now
    wait_s = now.oldest_s if now.oldest_s >= WAIT_S else scene.waits_s
    return {"waiting": now.waiting or scene.window.waiting, "wait_s": wait_s}


def _kv_usage(seen: Seen) -> float:
    """How full its cache is now, if its engine tells that."""
    report = seen.now.report
    return report.kv_usage if report is not None and report.kv_usage else seen.kv_usage


def _running(seen: Seen) -> float:
    """How many sequences its engine runs now."""
    return float(seen.now.report.running) if seen.now.report is not None else seen.running
