"""Every metric family: its kind, labels and unit, what it is, and when to look at it.

The HELP texts of /metrics and the metrics reference of the documentation come from this table.
"""

from typing import Final

from penstock.proxy.telemetry.family import Family
from penstock.proxy.telemetry.slo_table import SLO_FAMILIES, SLO_LABELS

# What each label holds, and how many values it can have.
LABELS: Final = {
    "pool": "The name of a pool in the configuration (at most 256). Empty when a request reached no"
    " pool.",
    "backend": "The name of a backend in the configuration. Empty when a request reached no"
    " backend.",
    "code": "The HTTP status of the answer. 499: the client left before the answer began.",
    "state": "`starting`, `ready`, `suspect`, `ejected` or `warming`.",
    "admin_state": "`ready`, `drain` or `maint`.",
    "result": "`hit`: the backend of the session, or of the stored response, served the request."
    " `spill`: another backend did. `miss`: the pool's policy uses session keys, and the request"
    " had no key or a new one.",
    "phase": "`body`: before the body was whole. `queued`: before a backend was chosen. `connect`:"
    " while connecting to it. `prefill`: before the first token. `decode`: after it. `unsent`: the"
    " whole answer was written to the connection, but the client did not read it all.",
    "priority": "A class of `admission.classes`. `0` where no class counts.",
    "waited": "`yes`: it waited in the proxy. `no`: it was sent at once.",
    "tenant": "The name of a tenant in the configuration.",
    "model": "A model that its backend lists. `other`: any other name, or more than 256 models.",
    "action": "`max_tokens`: the answer was given fewer tokens. `prompt_tokens`: the prompt was too"
    " long for now.",
    "kind": "Of tokens: `prompt`, `cached` (a part of `prompt`) or `completion`. Of a bottleneck: a"
    " kind of docs/verdict.md.",
    "version": "The version of penstock.",
    "build": "`compiled`, or `interpreted`, which costs up to two and a half times the CPU.",
    **SLO_LABELS,
}
# The values of the label `reason`. Each family has a list of its own.
REASONS: Final = {
    "attempts": "`ok`: the answer was passed on, whatever its status. `connect`, `refused`: no"
    " connection. `ports`: no local port was left. `reset`, `cut`, `dropped`: the connection ended"
    " before or during the answer. `timeout`: `timeouts.first_byte_s` was over. `status`: 502 or"
    " 504. `busy`: 503. `internal`: 500. `draining`: the backend shuts down. `aborted`: it gave the"
    " request up."
    " `engine_dead`: its engine died. `malformed`: no valid HTTP. `empty`, `no_events`: a stream"
    " without a token. `refusing`: a 4xx that other backends do not give, or a refusal of the"
    " pool's key. `not_here`: it does not hold the stored response. `out_of_time`:"
    " `timeouts.total_s` was over. `client_timeout`: the client's own time was over. `poison`:"
    " refused because engines died of this request. `over_budget`: not retried because too many"
    " requests were being retried. After the first token also `idle`, `unfinished`, `error_event`,"
    " `abort` and `total`, as in `penstock_stream_failures_total`. At most 256 values.",
    "stream_failures": "`reset`, `cut`, `dropped`, `malformed`: the connection ended or its bytes"
    " were no valid HTTP. `idle`: no byte for `timeouts.idle_s`. `unfinished`: it ended without"
    " its last event. `no_events`: it sent bytes but no events. `error_event`, `abort`: the backend"
    " gave up. `total`: `timeouts.total_s` was over. `refused`: the backend ended the stream with"
    " an error that the request itself caused. At most 256 values.",
    "shed": "`connections`, `bodies`, `memory`, `lag` or `descriptors`. `unread`: an answer that"
    " its client did not read was given up. `wait`: its first token would have come too late for"
    " its class, `deadline`: for the time that its client allows. `budget`: its tenant has used up"
    " a budget.",
    "overload": "`lag` or `memory`.",
}

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
    "inter_token_latency_seconds": Family(
        "histogram",
        ("pool",),
        "seconds",
        "Time between two events of a stream.",
        "When streams stutter: compare it with `penstock_event_loop_lag_seconds`. If that is small,"
        " the engines decode slowly.",
    ),
    "backend_queued_prefill_tokens": Family(
        "gauge",
        ("backend",),
        "tokens",
        "Prompt tokens of requests without a first token yet, less what the backend's cache should"
        " hold.",
        "When the time to first token grows. One backend far above the others is slow. All of them"
        " high: the fleet is too small.",
    ),
    "backend_active_decode_tokens": Family(
        "gauge",
        ("backend",),
        "tokens",
        "Prompt and generated tokens of requests that are past their first token.",
        "When tokens come slowly, and before a KV cache is full.",
    ),
    "backend_requests_in_flight": Family(
        "gauge",
        ("backend",),
        "requests",
        "Requests for which the backend was chosen and that have not ended.",
        "While a backend drains: it is free at 0.",
    ),
    "backend_can_serve": Family(
        "gauge",
        ("backend",),
        "0 or 1",
        "1 when new requests may be sent to the backend.",
        "First, in an outage. A sum of 0 means that every request gets 503.",
    ),
    "backend_state": Family(
        "gauge",
        ("backend", "state"),
        "0 or 1",
        "1 for the health state of the backend, 0 for the others.",
        "When `penstock_backend_can_serve` is 0. `penstock status` adds the reason.",
    ),
    "backend_admin_state": Family(
        "gauge",
        ("backend", "admin_state"),
        "0 or 1",
        "1 for the state that the operator has set, 0 for the others.",
        "When a healthy backend gets no requests: somebody may have forgotten a drain.",
    ),
    "backend_engine_running": Family(
        "gauge",
        ("backend",),
        "requests",
        "Requests in the engine's batch, as its own metrics say.",
        "When it is above `penstock_backend_requests_in_flight`: somebody uses the engine without"
        " this proxy. It can be some seconds old, and says nothing about an ejected backend.",
    ),
    "backend_engine_waiting": Family(
        "gauge",
        ("backend",),
        "requests",
        "Requests that wait in the engine, as its own metrics say.",
        "When it stays above 0: the engine's KV cache or batch is full.",
    ),
    "backend_kv_usage_ratio": Family(
        "gauge",
        ("backend",),
        "ratio, 0 to 1",
        "Share of the engine's KV cache in use, as its own metrics say.",
        "When it stays near 1: the engine makes requests wait, or preempts them.",
    ),
    "backend_kv_capacity_tokens": Family(
        "gauge",
        ("backend",),
        "tokens",
        "Size of the engine's KV cache, as its own metrics say.",
        "When backends of one pool behave differently: are they configured alike?",
    ),
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
        "Requests of which something was cut, or that were refused for their length, by a step of"
        " `admission.degrade`.",
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
        'Alert on `penstock_bottleneck{kind!="fine"} == 1`.',
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
    "config_reload_success": Family(
        "gauge",
        (),
        "0 or 1",
        "1 when the last configuration that was read is in use.",
        "After each reload. At 0 the configuration before it is still in use.",
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
    **SLO_FAMILIES,
}
