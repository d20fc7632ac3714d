"""The board of single backends: which one differs from its peers, and in what."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import units

from docs.boards.board import ANY, BACKENDS, MODELS, POOLS, Panels, board, choice
from docs.boards.panels import limit, lines, percentile, rows, timeline
from docs.boards.parts import TOKENS, TOKENS_A_SECOND, Column, Query
from docs.boards.words import STATES, numbered

BACKEND = 'backend=~"$backend"'
MODEL = f'{BACKEND}, model=~"$model"'
RATE = "[$__rate_interval]"
SLOW = limit("PenstockBackendSlow")


def engines() -> dashboard.Dashboard:
    """The board, with all its panels."""
    choices = (
        choice("pool", POOLS, "Pools of the configuration.", ANY),
        choice("backend", BACKENDS, "Backends of these pools."),
        choice("model", MODELS, "Models, for the latencies.", ANY),
    )
    text = "Each backend beside its peers: state, speed, queue, cache, hits, failures and GPU."
    parts = (_at_a_glance, _outages, _speed, _latencies, _load, _tokens, _cache, _failures, _gpus)
    return board("engines", "engines", text, choices, *(part() for part in parts))


def one(metric: str) -> str:
    """What an engine tells: replicas of penstock read the same."""
    return f"max by (backend) ({metric}{{{BACKEND}}})"


def summed(metric: str) -> str:
    """What replicas of penstock count, each for itself."""
    return f"sum by (backend) ({metric}{{{BACKEND}}})"


def counted(metric: str) -> str:
    """How fast an engine's own counter grows."""
    return f"max by (backend) (rate({metric}{{{BACKEND}}}{RATE}))"


def ratio(above: str, below: str) -> str:
    """The quotient of two counters of an engine, lately."""
    return f"{counted(above)}\n  / {counted(below)}"


HITS = ratio(
    "penstock_backend_prefix_hits_tokens_total", "penstock_backend_prefix_queries_tokens_total"
)
SLOWER = one("penstock_backend_slowness_ratio")
GPU = one("penstock_backend_gpu_utilization_ratio")
USED = one("penstock_backend_gpu_memory_used_bytes")
FREE = one("penstock_backend_gpu_memory_free_bytes")


def by_backend(expr: str) -> Query:
    return Query(expr, "{{backend}}")


def _at_a_glance() -> Panels:
    failed = (
        f'sum by (backend) (rate(penstock_backend_attempts_total{{{BACKEND}, reason!="ok"}}{RATE}))'
    )
    percent = units.PercentUnit
    full = ((limit("PenstockKvCacheFull"), "red"),)
    columns = (
        Column("state", numbered(STATES, "backend", BACKEND), words=STATES),
        Column("slower", SLOWER, limits=((1.5, "orange"), (SLOW, "red")), decimals=1),
        Column("running", one("penstock_backend_engine_running")),
        Column("waiting", one("penstock_backend_engine_waiting"), limits=((1.0, "orange"),)),
        Column("KV", one("penstock_backend_kv_usage_ratio"), percent, full, decimals=0),
        Column("hits", HITS, percent, decimals=0),
        Column("preempted/s", counted("penstock_backend_preemptions_total"), decimals=2),
        Column("failed/s", failed, limits=((0.001, "orange"),), decimals=2),
        Column("in flight", summed("penstock_backend_requests_in_flight")),
        Column("queued tokens", summed("penstock_backend_queued_prefill_tokens")),
        Column("held tokens", summed("penstock_backend_active_decode_tokens")),
        Column("GPU", GPU, percent, decimals=0),
        Column("last start", one("penstock_backend_cold_start_seconds"), units.Seconds),
    )
    yield rows(
        "Which backend differs?",
        "Now. slower: how many times as long as its peers it takes. Click a head to sort. An"
        " empty cell: not known, such as of an ejected engine. The reason of a state is in"
        " penstock status.",
        ("backend",),
        columns,
        runbook="penstockbackendout",
        sort="state",
    )


def _outages() -> Panels:
    yield timeline(
        "Which backend was out, and since when?",
        "Only those that were not ready. drain and maint: somebody has set it; penstock ready"
        " NAME ends it. ejected and suspect: see the reason in penstock status.",
        by_backend(numbered(STATES, "backend", BACKEND) + " > 0"),
        STATES,
        runbook="penstockbackendout",
        width=24,
        quiet="Every backend was ready",
    )


def _speed() -> Panels:
    yield dashboard.Row("Speed")
    slower = f"max by (backend, work) (penstock_backend_slowness_ratio{{{BACKEND}}})"
    yield lines(
        "Is one slower than its peers?",
        "How many times as long as theirs its prompts (prefill) and tokens (decode) take. Above"
        " the line for long: look at its GPU's clocks, heat and neighbours.",
        Query(slower, "{{backend}} {{work}}"),
        unit=units.Short,
        alert="PenstockBackendSlow",
    )
    yield lines(
        "How fast does it read prompts?",
        "Measured speed of prefill, for short prompts.",
        by_backend(one("penstock_backend_prefill_tokens_per_second")),
        unit=TOKENS_A_SECOND,
        runbook="one-slow-gpu",
    )
    yield lines(
        "How long does a token take?",
        "Measured, with the usual number of held tokens.",
        by_backend(one("penstock_backend_decode_step_seconds")),
        unit=units.Seconds,
        runbook="one-slow-gpu",
    )


def _latencies() -> Panels:
    yield lines(
        "Where do first tokens come late?",
        "95 % of its streams, with their time in penstock's queue.",
        percentile(0.95, "penstock_backend_time_to_first_token_seconds", "backend", MODEL),
        unit=units.Seconds,
        alert="PenstockFirstTokensSlow",
    )
    yield lines(
        "Where do streams stutter?",
        "95 % of the times between two events.",
        percentile(0.95, "penstock_backend_inter_token_latency_seconds", "backend", MODEL),
        unit=units.Seconds,
        runbook="one-slow-gpu",
    )
    size = ratio("penstock_backend_engine_step_tokens_total", "penstock_backend_engine_steps_total")
    yield lines(
        "How much does it do in a step?",
        "Tokens of prompts and answers. Few: the GPU reads all weights for little work, and"
        " fewer backends would do.",
        by_backend(size),
        unit=TOKENS,
        runbook="one-slow-gpu",
    )


def _load() -> Panels:
    yield dashboard.Row("Load")
    running = one("penstock_backend_engine_running")
    yield lines(
        "How many requests does it run?",
        "In the engine's batch, as it says.",
        by_backend(running),
        unit=units.Short,
        runbook="penstockenginequeue",
    )
    waiting = f"max by (backend, reason) (penstock_backend_engine_waiting_by_reason{{{BACKEND}}})"
    yield lines(
        "How many wait in the engine, and for what?",
        "capacity: its KV cache or batch is full. deferred: something else, such as a cache"
        " that is fetched. Above 0 for minutes: raise --max-num-seqs, or see KV below.",
        Query(waiting, "{{backend}} {{reason}}"),
        unit=units.Short,
        runbook="penstockenginequeue",
    )
    strangers = f"clamp_min({running}\n  - {summed('penstock_backend_requests_in_flight')}, 0)"
    yield lines(
        "Who else uses the engine?",
        "Requests that it runs and no penstock here has sent. Above 0 for minutes: somebody"
        " goes past penstock, or another penstock is not scraped.",
        by_backend(strangers),
        unit=units.Short,
        runbook="penstockenginequeue",
    )


def _tokens() -> Panels:
    yield lines(
        "How many prompt tokens wait there?",
        "Sent, without a first token yet, less what its cache should hold. One far above the"
        " others is slow. All of them high: the fleet is too small.",
        by_backend(summed("penstock_backend_queued_prefill_tokens")),
        unit=TOKENS,
        runbook="one-slow-gpu",
    )
    yield lines(
        "How many tokens do its streams hold?",
        "Prompt and answer tokens of requests past their first token.",
        by_backend(summed("penstock_backend_active_decode_tokens")),
        unit=TOKENS,
        runbook="kv-cache-full",
    )
    yield lines(
        "Which one idles while requests wait?",
        "Share of the time. You pay for it and users wait: penstock explain tells why requests"
        " do not go there.",
        by_backend(counted("penstock_backend_gpu_floor_seconds_total")),
        unit=units.PercentUnit,
        alert="PenstockGpuFloor",
        most=1.0,
    )


def _cache() -> Panels:
    yield dashboard.Row("KV cache")
    yield lines(
        "How full is its KV cache?",
        "Above the line the engine makes requests wait, or computes them twice. Cap long"
        " answers, give it more cache, or add a server.",
        by_backend(one("penstock_backend_kv_usage_ratio")),
        unit=units.PercentUnit,
        alert="PenstockKvCacheFull",
        most=1.0,
    )
    yield lines(
        "How much does it find in its cache?",
        "Share of prompt tokens. One far below the others: it restarted, or its sessions were"
        " moved.",
        by_backend(HITS),
        unit=units.PercentUnit,
        runbook="kv-cache-full",
        most=1.0,
    )
    yield lines(
        "How often does it throw requests out?",
        "Preemptions. Each is computed again, and its stream stops meanwhile: the cache is too"
        " small for what is sent there.",
        by_backend(counted("penstock_backend_preemptions_total")),
        unit="preemptions/s",
        runbook="kv-cache-full",
    )


def _failures() -> Panels:
    yield dashboard.Row("Requests")
    attempts = f'penstock_backend_attempts_total{{{BACKEND}, reason!="ok"}}'
    yield lines(
        "Where do attempts fail, and how?",
        "One backend with most of them: penstock drain NAME, then read its log.",
        Query(f"sum by (backend, reason) (rate({attempts}{RATE}))", "{{backend}} {{reason}}"),
        unit=units.RequestsPerSecond,
        runbook="penstockerrorrate",
        width=12,
        quiet="No attempt failed",
    )
    routed = f"penstock_backend_routed_total{{{BACKEND}}}"
    yield lines(
        "Why do requests go there?",
        "cost: it was cheapest. affinity: it has the session. spill: the session's own backend"
        " was not fit. only: no other could serve.",
        Query(f"sum by (backend, reason) (rate({routed}{RATE}))", "{{backend}} {{reason}}"),
        unit=units.RequestsPerSecond,
        runbook="penstockgpufloor",
        width=12,
    )


def _gpus() -> Panels:
    yield dashboard.Row("GPU, where gpu_metrics_url is set")
    yield lines(
        "Does the GPU compute?",
        "Below 10 % with requests in flight: the engine hangs, or waits for something else.",
        by_backend(GPU),
        unit=units.PercentUnit,
        runbook="hung-engine",
        most=1.0,
        width=12,
        quiet="No gpu_metrics_url",
    )
    yield lines(
        "How full is the GPU's memory?",
        "Much free memory: the engine may have a larger KV cache. Full when an engine died"
        " without a word: that was why.",
        by_backend(f"{USED}\n  / ({USED} + {FREE})"),
        unit=units.PercentUnit,
        runbook="kv-cache-full",
        most=1.0,
        width=12,
        quiet="No gpu_metrics_url",
    )
