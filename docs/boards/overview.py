"""The board to open first: is something wrong, why, what do users feel, and is it penstock?"""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import units

from docs.boards.board import ANY, MODELS, POOLS, Panels, board, choice
from docs.boards.panels import (
    BURN_RATES,
    figure,
    limit,
    lines,
    percentile,
    percentiles,
    rows,
    timeline,
)
from docs.boards.parts import TOKENS_A_SECOND, Column, Query
from docs.boards.words import VERDICTS, Word, numbered

POOL = 'pool=~"$pool"'
# A service level for all pools counts for each.
SLO = 'pool=~"$pool|[*]"'
MODEL = f'{POOL}, model=~"$model"'
RATE = "[$__rate_interval]"

MET = (Word("met", "green", "", ""), Word("warning", "orange", "", ""))
SLO_STATES = (*MET, Word("critical", "red", "", ""))
RELOADED = (Word("failed", "red", "", ""), Word("in use", "green", "", ""))
BURNING = ((1.0, "yellow"), (BURN_RATES["6h"], "orange"), (BURN_RATES["1h"], "red"))


def overview() -> dashboard.Dashboard:
    """The board, with all its panels."""
    choices = (
        choice("pool", POOLS, "Pools of the configuration.", ANY),
        choice("model", MODELS, "Models, for the latencies.", ANY),
    )
    text = "Why it is slow, what users feel, what comes through, and penstock itself."
    parts = (_verdict, _promises, _felt, _through, _lost, _waiting, _new, _itself)
    return board("overview", "overview", text, choices, *(part() for part in parts))


def _verdict() -> Panels:
    verdict = Query(numbered(VERDICTS, "pool", POOL), "{{pool}}")
    yield figure(
        "Why is it slow?",
        "The verdict of each pool. fine: nobody waits. For the sentence with its evidence, and"
        " what to do, run penstock status.",
        verdict,
        runbook="first-look",
        words=VERDICTS,
        width=6,
    )
    yield timeline(
        "Since when, and what was it before?",
        "The verdicts over time. Find the moment at which one changed, then look below at what"
        " else changed then.",
        verdict,
        VERDICTS,
        runbook="first-look",
        width=14,
    )
    serving = (
        f"sum by (pool) (penstock_backend_can_serve{{{POOL}}})"
        f" / count by (pool) (penstock_backend_can_serve{{{POOL}}})"
    )
    yield figure(
        "Can the backends serve?",
        "Share of the backends that may get new requests. 0: every request gets 503. See state"
        " and reason in penstock status; do not restart penstock.",
        Query(serving, "{{pool}}"),
        runbook="penstocknobackendfit",
        unit=units.PercentUnit,
        base="red",
        limits=((0.001, "orange"), (1.0, "green")),
    )


def _promises() -> Panels:
    yield rows(
        "Which promises are in danger?",
        "Service levels of the configuration. * is all pools or classes. critical: the budget"
        " burns fast, or is gone. Empty: the configuration has no slo.",
        ("pool", "priority", "slo"),
        (
            Column("state", _slo("max", "penstock_slo_state"), words=SLO_STATES),
            Column("good", _slo("min", "penstock_slo_compliance_ratio"), units.PercentUnit),
            Column("burns, 1 h", _burn("1h"), limits=BURNING, decimals=1),
            Column("burns, 6 h", _burn("6h"), limits=BURNING[:2], decimals=1),
        ),
        runbook="penstockslofastburn",
        sort="state",
        width=12,
        height=8,
        quiet="No slo in the configuration",
    )
    yield lines(
        "How fast do error budgets burn?",
        "Over the last hour. At 1 a budget lasts exactly for its time. At the red line an alert"
        " pages. Look at what is late or refused below.",
        Query(_burn("1h"), "{{pool}} {{priority}} {{slo}}"),
        unit=units.Short,
        runbook="penstockslofastburn",
        limits=BURNING,
        width=12,
        quiet="No slo in the configuration",
    )


def _slo(worst: str, metric: str) -> str:
    """Of the replica where it is worst."""
    return f"{worst} by (pool, priority, slo) ({metric}{{{SLO}}})"


def _burn(window: str) -> str:
    chosen = f'{SLO}, window="{window}"'
    return f"max by (pool, priority, slo) (penstock_slo_burn_rate{{{chosen}}})"


def _felt() -> Panels:
    yield dashboard.Row("What users feel")
    yield lines(
        "How long until the first token?",
        "Streams, with their time in penstock's queue. If it grows: is the queue below longer,"
        " or is one engine slow (board engines)?",
        *percentiles("penstock_backend_time_to_first_token_seconds", MODEL),
        unit=units.Seconds,
        alert="PenstockFirstTokensSlow",
    )
    yield lines(
        "How smoothly do tokens come?",
        "Time between two events of a stream. If it grows and the event loop below is not"
        " late, engines decode slowly.",
        *percentiles("penstock_backend_inter_token_latency_seconds", MODEL),
        unit=units.Seconds,
        runbook="one-slow-gpu",
    )
    yield lines(
        "How long does a whole answer take?",
        "It is mostly the length of answers. Compare it with itself a day before.",
        *percentiles("penstock_backend_request_duration_seconds", MODEL),
        unit=units.Seconds,
        runbook="requests-wait",
    )


def _through() -> Panels:
    yield dashboard.Row("What comes through")
    tokens = ("prompt", "cached", "completion")
    yield lines(
        "How many tokens a second?",
        "As backends count them. cached is a part of prompt: if its share falls, sessions lose"
        " their cache.",
        *(Query(f"sum(rate(penstock_{t}_tokens_total{{{POOL}}}{RATE}))", t) for t in tokens),
        unit=TOKENS_A_SECOND,
        runbook="first-look",
    )
    yield lines(
        "How many requests, and how do they end?",
        "By HTTP status. 499: the client left before its answer began.",
        Query(f"sum by (code) (rate(penstock_requests_total{{{POOL}}}{RATE}))", "{{code}}"),
        unit=units.RequestsPerSecond,
        runbook="penstockerrorrate",
        stacked=True,
    )
    every = f"sum by (pool) (rate(penstock_requests_total{{{POOL}}}{RATE}))"
    failed = f'sum by (pool) (rate(penstock_requests_total{{{POOL}, code=~"5.."}}{RATE}))'
    yield lines(
        "Which share fails?",
        "Answers with a 5xx. One backend with most of them is at fault itself: drain it. 500"
        " without a backend is a fault of penstock. none: it reached no pool.",
        Query(_named(f"({failed} or 0 * {every}) / {every}"), "{{pool}}"),
        unit=units.PercentUnit,
        alert="PenstockErrorRate",
    )


def _lost() -> Panels:
    yield lines(
        "Which share is refused, and why?",
        "By what penstock was short of. wait: the fleet is too small or a backend is out."
        " budget: a tenant's own limit. Others: penstock itself is at a limit. All pools.",
        Query(_share("penstock_shed_total", "reason"), "{{reason}}"),
        unit=units.PercentUnit,
        alert="PenstockShedding",
        quiet="Nothing was refused",
    )
    yield lines(
        "Which share breaks off midway?",
        "Streams that broke after their first token. cut, reset: an engine died. idle: it"
        " hangs. refused: the request itself is at fault. All pools.",
        Query(_share("penstock_stream_failures_total", "reason"), "{{reason}}"),
        unit=units.PercentUnit,
        alert="PenstockStreamsBroken",
        quiet="No stream broke",
    )
    attempts = f'penstock_backend_attempts_total{{{POOL}, reason!="ok"}}'
    yield lines(
        "How do attempts fail?",
        "Most are tried again elsewhere, so clients see fewer failures than these. See by"
        " backend on the board engines.",
        Query(f"sum by (reason) (rate({attempts}{RATE}))", "{{reason}}"),
        unit=units.RequestsPerSecond,
        runbook="penstockerrorrate",
        quiet="No attempt failed",
    )


def _named(expr: str) -> str:
    """With a word for the pool of requests that reached none."""
    return f'label_replace({expr}, "pool", "none", "pool", "")'


def _share(metric: str, by: str) -> str:
    """Per `by`, beside all requests."""
    return (
        f"sum by ({by}) (rate({metric}{RATE}))"
        f"\n  / on () group_left () sum(rate(penstock_requests_total{RATE}))"
    )


def _waiting() -> Panels:
    yield dashboard.Row("Who waits")
    yield lines(
        "How many requests wait in penstock?",
        "For room at a backend, by class. Above 0 for minutes in a class that shall not wait:"
        " the fleet is too small, or a backend is out.",
        Query("sum by (priority) (penstock_queued_requests)", "{{priority}}"),
        unit=units.Short,
        runbook="requests-wait",
        stacked=True,
    )
    waited = percentile(0.95, "penstock_queue_wait_seconds", "priority")
    yield lines(
        "How long do they wait?",
        "95 % of those that had to wait, by class. It is part of the time to the first token.",
        waited,
        unit=units.Seconds,
        runbook="requests-wait",
        quiet="Nobody waited",
    )
    yield lines(
        "How near are refusals?",
        "The predicted wait over the wait at which requests are refused. At 1 refusals begin:"
        " add backends before that.",
        Query(f"max by (pool, priority) (penstock_pressure{{{POOL}}})", "{{pool}} {{priority}}"),
        unit=units.PercentUnit,
        runbook="overload-429",
        limits=((1.0, "red"),),
    )


def _new() -> Panels:
    yield dashboard.Row("What is new")
    yield figure(
        "What became of new backends?",
        "Since penstock started. worse: it is ejected, and does not return by itself. See"
        " penstock status for its name and the figures.",
        Query(
            f"sum by (pool, outcome) (penstock_newcomers_total{{{POOL}}})",
            "{{pool}} {{outcome}}",
        ),
        runbook="penstocknewbackendworse",
        width=12,
        quiet="No new backend was judged",
    )
    yield figure(
        "Where do canaries stand?",
        "Their shares. rolled_back: the new version was worse. See penstock canary status for"
        " the figures.",
        Query(
            "max by (route, stage) (penstock_canary_stage\n"
            "  * on (instance, route) group_left penstock_canary_percent)",
            "{{route}} {{stage}}",
        ),
        runbook="penstockcanaryrolledback",
        unit=units.Percent,
        width=12,
        quiet="No route has a canary",
    )


def _itself() -> Panels:
    yield dashboard.Row("penstock itself")
    yield lines(
        "Is penstock late?",
        "Delay of its event loop, 99 % of the time. Above the line every stream stutters: it"
        " lacks CPU.",
        percentile(0.99, "penstock_event_loop_lag_seconds", "instance"),
        unit=units.Seconds,
        alert="PenstockLoopLag",
    )
    yield lines(
        "How long does penstock hold a request?",
        "99 % of them, without their wait for room. It includes connecting, so look at the"
        " network to the backends first.",
        percentile(0.99, "penstock_overhead_seconds", "instance"),
        unit=units.Seconds,
        alert="PenstockOverhead",
    )
    yield figure(
        "Is the last configuration in use?",
        "failed: the one before it is in use. penstock status names each error with its line.",
        Query("min by (instance) (penstock_config_reload_success)", "{{instance}}"),
        runbook="penstockreloadfailed",
        words=RELOADED,
    )
    left = "min by (use, pool) (penstock_certificate_expiry_timestamp_seconds) - time()"
    yield figure(
        "How long do certificates last?",
        "Of penstock's own. Renew the file, then run penstock reload.",
        Query(left, "{{use}} {{pool}}"),
        runbook="penstockcertificateexpires",
        unit=units.Seconds,
        base="red",
        limits=((limit("PenstockCertificateExpires") * 86_400.0, "green"),),
        quiet="No certificate",
    )
