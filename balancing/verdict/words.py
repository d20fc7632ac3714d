"""A finding in plain words: what is wrong, and what to do about it."""

from operator import itemgetter
from typing import Final, NamedTuple

from penstock.balancing.verdict.cause import CALM, Finding, Kind

# What was not seen for so long is told as over.
UNSEEN_S: Final = 2.0
NAMED_MAX: Final = 3
# What takes long at a slow backend, by the name of its figure, and where to look for the cause.
_WORK: Final = {
    "prefill": (
        "a prompt",
        "GPU (clocks, heat, other processes), and at the CPU of its API server",
    ),
    "decode": ("a token", "GPU: clocks, heat, other processes"),
}
# Why one is out, by the reason of its state.
_OUT: Final = {
    "unreachable": "nothing listens at its address, or the network does not lead there",
    "hung": "it accepts requests and answers none",
    "timeout": "it does not answer in time",
    "failing": "it fails the requests that it gets",
    "worse": "it is worse than its peers",
}
_TAKES: Final = {
    "takes": "Most of what engines did was for",
    "holds": "Most of the requests under way are of",
}
_ADD: Final = "Add a backend to the pool."


class _Said(NamedTuple):
    """The words of one cause. Braces hold a figure of the finding, or one of `_parts`."""

    section: str  # of the runbook (docs/runbook.md)
    sentence: str
    to_do: tuple[str, ...]  # the most useful first


# By kind and detail. Details that are not here have the words of the kind alone.
_SAID: Final = {
    (Kind.FINE, ""): _Said("", "Nothing is wrong.", ()),
    (Kind.FINE, "unready"): _Said("", "Nothing is queued, but {unready}.", ()),
    # One that is missed for hours after its cause needs no other step.
    (Kind.MISSED, ""): _Said(
        "alerts",
        "A service level is missed, though nothing waits now and no backend stands out. {missed}.",
        (
            "See where time went: penstock requests (--slow, --failed), penstock trace. What was "
            "wrong earlier is listed below this sentence on the page.",
            "If nothing was wrong, and models think before they show a token, set a longer target "
            "for ttft_s in slo.",
        ),
    ),
    (Kind.MISSED, "unclear"): _Said(
        "alerts",
        "A service level is missed. {missed}. What it is that delays requests is not clear yet.",
        ("Look again in some seconds.",),
    ),
    (Kind.COMPUTE, "prefill"): _Said(
        "requests-wait",
        "Compute-bound: engines are busy with prompts, and {queue}.",
        (_ADD, "Limit who sends the most: tenants[].limits."),
    ),
    (Kind.COMPUTE, "decode"): _Said(
        "requests-wait",
        "Compute-bound: a stream gets a token every {gap_ms:.0f} ms, because engines decode "
        "{streams:.0f} streams.",
        (_ADD, "Lower --max-num-seqs, so that fewer share an engine."),
    ),
    (Kind.COMPUTE, "slow_decode"): _Said(
        "one-slow-gpu",
        "Compute-bound: a stream gets a token every {gap_ms:.0f} ms, although no engine decodes "
        "more than {most:.0f} streams. The engines are slow.",
        (
            "Look at the GPUs: clocks, heat, power, other processes.",
            "Look at what was changed in all engines: model, flags, version.",
        ),
    ),
    (Kind.MEMORY, ""): _Said(
        "kv-cache-full",
        "Memory-bound: {cache}, and {queue}.{paused}",
        (
            "Cap long answers: admission.degrade, or max_tokens in tenants[].limits.",
            "Add a backend, or room in caches (--gpu-memory-utilization, --kv-cache-dtype fp8).",
        ),
    ),
    (Kind.SCHEDULER, "api_server"): _Said(
        "requests-wait",
        "Scheduler-bound: {unseen:.0f} of {sent:.0f} requests that were sent are not in an engine "
        "yet, and {queue}.",
        ("Give vLLM's API servers more CPU, or run more of them (--api-server-count).",),
    ),
    (Kind.SCHEDULER, "sequences"): _Said(
        "requests-wait",
        "Scheduler-bound: engines run {running:.0f} streams and no more, their caches have room, "
        "and {queue}.",
        ("Raise --max-num-seqs.", _ADD),
    ),
    (Kind.SCHEDULER, "token_budget"): _Said(
        "requests-wait",
        "Scheduler-bound: {step}, and {queue}.",
        ("Raise --max-num-batched-tokens.",),
    ),
    (Kind.WAITING, "requests"): _Said(
        "requests-wait",
        "Waiting in penstock: max_requests is reached, and {queue}.",
        ("Raise max_requests of the pool or of its backends.", _ADD),
    ),
    (Kind.WAITING, "busy"): _Said(
        "requests-wait",
        "Waiting in penstock: {who} refuse requests for load (429 or 503), and {queue}.",
        ("Look at the limit that refuses: the engine's own, or that of a proxy before it.", _ADD),
    ),
    (Kind.WAITING, "choices"): _Said(
        "requests-wait",
        "Waiting in penstock: as many requests with many choices run as may, and {queue}.",
        ("Ask for fewer choices (n) in a request, or limit max_tokens in tenants[].limits.",),
    ),
    (Kind.WAITING, "turn"): _Said(
        "requests-wait",
        "Waiting in penstock: others go first, and {queue}.",
        (
            "See whose turn it is: penstock status, and GET /api/v1/queue.",
            "Give the class a larger share (share_min), or the tenant a larger weight.",
        ),
    ),
    (Kind.DEMAND, ""): _Said(
        "overload-429",
        "More is asked for than the pool can do: {refused:.0f} requests were refused in the last "
        "10 s.",
        (_ADD,),
    ),
    (Kind.DEMAND, "busy"): _Said(
        "overload-429",
        "More is asked for than {who} will take: penstock paused them for {share:.0%} of the last "
        "10 s, after refusals for load (429 or 503).",
        ("Look at the limit that refuses: the engine's own, or that of a proxy before it.", _ADD),
    ),
    (Kind.UNEVEN, "slow"): _Said(
        "one-slow-gpu",
        "Uneven: for {work} {backend} takes {times:.1f} times as long as its peers.",
        ("Drain it (penstock drain {backend}), and look at its {suspects}.",),
    ),
    (Kind.UNEVEN, "hot"): _Said(
        "requests-wait",
        "Uneven: a request waits {wait_s:.1f} s at {backend}, and {others_s:.1f} s at its peers.",
        (
            "Look for a session or a prompt that many requests share: penstock requests --backend "
            "{backend}.",
            "Spread these requests over several sessions, or turn affinity.strict off.",
        ),
    ),
    (Kind.CLIENT, ""): _Said(
        "streams-that-break",
        "Client-bound: {slow:.0f} of {clients:.0f} clients do not read what has come for them. "
        "Engines are not the cause.",
        ("Look at the clients, and at the network between them and penstock.",),
    ),
    (Kind.CLIENT, "fails"): _Said(
        "streams-that-break",
        "Client-bound: {failures:.0f} of {requests:.0f} attempts failed in the last 10 s, nearly "
        "all for one client. Others are served.",
        ("Look whose requests fail, and how: penstock requests --failed.",),
    ),
    (Kind.STARTING, ""): _Said(
        "everything-down",
        "Starting: {backends:.0f} of {of:.0f} backends are not ready, or have just begun to serve."
        "{long}",
        (
            "Wait for them. penstock status tells what each one lacks.",
            "If starts usually take less time, look at the logs of these backends.",
        ),
    ),
    (Kind.FAILING, ""): _Said(
        "everything-down",
        "Failing: {which}. {left}{more}",
        ("Look at the log of {each}, and restart it.",),
    ),
    (Kind.FAILING, "nobody"): _Said(
        "everything-down",
        "Failing: no backend of the pool is in use: all are drained, or there is none.",
        ("Put one back (penstock ready NAME), or add one.",),
    ),
    (Kind.FAILING, "requests"): _Said(
        "streams-that-break",
        "Failing: {failures:.0f} attempts failed{at} in the last 10 s.",
        ("Look at the reasons: penstock status, and `failed` in the access log.",),
    ),
    (Kind.FAILING, "backend"): _Said(
        "streams-that-break",
        "Failing: {backend} failed {failures:.0f} of its last {requests:.0f} requests, in a "
        "minute.",
        (
            "Drain it (penstock drain {backend}), then look at its log.",
            "The reasons are in penstock status, and in `failed` in the access log.",
        ),
    ),
    (Kind.FAILING, "everywhere"): _Said(
        "streams-that-break",
        "Failing: most requests fail at each of the {of:.0f} backends: {failures:.0f} attempts in "
        "the last 10 s. They probably share a cause.",
        (
            "Send a request to one engine directly, and look at its log.",
            "Look at what they share: the network, the last change of engines or of timeouts.",
        ),
    ),
    (Kind.FAILING, "stalled"): _Said(
        "hung-engine",
        "Failing: {streams:.0f} streams hang: they get a token every {gap_s:.1f} s, and {engines} "
        "could give them more.",
        ("Look at the logs of engines. Clients are told once probes find that an engine hangs.",),
    ),
}
# Of backends that are out, by the reason.
_SECTIONS: Final = {
    "hung": "hung-engine",
    "timeout": "hung-engine",
    "worse": "a-new-backend-that-is-worse",
}


def words(finding: Finding, unseen_s: float = 0.0) -> tuple[str, tuple[str, ...]]:
    """The sentence and the one or two things to do. `unseen_s`: so long ago it was so last."""
    said, parts = _said_of(finding), _parts(finding)
    sentence = said.sentence.format(**parts)
    to_do = tuple([each.format(**parts) for each in said.to_do])
    if finding.tenant:
        sentence, to_do = _with_tenant(finding, sentence, to_do)
    if finding.kind in CALM:
        return sentence, to_do
    if unseen_s >= UNSEEN_S:
        sentence = f"Seen {unseen_s:.0f} s ago: {sentence}"
    if finding.missed:
        sentence += f" Missed service levels: {', '.join(each.name for each in finding.missed)}."
    return sentence, to_do


def section(finding: Finding) -> str:
    """The section of the runbook for a finding. Empty if nothing is wrong."""
    if finding.role in ("waits", *_TAKES):
        return "one-tenant-floods"
    if finding.kind is Kind.FAILING and finding.detail in _SECTIONS:
        return _SECTIONS[finding.detail]
    return _said_of(finding).section


def _said_of(finding: Finding) -> _Said:
    kind, detail = finding.kind, finding.detail
    if kind is Kind.FAILING and not finding.figures.get("of", 1.0):
        detail = "nobody"
    if kind is Kind.FINE and detail:
        detail = "unready"
    return _SAID.get((kind, detail)) or _SAID[kind, ""]


def _with_tenant(
    finding: Finding, sentence: str, to_do: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    limit = f"Limit {finding.tenant} if it should not take so much: tenants[].limits."
    if finding.role == "reads":
        return f"{sentence} Nearly all of them are of tenant {finding.tenant}.", to_do
    if finding.role in _TAKES:
        return f"{sentence} {_TAKES[finding.role]} tenant {finding.tenant}.", (limit, to_do[0])
    floods = f"Nearly all that waits is of tenant {finding.tenant}, and others are served."
    return f"{floods} {sentence}", (limit, to_do[0])


def _parts(finding: Finding) -> dict[str, object]:
    """What stands in the braces: the figures, and what follows from them."""
    figures, backend = finding.figures, finding.backend
    parts: dict[str, object] = {
        **figures,
        "backend": backend,
        "at": f" at {backend}" if backend else "",
        "who": backend or "backends",
        "engines": backend or "engines",
        "each": backend or "each of them",
        "queue": _queue(finding),
        "gap_ms": 1e3 * figures.get("gap_s", 0.0),
    }
    match finding.kind:
        case Kind.FINE:
            parts["unready"] = _unready(finding)
        case Kind.MISSED:
            named = [f"{each.name}: {each.because}" for each in finding.missed[:NAMED_MAX]]
            parts["missed"] = "; ".join(named)
        case Kind.MEMORY:
            parts |= _of_memory(finding)
        case Kind.SCHEDULER:
            parts["step"] = _step(finding)
        case Kind.STARTING:
            parts["long"] = _long(finding)
        case Kind.UNEVEN if finding.detail == "slow":
            name, parts["times"] = max(figures.items(), key=itemgetter(1))
            parts["work"], parts["suspects"] = _WORK[name]
        case Kind.FAILING if figures.get("out"):
            parts |= _of_outage(finding)
    return parts


def _unready(finding: Finding) -> str:
    """Which backends are not ready, and what they are if that is the same."""
    state = "not ready" if finding.detail == "unready" else finding.detail
    if finding.backend:
        return f"{finding.backend} is {state}"
    counts = [finding.figures.get(name, 0.0) for name in ("backends", "of")]
    return f"{counts[0]:.0f} of {counts[1]:.0f} backends are {state}"


def _queue(finding: Finding) -> str:
    waiting, wait_s = finding.figures.get("waiting", 0.0), finding.figures.get("wait_s", 0.0)
    if waiting >= 1.5:
        first = f", the first for {wait_s:.1f} s" if wait_s >= 0.1 else ""
        return f"{waiting:.0f} requests wait{first}"
    if waiting >= 0.5:
        return f"a request waits for {wait_s:.1f} s"
    return f"prompts wait {wait_s:.1f} s" if wait_s >= 0.1 else "nobody waits now"


def _of_memory(finding: Finding) -> dict[str, str]:
    figures = finding.figures
    stopped, used = figures["preemptions"], f"{figures['kv_usage']:.0%}"
    cache = f"answers under way will need the rest of the KV caches (up to {used} is used now)"
    if figures["full"]:
        one = f"the KV cache of {finding.backend} is"
        cache = f"{one if finding.backend else 'KV caches are up to'} {used} full"
    streams = "a stream" if stopped == 1.0 else f"{stopped:.0f} streams"
    paused = f" Engines paused {streams} for lack of room." if stopped else ""
    return {"cache": cache, "paused": paused}


def _step(finding: Finding) -> str:
    """What engines do in a step, if that is too little."""
    figures = finding.figures
    tokens = figures.get("prefill_step_tokens")
    if tokens is not None:
        return f"engines compute {tokens:.0f} prompt tokens in a step, where a GPU can do hundreds"
    step_ms, idle_ms = [1e3 * figures.get(name, 0.0) for name in ("step_s", "idle_step_s")]
    return f"a step takes {step_ms:.0f} ms, hardly more than the {idle_ms:.0f} ms without prompts"


def _long(finding: Finding) -> str:
    since_s = finding.figures["starting_s"]
    long = f" The longest has been starting for {since_s:.0f} s." if since_s else ""
    if not finding.figures.get("serve", 1.0):
        long += " None serves: requests wait for one, or get 503."
    return long


def _of_outage(finding: Finding) -> dict[str, str]:
    figures, backend, reason = finding.figures, finding.backend, finding.detail
    which = f"{figures['out']:.0f} of {figures['of']:.0f} backends are out ({reason})"
    if backend:
        which = f"{backend} is out ({reason}): {_OUT.get(reason, 'its log may say why')}"
    serve, others = figures.get("serve", 0.0), figures.get("others", 0.0)
    left = f"New requests go to {serve:.0f} other{'s' if serve > 1.0 else ''}"
    # What is stuck at those that are out waits, too, and is not counted.
    left += f", and {_queue(finding)}." if figures.get("waiting", 0.0) >= 0.5 else "."
    if failed := figures.get("failed", 0.0):
        attempts = "an attempt failed" if failed == 1.0 else f"{failed:.0f} attempts failed"
        left += f" Lately {attempts} there. Others took over what had not begun to answer."
    if not serve:
        resort = figures.get("resort", 0.0)
        left = "What is doubted only still serves." if resort else "None is left to serve."
    more = f" At the others {others:.0f} attempts failed in the last 10 s." if others else ""
    return {"which": which, "left": left, "more": more}
