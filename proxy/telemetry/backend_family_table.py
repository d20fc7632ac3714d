"""The metric families of single backends. `family_table` has all families."""

from typing import Final

from penstock.proxy.telemetry.family import Family

BACKEND_FAMILIES: Final = {
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
        ("pool", "backend"),
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
    "backend_engine_waiting_by_reason": Family(
        "gauge",
        ("backend", "reason"),
        "requests",
        "Requests that wait in the engine, by what they wait for, as its own metrics say.",
        "When requests wait in an engine: is its KV cache or batch full, or is it something else?",
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
    "backend_preemptions": Family(
        "counter",
        ("backend",),
        "preemptions",
        "Times that the engine took the room of a running request for another one, as its own"
        " metrics say.",
        "When tokens stop for seconds: the KV cache is too small for what is sent there.",
    ),
    "backend_engine_prompt_tokens": Family(
        "counter",
        ("backend",),
        "tokens",
        "Prompt tokens that the engine took in, with those in its cache, as its own metrics say.",
        "Against `penstock_prompt_tokens_total`: does somebody use the engine without this proxy?",
    ),
    "backend_engine_steps": Family(
        "counter",
        ("backend",),
        "steps",
        "Steps that the engine made, as its own metrics say.",
        "Divide the tokens below by it: that is the mean size of a step.",
    ),
    "backend_engine_step_tokens": Family(
        "counter",
        ("backend",),
        "tokens",
        "Tokens of all these steps, of prompts and answers.",
        "Few tokens in each step: the GPU reads all weights for little work, and fewer backends"
        " would do.",
    ),
    "backend_prefix_queries_tokens": Family(
        "counter",
        ("backend",),
        "tokens",
        "Prompt tokens that the engine looked for in its prefix cache, as its own metrics say.",
        "With the next one: the hit rate is their quotient.",
    ),
    "backend_prefix_hits_tokens": Family(
        "counter",
        ("backend",),
        "tokens",
        "Prompt tokens that the engine found in its prefix cache, as its own metrics say.",
        "When one backend finds far less than the others: it restarted, or its sessions were"
        " moved.",
    ),
    "backend_prefill_tokens_per_second": Family(
        "gauge",
        ("backend",),
        "tokens per second",
        "Measured speed of prefill for short prompts.",
        "When first tokens come late at one backend.",
    ),
    "backend_decode_step_seconds": Family(
        "gauge",
        ("backend",),
        "seconds",
        "Measured time from one token to the next, at the usual number of held tokens.",
        "When tokens come slowly at one backend.",
    ),
    "backend_slowness_ratio": Family(
        "gauge",
        ("backend", "work"),
        "ratio",
        "How many times as long as the median of the others in its pool, or of some 31 of them, the"
        " backend takes, where that was measured lately.",
        "Above 1.5 for long: look at its GPU's clocks, its heat and its neighbours. Small"
        " differences count as 1.",
    ),
    "backend_cold_start_seconds": Family(
        "gauge",
        ("backend",),
        "seconds",
        "Time of the last start of its server: from the first sign of it to the first token for"
        " a request.",
        "Before you scale to zero: how long will users wait? It holds the wait for a request, too.",
    ),
    "backend_gpu_floor_seconds": Family(
        "counter",
        ("backend",),
        "seconds",
        "Time in which the backend did nothing while requests of its pool waited.",
        "When you pay for GPUs and users wait: growing, it shows the backend that is left out."
        " Is it slow, at `max_requests`, or of another model?",
    ),
    "backend_gpu_utilization_ratio": Family(
        "gauge",
        ("backend",),
        "ratio, 0 to 1",
        "Mean share of time in which its GPUs computed, as `gpu_metrics_url` tells.",
        "Below 0.1 with requests in flight: the engine hangs or waits for something else.",
    ),
    "backend_gpu_memory_used_bytes": Family(
        "gauge",
        ("backend",),
        "bytes",
        "Memory of its GPUs in use, as `gpu_metrics_url` tells.",
        "When an engine dies without a word: was the memory full?",
    ),
    "backend_gpu_memory_free_bytes": Family(
        "gauge",
        ("backend",),
        "bytes",
        "Free memory of its GPUs, as `gpu_metrics_url` tells.",
        "Much of it: the engine may have a larger KV cache.",
    ),
    "backend_attempts": Family(
        "counter",
        ("pool", "backend", "reason"),
        "attempts",
        "Attempts at the backend, by how they ended.",
        "When `penstock_attempts_total` shows failures: which backend has them?",
    ),
    "backend_routed": Family(
        "counter",
        ("pool", "backend", "reason"),
        "requests",
        "Requests that ended at the backend, by why it was chosen.",
        "When a backend has too many or too few requests.",
    ),
    "backend_request_duration_seconds": Family(
        "histogram",
        ("pool", "backend", "model"),
        "seconds",
        "Time from the head of a request to the end of its answer, by its last backend.",
        "Compare the backends of a pool with each other.",
    ),
    "backend_time_to_first_token_seconds": Family(
        "histogram",
        ("pool", "backend", "model"),
        "seconds",
        "Time from the head of a streamed request to its first token, by its last backend.",
        "When first tokens come late: is it one backend, or one model?",
    ),
    "backend_inter_token_latency_seconds": Family(
        "histogram",
        ("pool", "backend", "model"),
        "seconds",
        "Time between two events of a stream.",
        "When streams stutter: is it one backend?",
    ),
}
