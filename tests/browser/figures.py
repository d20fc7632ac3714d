"""Snapshots that are made up: a fleet of any size, in any trouble."""

from math import sin
from typing import Any

AT_S = 1_795_699_000.0
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</td><script>document.title='owned'</script>",
    "\u202eright to left",
    "x" * 300,
    "'\"&amp;{{7*7}}`${1}`",
)


def backend(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": f"gpu-{number}",
        "pool": "chat" if number % 3 else "embed",
        "state": "ready",
        "reason": "",
        "admin_state": "ready",
        "removed": False,
        "can_serve": True,
        "share": 1.0,
        "requests_in_flight": number % 23,
        "queued_prefill_tokens": number * 733 % 50_000,
        "active_decode_tokens": number * 3_331 % 180_000,
        "streams": number % 19,
        "requests_total": 1_000 + number,
        "prefill_tokens_per_s": 11_000,
        "token_ms": 21.0,
        "slower": 1.0 + (number % 17) / 50,
        "slower_in": "decode",
        "verdict": None,
        "lately": lately(ttft_p95_s=0.2 + (number % 13) / 9),
        "engine": {
            "running": number % 24,
            "waiting": number % 5,
            "kv_usage": number * 37 % 93 / 100,
            "prefix_hit_rate": (number * 7 % 80) / 100,
        },
    } | fields


def lately(**fields: Any) -> dict[str, Any]:
    return {"first_tokens": 20, "ttft_p95_s": 0.4, "failures": 0, "last_failure": None} | fields


def fleet(count: int) -> list[dict[str, Any]]:
    """One of each state among them, if there are enough."""
    found = [backend(number) for number in range(count)]
    if count >= 12:
        failure = {"reason": "connect", "age_s": 40.0}
        gone = {"state": "ejected", "reason": "unreachable", "can_serve": False, "engine": None}
        found[6] |= gone | {
            "slower": None,
            "slower_in": None,
            "lately": lately(failures=12, last_failure=failure),
        }
        found[3] |= {"verdict": "memory"}
        found[4] |= {"slower": 3.4, "slower_in": "prefill"}
        found[5] |= {"lately": lately(failures=4, last_failure={"reason": "timeout", "age_s": 3.0})}
        found[8] |= {"admin_state": "drain", "can_serve": False}
        found[10] |= {"admin_state": "maint", "can_serve": False, "engine": None}
        found[11] |= {"state": "warming", "share": 0.4}
    return found


def verdict(kind: str = "fine", pool: str = "chat", **fields: Any) -> dict[str, Any]:
    return {
        "pool": pool,
        "kind": kind,
        "detail": None,
        "backend": None,
        "tenant": None,
        "sentence": "Nothing is wrong.",
        "to_do": [],
        "runbook": None,
        "since": AT_S - 400.0,
        "for_s": 400.0,
        "figures": {},
    } | fields


MEMORY = verdict(
    "memory",
    backend="gpu-3",
    sentence="Memory-bound: the KV cache of gpu-3 is 97% full, and 12 requests wait, the first for"
    " 4.2 s. Engines stopped 3 streams for lack of room.",
    to_do=[
        "Cap long answers: admission.degrade, or max_tokens in tenants[].limits.",
        "Add a backend, or room in caches (--gpu-memory-utilization, --kv-cache-dtype fp8).",
    ],
)
OUT = verdict(
    "failing",
    "embed",
    backend="gpu-6",
    sentence="Failing: gpu-6 is out (unreachable): nothing listens at its address, or the network"
    " does not lead there. New requests go to 3 others. Answers that had begun before may break."
    " Missed service levels:"
    " availability.",
    to_do=["Look at the log of gpu-6, and restart it."],
)


BECAUSE = (
    "48 of 1,200 requests of the last 1h were bad, and use up its error budget 18 times too fast"
)


def slo(
    name: str, state: str, left: float, burn: float, pool: str | None, cls: str | None
) -> dict[str, Any]:
    timed = name.endswith("p95")
    return {
        "pool": pool,
        "class": cls,
        "slo": name,
        "state": state,
        "because": None if state == "ok" else BECAUSE,
        "objective": 0.95,
        "targets_s": {"ttft": 0.5} if timed else {},
        "measured_s": 0.42 if timed else None,
        "requests": 5_000,
        "bad": 10,
        "budget_left": left,
        "windows": {"5m": {"burn_rate": burn}, "1h": {"burn_rate": burn}, "3d": {"burn_rate": 1.1}},
    }


def rate(share: float, at_s: float, **fields: Any) -> dict[str, Any]:
    return {
        "requests_per_s": 12.4 * share,
        "prompt_tokens_per_s": 18_400 * share + 900 * sin(at_s / 60),
        "answer_tokens_per_s": 3_120 * share + 300 * sin(at_s / 90),
        "refused_per_s": 0.4 * share,
        "failed_per_s": 0.0,
        "streams": 700,
        "ttft_p50_s": 0.31 * share + 0.05 * sin(at_s / 40),
        "ttft_p95_s": 1.42 * share + 0.3 * sin(at_s / 55),
        "ttft_mean_s": 0.5,
        "parts": {
            "client": 0.01, "penstock": 0.002, "queue": 0.21 * share,
            "failed": 0.02, "connect": 0.004, "engine": 0.3,
        },
        "cost_per_hour": 14.0,
        "cost_per_1k_tokens": 0.0021,
    } | fields  # fmt: skip


def past(seconds: int) -> dict[str, Any]:
    """What was before, up to AT_S + seconds."""
    times = [AT_S + at for at in range(0, seconds, 4)]
    rates = [rate(1.4, at_s) for at_s in times]
    names = ("answer_tokens_per_s", "prompt_tokens_per_s", "ttft_p50_s", "ttft_p95_s")
    columns = [times, *[[each[name] for each in rates] for name in names]]
    over = {"pool": "chat", "kind": "uneven", "backend": "gpu-4", "tenant": None}
    told = {"sentence": "Uneven: for a token gpu-4 takes 3.4 times as long as its peers."}
    span = {"since": AT_S - 3_000, "until": AT_S - 2_400}
    return {"seconds": columns, "minutes": [[]] * 5, "verdicts": [over | told | span]}


def request(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"request-{number}",
        "trace_id": None,
        "state": "ended",
        "began": "2026-11-26T13:16:40.000Z",
        "ago_s": 3.0 + number,
        "tenant": "research",
        "class": "standard",
        "model": "llama",
        "pool": "chat",
        "backend": f"gpu-{number}",
        "attempts": 1,
        "stream": True,
        "status": 200,
        "error": None,
        "whole": True,
        "failed": False,
        "duration_ms": 9_000.0 - 300 * number,
        "ttft_ms": 1_400.0 - 50 * number,
        "prompt_tokens": 3_000,
        "cached_tokens": 1_200,
        "completion_tokens": 300,
    } | fields


def tenant(name: str, share: float, refused: int) -> dict[str, Any]:
    return {
        "name": name,
        "class": "standard",
        "weight": 1.0,
        "models": [],
        "budgets": [
            {"limit": "tokens_per_day", "allowed": 1_000_000, "left": 310_000, "full_in_s": 60.0}
        ],
        "refused": refused,
        "given_tokens": round(90_000 * share),
        "given_share": share,
        "waiting_requests": round(30 * share),
        "waiting_tokens": 4_000,
    }


ERRORS = ("backend_error", "backend_timeout", "overloaded", "stream_broken", "no_backend")


def snapshot(count: int = 12, **fields: Any) -> dict[str, Any]:
    """A fleet that has all kinds of trouble."""
    at_s = fields.pop("at", AT_S)
    backends = fleet(count)
    return {
        "at": at_s,
        "version": "0.1.0",
        "proxy": {
            "version": "0.1.0", "build": "compiled", "state": "ready", "since": AT_S - 9_000,
            "up_s": 9_000.0, "open_requests": 41, "lag_ms": 0.6, "overload": None,
            "refused_lately": {"wait": 9}, "last_reload": None, "reload_failed": [],
            "needs_restart": [], "waiting": {}, "slo_alarms": 2, "former": [],
        },
        "verdicts": [MEMORY, OUT, verdict(pool="rerank")],
        "canaries": [
            {"route": "versions", "pool": "chat-next", "stage": "rolled_back", "percent": 0}
            | {"why": "worse: errors 2.1 % of 480"}
        ],
        "slos": [
            slo("ttft_p95", "ok", 0.92, 0.2, "chat", "interactive"),
            slo("error_rate", "warning", 0.31, 3.1, "chat", "batch"),
            slo("availability", "critical", -0.4, 18.4, "embed", None),
        ],
        "queue": {
            "enabled": True,
            "classes": [
                {"name": "interactive", "requests": 3, "tokens": 4_100,
                 "next": {"waited_s": 1.2, "waits_for": "kv_cache", "backend": "gpu-3"}},
                {"name": "standard", "requests": 41, "tokens": 182_000,
                 "next": {"waited_s": 4.2, "waits_for": "kv_cache", "backend": "gpu-3"}},
                {"name": "batch", "requests": 0, "tokens": 0, "next": None},
            ],
            "pools": [
                {"pool": "chat", "waiting": 44, "next": [],
                 "pressure": {"interactive": 0.3, "standard": 0.72, "batch": 1.1}},
            ],
            "tenants": [
                {"name": "research", "requests": 30}, {"name": "partner", "requests": 9},
                {"name": None, "requests": 5},
            ],
        },
        "rates": {"chat": rate(1.0, at_s), "embed": rate(0.4, at_s, parts={"engine": 0.1})},
        "tenants": [tenant("research", 0.62, 12), tenant("partner", 0.3, 0)],
        "requests": {
            "slow": [request(number) for number in range(20)],
            "failed": [
                request(number, status=502, failed=True, whole=False, error=error, ttft_ms=None)
                for number, error in enumerate(ERRORS)
            ],
        },
        "backends": backends,
    } | fields  # fmt: skip


EMPTY = snapshot(
    0,
    verdicts=[],
    slos=[],
    canaries=[],
    rates={},
    tenants=[],
    queue={"enabled": False, "classes": [], "pools": [], "tenants": []},
    requests={"slow": [], "failed": []},
)
PARTS = [
    request(1)
    | {
        "reason": "cost",
        "overhead_ms": 0.4,
        "degraded": None,
        "client_behind_ms": 0.0,
        "failures": [{"backend": "gpu-7", "reason": "cost", "failure": "connect"}],
        "parts": [
            {"part": "receive", "ms": 12.0, "backend": None, "why": None},
            {"part": "choose", "ms": 0.3, "backend": None, "why": None},
            {"part": "queue", "ms": 610.0, "backend": None, "why": "kv_cache"},
            {"part": "failed", "ms": 140.0, "backend": "gpu-7", "why": "connect"},
            {"part": "connect", "ms": 1.1, "backend": "gpu-1", "why": None},
            {"part": "head", "ms": 30.0, "backend": "gpu-1", "why": None},
            {"part": "prefill", "ms": 560.0, "backend": "gpu-1", "why": None},
            {"part": "decode", "ms": 7_300.0, "backend": "gpu-1", "why": None},
        ],
    }
]
