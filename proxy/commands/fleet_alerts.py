"""The alert rules that every fleet needs. Each says what a person has to do.

Thresholds are where users notice. The bounds of the histograms lie on them, so quantiles are exact
there: 10 and 25 ms, and 10 s. A counter's first increase is not seen by rate(): it has no sample
before its first event.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

CRITICAL: Final = "critical"
WARNING: Final = "warning"


class Rule(NamedTuple):
    """One alert. It fires when `expr` has held for `after`. `severity`: critical pages."""

    name: str
    expr: str
    after: str | None
    severity: str
    summary: str
    description: str
    labels: Mapping[str, str] = MappingProxyType({})


FLEET: Final = (
    Rule(
        "PenstockDown",
        # A target that is no longer there has no `up` at all.
        'up{job="penstock"} == 0 or absent(up{job="penstock"})',
        "1m",
        CRITICAL,
        "{{ if $labels.instance }}{{ $labels.instance }} does not answer its admin port."
        "{{ else }}Prometheus knows no penstock.{{ end }}",
        "Look at the process and its last log lines; its clients get connection errors.",
    ),
    Rule(
        "PenstockNoBackendFit",
        "sum by (instance) (penstock_backend_can_serve) == 0",
        "30s",
        CRITICAL,
        "{{ $labels.instance }} has no backend to send to: every request gets a 503.",
        "See state and reason in penstock status; do not restart penstock.",
    ),
    Rule(
        "PenstockBackendOut",
        # Not those that somebody took out.
        "penstock_backend_can_serve == 0"
        ' and on (instance, backend) penstock_backend_admin_state{admin_state="ready"} == 1',
        "10m",
        WARNING,
        "{{ $labels.backend }} has taken no requests from {{ $labels.instance }} for 10 minutes.",
        "Run penstock status: the reason after the state says what is wrong with the server.",
    ),
    Rule(
        "PenstockErrorRate",
        'sum by (instance, pool) (rate(penstock_requests_total{code=~"5.."}[5m]))\n'
        "  / sum by (instance, pool) (rate(penstock_requests_total[5m])) > 0.05",
        "5m",
        CRITICAL,
        "{{ $value | humanizePercentage }} of the requests of pool {{ $labels.pool }} fail"
        " at {{ $labels.instance }}.",
        "502 and 504: backends fail or do not answer (see penstock_attempts_total by reason)."
        " 503: no backend can serve. 500: an internal error of penstock; its log has a traceback.",
    ),
    Rule(
        "PenstockStreamsBroken",
        'sum by (instance) (rate(penstock_stream_failures_total{reason!="refused"}[10m]))\n'
        "  / sum by (instance) (rate(penstock_requests_total[10m])) > 0.01",
        "5m",
        WARNING,
        "{{ $value | humanizePercentage }} of the requests at {{ $labels.instance }} break off"
        " after their first token.",
        "Engines die or are killed under running streams; see penstock_stream_failures_total by"
        " reason.",
    ),
    Rule(
        "PenstockShedding",
        # Not what tenants' budgets and clients' own times refuse.
        'sum by (instance) (rate(penstock_shed_total{reason!~"budget|deadline|unread"}[5m]))\n'
        "  / sum by (instance) (rate(penstock_requests_total[5m])) > 0.05",
        "5m",
        WARNING,
        "{{ $labels.instance }} refuses {{ $value | humanizePercentage }} of its requests for lack"
        " of room.",
        "See penstock_shed_total by reason. wait: the fleet is too small or a backend is out."
        " Others: the proxy itself is at a limit.",
    ),
    Rule(
        "PenstockFirstTokensSlow",
        "histogram_quantile(0.95,\n"
        "  sum by (instance, pool, le) (rate(penstock_time_to_first_token_seconds_bucket[10m])))"
        " > 10\n"
        "  and sum by (instance, pool)"
        " (increase(penstock_time_to_first_token_seconds_count[10m])) > 9",
        "5m",
        WARNING,
        "First tokens of pool {{ $labels.pool }} take {{ $value | humanizeDuration }} (p95) at"
        " {{ $labels.instance }}.",
        "Run penstock status. All backends with many queued tokens: the fleet is too small. One of"
        " them: it is slow.",
    ),
    Rule(
        "PenstockEngineQueue",
        "min_over_time(penstock_backend_engine_waiting[5m]) > 0",
        "5m",
        WARNING,
        "{{ $value }} or more requests have waited in the engine of {{ $labels.backend }} for"
        " minutes.",
        "Its KV cache or its batch is full. Look at penstock_backend_kv_usage_ratio and at its"
        " --max-num-seqs.",
    ),
    Rule(
        "PenstockKvCacheFull",
        "avg_over_time(penstock_backend_kv_usage_ratio[5m]) > 0.95",
        "5m",
        WARNING,
        "The KV cache of {{ $labels.backend }} is {{ $value | humanizePercentage }} full.",
        "Its engine makes requests wait, or computes them twice. Give it more KV cache, or add a"
        " server.",
    ),
    Rule(
        "PenstockBackendSlow",
        # Engines of two generations differ by less. The verdict `uneven` begins there, too.
        "max by (instance, backend) (min_over_time(penstock_backend_slowness_ratio[5m])) >= 3",
        "10m",
        WARNING,
        '{{ $labels.backend }} takes {{ $value | printf "%.1f" }} times as long as the others of'
        " its pool.",
        "Look at its GPU: clocks, heat, other programs, and the options of its server.",
    ),
    Rule(
        "PenstockGpuFloor",
        # Beside a busy fleet a backend idles now and then, for moments.
        "rate(penstock_backend_gpu_floor_seconds_total[10m]) > 0.25",
        "10m",
        WARNING,
        "{{ $labels.backend }} did nothing for {{ $value | humanizePercentage }} of the time while"
        " requests waited at {{ $labels.instance }}.",
        "You pay for it and users wait. See why requests do not go there: penstock explain tells.",
    ),
    Rule(
        "PenstockNewBackendWorse",
        # The first one has no sample before it.
        'penstock_newcomers_total{outcome="worse"}\n'
        '  unless penstock_newcomers_total{outcome="worse"} offset 1h\n'
        'or increase(penstock_newcomers_total{outcome="worse"}[1h]) > 0',
        None,
        WARNING,
        "A new backend of pool {{ $labels.pool }} was worse than its peers: {{ $labels.instance }}"
        " sends it nothing.",
        "Run penstock status: it names the backend and the figures. It does not return by itself.",
    ),
    Rule(
        "PenstockCanaryRolledBack",
        'max by (instance, route) (penstock_canary_stage{stage="rolled_back"}) == 1',
        None,
        WARNING,
        "The canary of route {{ $labels.route }} was worse: {{ $labels.instance }} has rolled it"
        " back.",
        "Run penstock canary status: it says what was worse. Repair the new version, then run"
        " penstock canary restart.",
    ),
    Rule(
        "PenstockCertificateExpires",
        "penstock_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        "10m",
        WARNING,
        "A certificate of {{ $labels.instance }}"
        " {{ if lt $value 0.0 }}has expired"
        "{{ else }}ends in {{ $value | humanizeDuration }}{{ end }}"
        " ({{ $labels.use }}{{ with $labels.pool }}, pool {{ . }}{{ end }}).",
        "Renew it, then run penstock reload: a new file counts after a reload only.",
    ),
    Rule(
        "PenstockReloadFailed",
        "penstock_config_reload_success == 0",
        "1m",
        WARNING,
        "{{ $labels.instance }} could not use its new configuration; the previous one is in use.",
        "Run penstock status: it names each error with its line. Repair the file and reload.",
    ),
    Rule(
        "PenstockLoopLag",
        "histogram_quantile(0.99,\n"
        "  sum by (instance, le) (rate(penstock_event_loop_lag_seconds_bucket[5m]))) > 0.025",
        "10m",
        WARNING,
        "The loop of {{ $labels.instance }} runs {{ $value | humanizeDuration }} late: every stream"
        " stutters.",
        "It lacks CPU. Raise its request, take off a CPU limit, or add a replica.",
    ),
    Rule(
        "PenstockOverhead",
        "histogram_quantile(0.99,\n"
        "  sum by (instance, le) (rate(penstock_overhead_seconds_bucket[5m]))) > 0.01",
        "10m",
        WARNING,
        "{{ $labels.instance }} holds requests {{ $value | humanizeDuration }} (p99) before they go"
        " upstream.",
        "It includes connecting, so look at the network to the backends first, then at the loop's"
        " lag.",
    ),
)
