"""The metric families of service levels, and their labels. `family_table` has all others."""

from typing import Final

from penstock.proxy.telemetry.family import Family

SLO_LABELS: Final = {
    "slo": "`ttft_p95` and the like, `availability`, `error_rate` or `goodput`. `pool` and"
    " `priority` are `*` where it is for all.",
    "window": "`5m`, `30m`, `1h`, `6h` or `3d`: those that are within `window_s`.",
    "verdict": "`good` or `bad`.",
}

SLO_FAMILIES: Final = {
    "slo_compliance_ratio": Family(
        "gauge",
        ("pool", "priority", "slo"),
        "ratio, 0 to 1",
        "Share of good requests over the window of the SLO (`window_s`), since the start at most.",
        "When a service level is reported. `docs/slo.md` says which requests are good.",
    ),
    "slo_burn_rate": Family(
        "gauge",
        ("pool", "priority", "slo", "window"),
        "ratio",
        "Share of bad requests, over the share that may be bad.",
        "At 1 the error budget lasts exactly for its time. At 14 it is gone in two of 30 days.",
    ),
    "slo_state": Family(
        "gauge",
        ("pool", "priority", "slo"),
        "0, 1 or 2",
        "0: met. 1: warning, 80 % of a target or of the error budget is used. 2: critical, it is"
        " missed or used up.",
        "On a dashboard. `penstock status` tells the same in words.",
    ),
    "slo_requests": Family(
        "counter",
        ("pool", "priority", "slo", "verdict"),
        "requests",
        "Requests that count for an SLO, by whether they were good.",
        "The alerts of `penstock alerts` go by it: sums over replicas and restarts stay right.",
    ),
}
