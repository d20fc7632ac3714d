"""A finding in plain words: what is wrong, and what to do about it."""

from collections.abc import Callable
from operator import itemgetter
from typing import Final

from penstock.balancing.verdict.cause import CALM, Finding, Kind

_TAKES: Final = {
    "takes": "Most of what engines did was for",
    "holds": "Most of the requests under way are of",
}
# What takes long, by the name of its figure.
_WORK: Final = {"prefill": "a prompt", "decode": "a token"}
_SUSPECTS: Final = {
    "prefill": "GPU (clocks, heat, other processes), and at the CPU of its API server",
    "decode": "GPU: clocks, heat, other processes",
}
# What was not seen for so long is told as over.
UNSEEN_S: Final = 2.0
NAMED_MAX: Final = 3
# Why one is out, by the reason of its state.
_OUT: Final = {
    "unreachable": "nothing listens at its address, or the network does not lead there",
    "hung": "it accepts requests and answers none",
    "timeout": "it does not answer in time",
    "failing": "it fails the requests that it gets",
    "worse": "it is worse than its peers",
}
Words = tuple[str, tuple[str, ...]]  # a sentence, and what to do, the most useful first


def words(finding: Finding, unseen_s: float = 0.0) -> Words:
    """The sentence and the one or two things to do. `unseen_s`: so long ago it was so last."""
    said = _SAID.get((finding.kind, finding.detail)) or _SAID[finding.kind, ""]
    sentence, remedies = _with_tenant(finding, *said(finding))
    if finding.kind in CALM:
        return sentence, remedies
    if unseen_s >= UNSEEN_S:
        sentence = f"Until {unseen_s:.0f} s ago: {sentence}"
    if finding.missed:
        sentence += f" Missed service levels: {', '.join(each.name for each in finding.missed)}."
    return sentence, remedies


def section(finding: Finding) -> str:
    """The section of the runbook (docs/runbook.md) for a finding. Empty if nothing is wrong."""
    if finding.role in ("waits", *_TAKES):
        return "one-tenant-floods"
    return _SECTIONS.get((finding.kind, finding.detail)) or _SECTIONS.get((finding.kind, ""), "")


def _with_tenant(finding: Finding, sentence: str, remedies: tuple[str, ...]) -> Words:
    if not finding.tenant:
        return sentence, remedies
    limit = f"Limit {finding.tenant} if it should not take so much: tenants[].limits."
    if finding.role == "reads":
        return f"{sentence} Nearly all of them are of tenant {finding.tenant}.", remedies
    if finding.role in _TAKES:
        return f"{sentence} {_TAKES[finding.role]} tenant {finding.tenant}.", (limit, remedies[0])
    return (
        f"{sentence} Nearly all that waits is of tenant {finding.tenant}. Others are served.",
        (limit, remedies[0]),
    )


def _queue(finding: Finding) -> str:
    """How many wait, and for how long."""
    waiting, wait_s = finding.figures.get("waiting", 0.0), finding.figures.get("wait_s", 0.0)
    if waiting >= 1.5:
        return f"{waiting:.0f} requests wait, the first for {wait_s:.1f} s"
    if waiting >= 0.5:
        return f"a request waits for {wait_s:.1f} s"
    return f"prompts wait {wait_s:.1f} s" if wait_s >= 0.1 else "nobody waits now"


def _at(finding: Finding) -> str:
    return f" of {finding.backend}" if finding.backend else ""


def _fine(finding: Finding) -> Words:
    return "Nothing is wrong.", ()


def _missed(finding: Finding) -> Words:
    """One that is missed for hours after its cause needs no other step."""
    named = "; ".join(f"{each.name}: {each.because}" for each in finding.missed[:NAMED_MAX])
    return (
        f"A service level is missed, though nothing waits and no backend stands out. {named}.",
        (
            "See where the time of requests goes: penstock requests (--failed), penstock trace.",
            "Old ones need no step. Models that think before they show a token need more time.",
        ),
    )


def _prefill(finding: Finding) -> Words:
    return (
        f"Compute-bound: engines are busy with prompts, and {_queue(finding)}.",
        ("Add a backend to the pool.", "Limit who sends the most: tenants[].limits."),
    )


def _decode(finding: Finding) -> Words:
    figures = finding.figures
    return (
        f"Compute-bound: a stream gets a token every {1e3 * figures['gap_s']:.0f} ms, because "
        f"engines decode {figures['streams']:.0f} streams.",
        ("Add a backend to the pool.", "Lower --max-num-seqs, so that fewer share an engine."),
    )


def _slow_decode(finding: Finding) -> Words:
    figures = finding.figures
    return (
        f"Compute-bound: a stream gets a token every {1e3 * figures['gap_s']:.0f} ms, although no "
        f"engine decodes more than {figures['most']:.0f} streams. The engines are slow.",
        (
            "Look at the GPUs: clocks, heat, power, other processes.",
            "Look at what was changed in all engines: model, flags, version.",
        ),
    )


def _memory(finding: Finding) -> Words:
    figures = finding.figures
    stopped, used = figures["preemptions"], f"{figures['kv_usage']:.0%}"
    more = f" Engines paused {stopped:.0f} streams for lack of room." if stopped else ""
    if figures["full"]:
        said = f"the KV cache{_at(finding)} is {used} full"
    else:
        said = f"answers under way will need the rest of the KV caches ({used} is used now)"
    return (
        f"Memory-bound: {said}, and {_queue(finding)}.{more}",
        (
            "Cap long answers: admission.degrade, or max_tokens in tenants[].limits.",
            "Add a backend, or room in caches (--gpu-memory-utilization, --kv-cache-dtype fp8).",
        ),
    )


def _api_server(finding: Finding) -> Words:
    return (
        f"Scheduler-bound: {finding.figures['unseen']:.0f} of {finding.figures['sent']:.0f} "
        f"requests that were sent are not in an engine yet, and {_queue(finding)}.",
        ("Give vLLM's API servers more CPU, or run more of them (--api-server-count).",),
    )


def _sequences(finding: Finding) -> Words:
    return (
        f"Scheduler-bound: engines run {finding.figures['running']:.0f} streams and no more, their "
        f"caches have room, and {_queue(finding)}.",
        ("Raise --max-num-seqs.", "Add a backend to the pool."),
    )


def _token_budget(finding: Finding) -> Words:
    figures = finding.figures
    if "prefill_step_tokens" in figures:
        return (
            f"Scheduler-bound: engines compute {figures['prefill_step_tokens']:.0f} prompt tokens "
            f"in a step, where a GPU can do hundreds, and {_queue(finding)}.",
            ("Raise --max-num-batched-tokens.",),
        )
    return (
        f"Scheduler-bound: a step takes {1e3 * figures['step_s']:.0f} ms, hardly more than the "
        f"{1e3 * figures['idle_step_s']:.0f} ms without prompts, and {_queue(finding)}.",
        ("Raise --max-num-batched-tokens.",),
    )


def _requests(finding: Finding) -> Words:
    return (
        f"Waiting in penstock: max_requests is reached, and {_queue(finding)}.",
        ("Raise max_requests of the pool or of its backends.", "Add a backend to the pool."),
    )


def _busy(finding: Finding) -> Words:
    """`share`: of the last 10 s, where nobody waits."""
    share, who = finding.figures.get("share"), finding.backend or "backends"
    said = f"Waiting in penstock: {who} refuse requests for load (429 or 503), and "
    said += f"{_queue(finding)}."
    if share is not None:
        said = f"More is asked for than {who} will take: penstock paused them for {share:.0%} of "
        said += "the last 10 s, after refusals for load (429 or 503)."
    look = "Look at the limit that refuses: the engine's own, or that of a proxy before it."
    return said, (look, "Add a backend to the pool.")


def _choices(finding: Finding) -> Words:
    return (
        f"Waiting in penstock: as many requests with many choices run as may, and "
        f"{_queue(finding)}.",
        ("Ask for fewer choices (n) in a request, or limit max_tokens in tenants[].limits.",),
    )


def _turn(finding: Finding) -> Words:
    return (
        f"Waiting in penstock: others go first, and {_queue(finding)}.",
        (
            "See whose turn it is: penstock status, and GET /api/v1/queue.",
            "Give the class a larger share (share_min), or the tenant a larger weight.",
        ),
    )


def _demand(finding: Finding) -> Words:
    return (
        f"More is asked for than the pool can do: {finding.figures['refused']:.0f} requests were "
        "refused in the last 10 s.",
        ("Add a backend to the pool.",),
    )


def _slow(finding: Finding) -> Words:
    work, times = max(finding.figures.items(), key=itemgetter(1))
    return (
        f"Uneven: for {_WORK[work]} {finding.backend} takes {times:.1f} times as long as its "
        "peers.",
        (f"Drain it (penstock drain {finding.backend}), and look at its {_SUSPECTS[work]}.",),
    )


def _hot(finding: Finding) -> Words:
    return (
        f"Uneven: a request waits {finding.figures['wait_s']:.1f} s at {finding.backend}, and "
        f"{finding.figures['others_s']:.1f} s at its peers.",
        (
            "Look for a session or a prompt that many requests share: penstock requests --backend "
            f"{finding.backend}.",
            "Spread these requests over several sessions, or turn affinity.strict off.",
        ),
    )


def _client(finding: Finding) -> Words:
    return (
        f"Client-bound: {finding.figures['slow']:.0f} of {finding.figures['clients']:.0f} clients "
        "do not read what has come for them. Engines are not the cause.",
        ("Look at the clients, and at the network between them and penstock.",),
    )


def _faulty_client(finding: Finding) -> Words:
    figures = finding.figures
    return (
        f"Client-bound: {figures['failures']:.0f} of {figures['requests']:.0f} attempts failed in "
        "the last 10 s, nearly all for one client. Others are served.",
        ("Look whose requests fail, and how: penstock requests --failed.",),
    )


def _starting(finding: Finding) -> Words:
    figures = finding.figures
    since_s = figures["starting_s"]
    long = f" The longest has been starting for {since_s:.0f} s." if since_s else ""
    if not figures.get("serve", 1.0):
        long += " None serves: requests wait for one, or get 503."
    return (
        f"Starting: {figures['backends']:.0f} of {figures['of']:.0f} backends are not ready, or "
        f"have just begun to serve.{long}",
        (
            "Wait for them. `penstock status` tells what each one lacks.",
            "If starts usually take less time, look at the logs of these backends.",
        ),
    )


def _stalled(finding: Finding) -> Words:
    figures, where = finding.figures, finding.backend or "engines"
    return (
        f"Failing: {figures['streams']:.0f} streams hang: they get a token every "
        f"{figures['gap_s']:.1f} s, and {where} could give them more.",
        ("Look at the logs of engines. Clients are told once probes find that an engine hangs.",),
    )


def _one_fails(finding: Finding) -> Words:
    figures = finding.figures
    return (
        f"Failing: {finding.backend} failed {figures['failures']:.0f} of its last"
        f" {figures['requests']:.0f} requests, in a minute.",
        (
            f"Drain it (penstock drain {finding.backend}), then look at its log.",
            "The reasons are in penstock status, and in `failed` in the access log.",
        ),
    )


def _everywhere(finding: Finding) -> Words:
    figures = finding.figures
    return (
        f"Failing: most requests fail at each of the {figures['of']:.0f} backends: "
        f"{figures['failures']:.0f} attempts in the last 10 s. They probably share a cause.",
        (
            "Send a request to one engine directly, and look at its log.",
            "Look at what they share: the network, the last change of engines or of timeouts.",
        ),
    )


def _failing(finding: Finding) -> Words:
    figures = finding.figures
    if not figures["of"]:
        return (
            "Failing: no backend of the pool is in use: all are drained, or there is none.",
            ("Put one back (penstock ready NAME), or add one.",),
        )
    if not figures["out"]:
        who = f" at {finding.backend}" if finding.backend else ""
        return (
            f"Failing: {figures['failures']:.0f} attempts failed{who} in the last 10 s.",
            ("Look at the reasons: penstock status, and `failed` in the access log.",),
        )
    others = figures.get("others", 0.0)
    more = f" At the others {others:.0f} attempts failed in the last 10 s." if others else ""
    if finding.backend:
        why = _OUT.get(finding.detail, "its log may say why")
        which = f"{finding.backend} is out ({finding.detail}): {why}"
    else:
        which = f"{figures['out']:.0f} of {figures['of']:.0f} backends are out ({finding.detail})"
    serve, resort = figures.get("serve", 0.0), figures.get("resort", 0.0)
    left = f"{serve:.0f} other{'s serve' if serve > 1.0 else ' serves'}, and {_queue(finding)}."
    if not serve:
        left = "What is doubted only still serves." if resort else "None is left to serve."
    return (
        f"Failing: {which}. {left}{more}",
        (f"Look at the log of {finding.backend or 'each of them'}, and restart it.",),
    )


_SECTIONS: Final = {
    (Kind.COMPUTE, ""): "requests-wait",
    (Kind.COMPUTE, "slow_decode"): "one-slow-gpu",
    (Kind.MEMORY, ""): "kv-cache-full",
    (Kind.SCHEDULER, ""): "requests-wait",
    (Kind.WAITING, ""): "requests-wait",
    (Kind.DEMAND, ""): "overload-429",
    (Kind.UNEVEN, ""): "one-slow-gpu",
    (Kind.UNEVEN, "hot"): "requests-wait",
    (Kind.CLIENT, ""): "streams-that-break",
    (Kind.STARTING, ""): "everything-down",
    (Kind.FAILING, ""): "everything-down",
    (Kind.FAILING, "hung"): "hung-engine",
    (Kind.FAILING, "timeout"): "hung-engine",
    (Kind.FAILING, "worse"): "a-new-backend-that-is-worse",
    (Kind.FAILING, "stalled"): "hung-engine",
    (Kind.FAILING, "requests"): "streams-that-break",
    (Kind.FAILING, "backend"): "streams-that-break",
    (Kind.FAILING, "everywhere"): "streams-that-break",
    (Kind.MISSED, ""): "alerts",
}
_SAID: Final[dict[tuple[Kind, str], Callable[[Finding], Words]]] = {
    (Kind.FINE, ""): _fine,
    (Kind.MISSED, ""): _missed,
    (Kind.COMPUTE, "prefill"): _prefill,
    (Kind.COMPUTE, "decode"): _decode,
    (Kind.COMPUTE, "slow_decode"): _slow_decode,
    (Kind.MEMORY, ""): _memory,
    (Kind.SCHEDULER, "api_server"): _api_server,
    (Kind.SCHEDULER, "sequences"): _sequences,
    (Kind.SCHEDULER, "token_budget"): _token_budget,
    (Kind.WAITING, "requests"): _requests,
    (Kind.WAITING, "busy"): _busy,
    (Kind.WAITING, "choices"): _choices,
    (Kind.WAITING, "turn"): _turn,
    (Kind.DEMAND, ""): _demand,
    (Kind.DEMAND, "busy"): _busy,
    (Kind.UNEVEN, "slow"): _slow,
    (Kind.UNEVEN, "hot"): _hot,
    (Kind.CLIENT, ""): _client,
    (Kind.CLIENT, "fails"): _faulty_client,
    (Kind.STARTING, ""): _starting,
    (Kind.FAILING, ""): _failing,
    (Kind.FAILING, "backend"): _one_fails,
    (Kind.FAILING, "everywhere"): _everywhere,
    (Kind.FAILING, "stalled"): _stalled,
}
