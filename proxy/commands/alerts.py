"""`penstock alerts`: Prometheus' alert rules for every fleet, and for the SLOs of a configuration.

Each says what a person has to do. Thresholds are where users notice. The bounds of the histograms
lie on them, so quantiles are exact there: 10 and 25 ms, and 10 s. A counter's first increase is not
seen by rate(): it has no sample before its first event.
"""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from penstock.balancing.slo.objective import BAD_MIN, Goal, Pair, goals_of, pairs_within, rate_of
from penstock.conf.load import load
from penstock.conf.settings import Settings
from penstock.conf.slo import SloSettings
from penstock.proxy.telemetry.families import ALL

CRITICAL: Final = "critical"
WARNING: Final = "warning"


class Rule(NamedTuple):
    """One alert. It fires when `expr` has held for `after`. `severity`: critical pages."""

    name: str
    expr: str
    summary: str
    description: str
    after: str | None = None
    severity: str = WARNING
    labels: Mapping[str, str] = MappingProxyType({})


FLEET: Final = [
    Rule(**each)
    for each in yaml.safe_load(
        r"""
- name: PenstockDown
  # A target that is no longer there has no `up` at all.
  expr: up{job="penstock"} == 0 or absent(up{job="penstock"})
  after: 1m
  severity: critical
  summary: >-
    {{ if $labels.instance }}{{ $labels.instance }} does not answer its admin port.{{ else
    }}Prometheus knows no penstock.{{ end }}
  description: >-
    Look at the process and its last log lines; its clients get connection errors.
- name: PenstockNoBackendFit
  expr: sum by (instance) (penstock_backend_can_serve) == 0
  after: 30s
  severity: critical
  summary: >-
    {{ $labels.instance }} has no backend to send to: every request gets a 503.
  description: See state and reason in penstock status; do not restart penstock.
- name: PenstockBackendOut
  # Not those that somebody took out.
  expr: >-
    penstock_backend_can_serve == 0 and on (instance, backend)
    penstock_backend_admin_state{admin_state="ready"} == 1
  after: 10m
  summary: >-
    {{ $labels.backend }} has taken no requests from {{ $labels.instance }} for 10 minutes.
  description: >-
    Run penstock status: the reason after the state says what is wrong with the server.
- name: PenstockErrorRate
  expr: |-
    sum by (instance, pool) (rate(penstock_requests_total{code=~"5.."}[5m]))
      / sum by (instance, pool) (rate(penstock_requests_total[5m])) > 0.05
  after: 5m
  severity: critical
  summary: >-
    {{ $value | humanizePercentage }} of the requests of pool {{ $labels.pool }} fail at {{
    $labels.instance }}.
  description: >-
    502 and 504: backends fail or do not answer (see penstock_attempts_total by reason). 503: no
    backend can serve. 500: an internal error of penstock; its log has a traceback.
- name: PenstockStreamsBroken
  expr: |-
    sum by (instance) (rate(penstock_stream_failures_total{reason!="refused"}[10m]))
      / sum by (instance) (rate(penstock_requests_total[10m])) > 0.01
  after: 5m
  summary: >-
    {{ $value | humanizePercentage }} of the requests at {{ $labels.instance }} break off after
    their first token.
  description: >-
    Engines die or are killed under running streams; see penstock_stream_failures_total by reason.
- name: PenstockShedding
  # Not what tenants' budgets and clients' own times refuse.
  expr: |-
    sum by (instance) (rate(penstock_shed_total{reason!~"budget|deadline|unread"}[5m]))
      / sum by (instance) (rate(penstock_requests_total[5m])) > 0.05
  after: 5m
  summary: >-
    {{ $labels.instance }} refuses {{ $value | humanizePercentage }} of its requests for lack of
    room.
  description: >-
    See penstock_shed_total by reason. wait: the fleet is too small or a backend is out. Others: the
    proxy itself is at a limit.
- name: PenstockFirstTokensSlow
  expr: |-
    histogram_quantile(0.95,
      sum by (instance, pool, le) (rate(penstock_time_to_first_token_seconds_bucket[10m]))) > 10
      and sum by (instance, pool) (increase(penstock_time_to_first_token_seconds_count[10m])) > 9
  after: 5m
  summary: >-
    First tokens of pool {{ $labels.pool }} take {{ $value | humanizeDuration }} (p95) at {{
    $labels.instance }}.
  description: >-
    Run penstock status. All backends with many queued tokens: the fleet is too small. One of them:
    it is slow.
- name: PenstockEngineQueue
  expr: min_over_time(penstock_backend_engine_waiting[5m]) > 0
  after: 5m
  summary: >-
    {{ $value }} or more requests have waited in the engine of {{ $labels.backend }} for minutes.
  description: >-
    Its KV cache or its batch is full. Look at penstock_backend_kv_usage_ratio and at its
    --max-num-seqs.
- name: PenstockKvCacheFull
  expr: avg_over_time(penstock_backend_kv_usage_ratio[5m]) > 0.95
  after: 5m
  summary: >-
    The KV cache of {{ $labels.backend }} is {{ $value | humanizePercentage }} full.
  description: >-
    Its engine makes requests wait, or computes them twice. Give it more KV cache, or add a server.
- name: PenstockBackendSlow
  # Engines of two generations differ by less. The verdict `uneven` begins there, too.
  expr: >-
    max by (instance, backend) (min_over_time(penstock_backend_slowness_ratio[5m])) >= 3
  after: 10m
  summary: >-
    {{ $labels.backend }} takes {{ $value | printf "%.1f" }} times as long as the others of its
    pool.
  description: >-
    Look at its GPU: clocks, heat, other programs, and the options of its server.
- name: PenstockGpuFloor
  # Beside a busy fleet a backend idles now and then, for moments.
  expr: rate(penstock_backend_gpu_floor_seconds_total[10m]) > 0.25
  after: 10m
  summary: >-
    {{ $labels.backend }} did nothing for {{ $value | humanizePercentage }} of the time while
    requests waited at {{ $labels.instance }}.
  description: >-
    You pay for it and users wait. See why requests do not go there: penstock explain tells.
- name: PenstockNewBackendWorse
  # The first one has no sample before it.
  expr: |-
    penstock_newcomers_total{outcome="worse"}
      unless penstock_newcomers_total{outcome="worse"} offset 1h
    or increase(penstock_newcomers_total{outcome="worse"}[1h]) > 0
  summary: >-
    A new backend of pool {{ $labels.pool }} was worse than its peers: {{ $labels.instance }} sends
    it nothing.
  description: >-
    Run penstock status: it names the backend and the figures. It does not return by itself.
- name: PenstockCanaryRolledBack
  expr: >-
    max by (instance, route) (penstock_canary_stage{stage="rolled_back"}) == 1
  summary: >-
    The canary of route {{ $labels.route }} was worse: {{ $labels.instance }} has rolled it back.
  description: >-
    Run penstock canary status: it says what was worse. Repair the new version, then run penstock
    canary restart.
- name: PenstockCertificateExpires
  expr: penstock_certificate_expiry_timestamp_seconds - time() < 14 * 86400
  after: 10m
  summary: >-
    A certificate of {{ $labels.instance }} {{ if lt $value 0.0 }}has expired{{ else }}ends in {{
    $value | humanizeDuration }}{{ end }} ({{ $labels.use }}{{ with $labels.pool }}, pool {{ . }}{{
    end }}).
  description: >-
    Renew it, then run penstock reload: a new file counts after a reload only.
- name: PenstockReloadFailed
  expr: penstock_config_reload_success == 0
  after: 1m
  summary: >-
    {{ $labels.instance }} could not use its new configuration; the previous one is in use.
  description: >-
    Run penstock status: it names each error with its line. Repair the file and reload.
- name: PenstockLoopLag
  expr: |-
    histogram_quantile(0.99,
      sum by (instance, le) (rate(penstock_event_loop_lag_seconds_bucket[5m]))) > 0.025
  after: 10m
  summary: >-
    The loop of {{ $labels.instance }} runs {{ $value | humanizeDuration }} late: every stream
    stutters.
  description: >-
    It lacks CPU. Raise its request, take off a CPU limit, or add a replica.
- name: PenstockOverhead
  expr: |-
    histogram_quantile(0.99,
      sum by (instance, le) (rate(penstock_overhead_seconds_bucket[5m]))) > 0.01
  after: 10m
  summary: >-
    {{ $labels.instance }} holds requests {{ $value | humanizeDuration }} (p99) before they go
    upstream.
  description: >-
    It includes connecting, so look at the network to the backends first, then at the loop's lag.
"""
    )
]


_NAMES: Final = {"1h": "PenstockSloFastBurn", "6h": "PenstockSloBurn", "3d": "PenstockSloSlowBurn"}

_ADVICE: Final = {
    "ttft": "Requests wait, or prompts are computed slowly: see queued tokens by backend.",
    "itl": "Engines decode slowly: see held tokens and the KV cache by backend.",
    "e2e": "Answers are long, or engines are slow: see penstock_inter_token_latency_seconds.",
    "availability": "Requests are refused or fail: see penstock_shed_total and"
    " penstock_attempts_total by reason.",
    "error": "Requests fail: see penstock_attempts_total and penstock_stream_failures_total by"
    " reason.",
    "goodput": "Requests are refused, fail or are slow: see the other objectives first.",
}


def slo_rules(slos: Iterable[SloSettings]) -> Iterator[Rule]:
    """The rules of all objectives: up to two pages and a ticket for each."""
    for slo in slos:
        for goal in goals_of(slo):
            for pair in pairs_within(slo.window_s):
                yield _rule(slo, goal, pair)


def _rule(slo: SloSettings, goal: Goal, pair: Pair) -> Rule:
    labels = {"pool": slo.pool or ALL, "priority": slo.service_class or ALL, "slo": goal.name}
    where = [
        f"{key} {name}"
        for key, name in (("pool", slo.pool), ("class", slo.service_class))
        if name is not None
    ]
    place = f" of {', '.join(where)}" if where else ""
    target = f" ({goal.targets[0][1]:g} s)" if goal.timed else ""
    return Rule(
        _NAMES[pair.long],
        _expr(labels, goal, pair, slo.window_s),
        f"{{{{ $value | humanizePercentage }}}} of the requests{place} missed {goal.name}{target}"
        f" in {pair.long}; {100.0 * (1.0 - goal.share):.4g}% may.",
        f"Run penstock status and read its last lines. {_ADVICE[goal.name.partition('_')[0]]}",
        severity=CRITICAL if pair.pages else WARNING,
        labels=labels,
    )


def _expr(labels: Mapping[str, str], goal: Goal, pair: Pair, window_s: float) -> str:
    """The share of bad requests is above its limit in both windows, and they are not few."""
    chosen = ", ".join([f'{name}="{value}"' for name, value in labels.items()])
    limit = rate_of(pair, goal.share, window_s) * (1.0 - goal.share)
    bad = f'sum(increase(penstock_slo_requests_total{{{chosen}, verdict="bad"}}[%s]))'
    valid = f"sum(increase(penstock_slo_requests_total{{{chosen}}}[%s]))"
    parts = [
        f"{bad % window}\n  / {valid % window} > {limit:.6g}" for window in (pair.long, pair.short)
    ]
    # Extrapolation may count a little less than there was.
    return "\nand ".join([*parts, f"{bad % pair.long} > {BAD_MIN - 1}"])


_HEAD: Final = (
    "# Alert rules, written by `penstock alerts`. They expect a scrape job named penstock.\n"
)
RUNBOOK: Final = "docs/runbook.md"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def alerts(parsed: argparse.Namespace) -> int:
    """Print the rules. Raises ConfigError."""
    print(rules_of(load(parsed.file, os.environ, {}).settings, parsed.runbook), end="")
    return 0


def rules_of(settings: Settings, runbook: str | None = None) -> str:
    """The file of rules, as YAML. `runbook`: where the runbook is."""
    runbook = runbook or settings.admin.runbook_url or RUNBOOK
    groups = [{"name": "penstock", "rules": [_told(each, runbook) for each in FLEET]}]
    slos = [_told(each, runbook) for each in slo_rules(settings.slo)]
    if slos:
        groups.append({"name": "penstock-slo", "rules": slos})
    return _HEAD + yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=100)


def _told(rule: Rule, runbook: str) -> dict[str, Any]:
    after = {} if rule.after is None else {"for": rule.after}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **after,
        "labels": {"severity": rule.severity, **rule.labels},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook": f"{runbook}#{rule.name.lower()}",
        },
    }
