"""Every metric family: its kind, labels and unit, what it is, and when to look at it.

The HELP texts of /metrics and the metrics reference of the documentation come from this table.
"""

from typing import Final

from penstock.proxy.telemetry.backend_family_table import BACKEND_FAMILIES
from penstock.proxy.telemetry.family import Family
from penstock.proxy.telemetry.route_table import ROUTE_FAMILIES
from penstock.proxy.telemetry.slo_table import SLO_FAMILIES

FAMILIES: Final = {
    "build": Family(
        "info",
        ("version", "build"),
        "always 1",
        "The running version and build.",
        "After a rollout: do all instances run the same version? Is each compiled?",
    ),
    "requests": Family(
        "counter",
        ("pool", "backend", "code"),
        "requests",
        "Finished requests.",
        "First, always: users notice the share of 5xx and 429. A single backend with many more"
        " errors than the others is at fault itself.",
    ),
    "prompt_tokens": Family(
        "counter",
        ("pool",),
        "tokens",
        "Prompt tokens, as the backends reported them.",
        "For capacity planning: the prefill work of a pool.",
    ),
    "completion_tokens": Family(
        "counter",
        ("pool",),
        "tokens",
        "Generated tokens, as the backends reported them.",
        "For capacity planning: the decode work of a pool.",
    ),
    "cached_tokens": Family(
        "counter",
        ("pool",),
        "tokens",
        "Prompt tokens that the backends found in their prefix cache. Backends report them only if"
        " they are started with --enable-prompt-tokens-details.",
        "When the time to first token grows: divide it by `penstock_prompt_tokens_total`. A falling"
        " share means that sessions lose their cache.",
    ),
    "request_duration_seconds": Family(
        "histogram",
        ("pool",),
        "seconds",
        "Time from the head of a request to the end of its answer.",
        "With long answers it is mostly decode time. Compare it with itself a day before.",
    ),
    "time_to_first_token_seconds": Family(
        "histogram",
        ("pool",),
        "seconds",
        "Time from the head of a streamed request to its first token.",
        "Users feel this figure. When it grows, look at `penstock_backend_queued_prefill_tokens`.",
    ),
    "time_to_first_token_by_prompt_seconds": Family(
        "histogram",
        ("pool", "prompt"),
        "seconds",
        "Time from the head of a streamed request to its first token, by how long its prompt is.",
        "When the time to first token grows: do only long prompts wait?",
    ),
    "inter_token_latency_seconds": Family(
        "histogram",
        ("pool",),
        "seconds",
        "Time between two events of a stream.",
        "When streams stutter: compare it with `penstock_event_loop_lag_seconds`. If that is small,"
        " the engines decode slowly.",
    ),
    **BACKEND_FAMILIES,
    "attempts": Family(
        "counter",
        ("reason",),
        "attempts",
        "Attempts to have a request served, by how they ended.",
        "When 502 or 504 appear: the reasons say how the backends fail.",
    ),
    "affinity": Family(
        "counter",
        ("result",),
        "requests",
        "Requests by whether the backend of their session or stored response served them.",
        "When the share of cached tokens falls: many spills mean that sessions move.",
    ),
    **ROUTE_FAMILIES,
    "newcomers": Family(
        "counter",
        ("pool", "outcome"),
        "backends",
        "New backends that were judged beside their peers, by what became of them.",
        "Alert on `worse`: such a backend is ejected, and `penstock status` says why.",
    ),
    "client_aborts": Family(
        "counter",
        ("phase",),
        "requests",
        "Requests whose client left early, by how far they were.",
        "Many in `prefill` mean that clients lose patience before the first token.",
    ),
    "stream_failures": Family(
        "counter",
        ("reason",),
        "streams",
        "Streams that broke after their first token.",
        "When clients report incomplete answers: engines die or are killed under running streams.",
    ),
    "shed": Family(
        "counter",
        ("reason", "priority"),
        "requests",
        "Requests that were refused, and answers given up midway, because the proxy was at a limit"
        " of its own.",
        "When clients get 429 with the code `overloaded`: the reason names the limit.",
    ),
    "degraded": Family(
        "counter",
        ("action",),
        "requests",
        "Requests of which something was cut, that were refused for their length or sent to a"
        " fall-back, by a step of `admission.degrade`.",
        "When users report short answers: how many are cut?",
    ),
    "overhead_seconds": Family(
        "histogram",
        (),
        "seconds",
        "Time from the last byte of a request to its sending to a backend.",
        "When you doubt the proxy. It includes connecting, so look at the network to the backends"
        " first.",
    ),
    "event_loop_lag_seconds": Family(
        "histogram",
        (),
        "seconds",
        "Delay of a timer that is due four times a second.",
        "When all streams stutter at once. Above 25 ms the proxy lacks CPU.",
    ),
    "token_estimate_error_ratio": Family(
        "histogram",
        (),
        "ratio",
        "Estimated prompt tokens divided by reported prompt tokens.",
        "When the choice of backends looks wrong. Values far from 1 are wrong estimates.",
    ),
    "clients": Family(
        "gauge",
        (),
        "connections",
        "Open client connections.",
        "When connections are refused: compare it with `limits.connections`.",
    ),
    "tasks": Family(
        "gauge",
        (),
        "tasks",
        "Tasks on the event loop, counted every five seconds.",
        "When memory grows. If it grows while `penstock_clients` does not, tasks leak.",
    ),
    "overload": Family(
        "gauge",
        ("reason",),
        "0 or 1",
        "1 while new requests are refused for this reason.",
        "When clients get 429. Running requests go on.",
    ),
    "queue_wait_seconds": Family(
        "histogram",
        ("priority",),
        "seconds",
        "Time that requests waited in the proxy, of those that had to wait.",
        "When first tokens come late: how much of it is the queue before the backends?",
    ),
    "predicted_wait_error_ratio": Family(
        "histogram",
        (),
        "ratio",
        "Predicted divided by true time to the first token of streams that waited in the proxy and"
        " came to their first token at the first attempt.",
        "When requests are refused too early or too late. Most far above 1: refusals that need not"
        " be. Most far below 1: clients wait in vain.",
    ),
    "admitted": Family(
        "counter",
        ("priority", "waited"),
        "requests",
        "Requests that admission let through to a backend.",
        "When first tokens come late: which share of a class had to wait? Compare it with"
        " `penstock_shed_total`.",
    ),
    "queued_requests": Family(
        "gauge",
        ("priority",),
        "requests",
        "Requests that wait in the proxy for room at a backend.",
        "Above zero for minutes in a class that shall not wait, the fleet is too small.",
    ),
    "queued_tokens": Family(
        "gauge",
        ("priority",),
        "tokens",
        "Prompt tokens to prefill of the requests that wait in the proxy.",
        "For autoscaling: work that no backend has yet.",
    ),
    "bottleneck": Family(
        "gauge",
        ("pool", "kind"),
        "",
        "1 for the kind of the pool's verdict, 0 for all others.",
        'Alert on `penstock_bottleneck{kind!~"fine|missed"} == 1`: service levels have their own.',
    ),
    "held_requests": Family(
        "gauge",
        ("pool",),
        "requests",
        "Requests that wait until a backend of their pool can serve (`hold_for_backend_s`).",
        "For autoscaling from zero: whoever starts backends needs no other signal.",
    ),
    "held_tokens": Family(
        "gauge",
        ("pool",),
        "tokens",
        "Prompt tokens of these requests.",
        "For autoscaling: how many backends to start.",
    ),
    "pressure": Family(
        "gauge",
        ("pool", "priority"),
        "ratio",
        "The predicted wait of the client that would wait longest, over the wait at which its"
        " requests are refused.",
        "Before you choose steps of `admission.degrade`, and for autoscaling. At 1 refusals begin.",
    ),
    "tenant_requests": Family(
        "counter",
        ("tenant", "model"),
        "requests",
        "Requests of a tenant that a backend answered. Off loopback only with a token.",
        "Who sends the most?",
    ),
    "tenant_tokens": Family(
        "counter",
        ("tenant", "model", "kind"),
        "tokens",
        "Tokens of a tenant's requests, as the backends counted them, or as penstock saw them where"
        " they did not. Off loopback only with a token.",
        "Whose budget must grow, and for bills. Where the backends counted, prompt tokens include"
        " the cached ones.",
    ),
    "rate_limited": Family(
        "counter",
        ("tenant",),
        "requests",
        "Requests of a tenant that were refused for its budget. Off loopback only with a token.",
        "Whose budget is too small, or who does not heed Retry-After.",
    ),
    "cost": Family(
        "counter",
        ("pool",),
        "currency of `cost_per_hour`",
        "What the backends of the pool cost since the start, idle or not. Off loopback only"
        " with a token.",
        "For bills. Over the sum of `penstock_prompt_tokens_total` and"
        " `penstock_completion_tokens_total` it is the price since the start.",
    ),
    "cost_per_1k_tokens": Family(
        "gauge",
        ("pool",),
        "currency of `cost_per_hour`",
        "Cost of the last 10 minutes, or since the start if that is less, for 1,000 prompt and"
        " completion tokens of requests that ended in that time. Off loopback only with a"
        " token.",
        "When you compare pools, or idle hours with busy ones. Without tokens there is no sample.",
    ),
    "config_reload_success": Family(
        "gauge",
        (),
        "0 or 1",
        "1 when the last configuration that was read is in use.",
        "After each reload. At 0 the configuration before it is still in use.",
    ),
    "config_reload_success_timestamp_seconds": Family(
        "gauge",
        (),
        "Unix time",
        "When the configuration in use was read.",
        "After a rollout of a configuration: did this instance read it?",
    ),
    "certificate_expiry_timestamp_seconds": Family(
        "gauge",
        ("use", "pool"),
        "Unix time",
        "When a certificate of penstock's own ends, with those that sign it in the same file.",
        "Alert two weeks before. A renewed file counts after a reload.",
    ),
    "tls_handshakes_failed": Family(
        "counter",
        (),
        "connections",
        "Connections to the data port that ended before TLS was agreed on.",
        "After a certificate was renewed: clients may not trust it.",
    ),
    "access_lines_dropped": Family(
        "counter",
        (),
        "lines",
        "Lines of the access log that were dropped because its reader was too slow.",
        "When requests are missing from the access log.",
    ),
    "log_lines_dropped": Family(
        "counter",
        (),
        "lines",
        "Lines of the log (stderr) that were dropped because nobody read it in time.",
        "When what you look for is missing from the log.",
    ),
    "trace_spans": Family(
        "counter",
        ("result",),
        "spans",
        "Spans of recorded requests and their attempts, by what became of them.",
        "When traces are missing. With tracing all is well while only `sent` grows.",
    ),
    "traces_capped": Family(
        "counter",
        (),
        "requests",
        "Requests whose client asked for a trace by the sampled flag, beyond"
        " `tracing.forced_ratio` or `tracing.forced_per_minute`. They were not recorded.",
        "When a client misses its traces.",
    ),
    **SLO_FAMILIES,
}
