"""The board of tenants and cost: who uses the fleet, who is refused, and what it costs."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import units

from docs.boards.board import ANY, MODELS, POOLS, TENANTS, Panels, board, choice
from docs.boards.panels import figure, lines, percentile, rows
from docs.boards.parts import TOKENS_A_SECOND, Column, Query

POOL = 'pool=~"$pool"'
TENANT = 'tenant=~"$tenant"'
USED = f'{TENANT}, model=~"$model"'
RATE = "[$__rate_interval]"
RANGE = "[$__range]"
# Cached tokens are a part of the prompt's.
TOKENS = f'penstock_tenant_tokens_total{{{USED}, kind!="cached"}}'


def tenants() -> dashboard.Dashboard:
    """The board, with all its panels."""
    choices = (
        choice("pool", POOLS, "Pools of the configuration, for costs.", ANY),
        choice("tenant", TENANTS, "Tenants that were served.", ANY),
        choice("model", MODELS, "Models, for what tenants used.", ANY),
    )
    text = "Who uses the fleet, who is refused, which class waits, and what it costs."
    parts = (_use, _flow, _classes, _clients, _cost)
    return board("tenants", "tenants and cost", text, choices, *(part() for part in parts))


def spent(kind: str) -> str:
    """The tokens of a kind, in the time that the board shows."""
    chosen = f'penstock_tenant_tokens_total{{{USED}, kind="{kind}"}}'
    return f"sum by (tenant) (increase({chosen}{RANGE}))"


def _use() -> Panels:
    requests = f"penstock_tenant_requests_total{{{USED}}}"
    refused = f"penstock_rate_limited_total{{{TENANT}}}"
    yield rows(
        "Who uses the fleet?",
        "In the time that the board shows. cached: the part of the prompt tokens that engines"
        " found in their caches. refused: for the tenant's own budget.",
        ("tenant",),
        (
            Column("requests", f"sum by (tenant) (increase({requests}{RANGE}))", decimals=0),
            Column("prompt tokens", spent("prompt")),
            Column("cached", f"{spent('cached')}\n  / {spent('prompt')}", units.PercentUnit),
            Column("answer tokens", spent("completion")),
            Column(
                "refused",
                f"sum by (tenant) (increase({refused}{RANGE}))",
                limits=((1.0, "orange"),),
                decimals=0,
            ),
        ),
        runbook="one-tenant-floods",
        sort="answer tokens",
        quiet="No tenants, or no token for Prometheus",
        height=8,
    )


def _flow() -> Panels:
    refused = f"penstock_rate_limited_total{{{TENANT}}}"
    yield lines(
        "Who takes the most now?",
        "Prompt and answer tokens. One tenant with nearly all of them, while others wait: give"
        " it a limit or a lower weight.",
        Query(f"sum by (tenant) (rate({TOKENS}{RATE}))", "{{tenant}}"),
        unit=TOKENS_A_SECOND,
        runbook="one-tenant-floods",
        stacked=True,
        quiet="No tenants, or no token for Prometheus",
    )
    yield lines(
        "Which models do they use?",
        "Prompt and answer tokens of these tenants. other: names beyond the limit.",
        Query(f"sum by (model) (rate({TOKENS}{RATE}))", "{{model}}"),
        unit=TOKENS_A_SECOND,
        runbook="one-tenant-floods",
        stacked=True,
        quiet="No tenants, or no token for Prometheus",
    )
    yield lines(
        "Whose budget is used up?",
        "Requests refused with rate_limited. Raise its limits, or make its clients heed"
        " Retry-After.",
        Query(f"sum by (tenant) (rate({refused}{RATE}))", "{{tenant}}"),
        unit=units.RequestsPerSecond,
        runbook="one-tenant-floods",
        quiet="No budget was used up",
    )


def _classes() -> Panels:
    yield dashboard.Row("Classes")
    admitted = "rate(penstock_admitted_total"
    yield lines(
        "Which share has to wait?",
        "Of the requests that were let through, by class. A high class that waits often: the"
        " fleet is too small for it.",
        Query(
            f'sum by (priority) ({admitted}{{waited="yes"}}{RATE}))'
            f"\n  / sum by (priority) ({admitted}{RATE}))",
            "{{priority}}",
        ),
        unit=units.PercentUnit,
        runbook="requests-wait",
        most=1.0,
        quiet="Nobody waited",
    )
    yield lines(
        "How long do they wait?",
        "95 % of those that had to wait, in penstock.",
        percentile(0.95, "penstock_queue_wait_seconds", "priority"),
        unit=units.Seconds,
        runbook="requests-wait",
        quiet="Nobody waited",
    )
    yield lines(
        "Which class is refused?",
        "For any reason. A class that shall be served and is refused: move what can wait to a"
        " lower class, or add backends.",
        Query(f"sum by (priority) (rate(penstock_shed_total{RATE}))", "{{priority}}"),
        unit=units.RequestsPerSecond,
        runbook="penstockshedding",
        quiet="Nothing was refused",
    )


def _clients() -> Panels:
    yield lines(
        "What is cut?",
        "By steps of admission.degrade. max_tokens: shorter answers. prompt_tokens: prompts"
        " that were too long for now.",
        Query(f"sum by (action) (rate(penstock_degraded_total{RATE}))", "{{action}}"),
        unit=units.RequestsPerSecond,
        runbook="overload-429",
        quiet="Nothing was cut",
    )
    yield lines(
        "When do clients give up?",
        "Requests whose client left. Many in queued and prefill: clients lose patience before"
        " the first token.",
        Query(f"sum by (phase) (rate(penstock_client_aborts_total{RATE}))", "{{phase}}"),
        unit=units.RequestsPerSecond,
        runbook="requests-wait",
        quiet="No client left",
    )
    yield lines(
        "Do sessions find their backend?",
        "hit: they did. spill: it was not fit, so the cache there is of no use. Many spills:"
        " see which backend is full on the board engines.",
        Query(f"sum by (result) (rate(penstock_affinity_total{RATE}))", "{{result}}"),
        unit=units.RequestsPerSecond,
        runbook="kv-cache-full",
        stacked=True,
        quiet="No policy uses sessions",
    )


# Each replica of penstock counts what the whole pool costs, and its own tokens.
BILL = f"max by (pool) (increase(penstock_cost_total{{{POOL}}}{RANGE}))"


def _tokens_a_second() -> str:
    """Prompt and answer tokens of each pool."""
    return "\n  + ".join(
        f"sum by (pool) (rate(penstock_{kind}_tokens_total{{{POOL}}}{RATE}))"
        for kind in ("prompt", "completion")
    )


def _cost() -> Panels:
    yield dashboard.Row("Cost, where cost_per_hour is set")
    unset = "No cost_per_hour, or no token for Prometheus"
    yield figure(
        "What did it cost?",
        "The backends of each pool, idle or not, in the time that the board shows and in the"
        " currency of cost_per_hour.",
        Query(BILL, "{{pool}}"),
        runbook="one-tenant-floods",
        base="blue",
        width=6,
        decimals=2,
        quiet=unset,
    )
    rate = f"max by (pool) (rate(penstock_cost_total{{{POOL}}}{RATE}))"
    yield lines(
        "What do 1,000 tokens cost?",
        "Prompt and answer tokens. It rises when backends idle: compare quiet hours with busy"
        " ones before you buy more.",
        Query(f"1000 * {rate}\n  / ({_tokens_a_second()})", "{{pool}}"),
        unit=units.Short,
        runbook="penstockgpufloor",
        width=10,
        quiet=unset,
    )
    used = f"increase({TOKENS}{RANGE})"
    shared = (
        f"sum by (tenant) ({used})\n  / on () group_left () sum({used})"
        f"\n  * on () group_left () sum({BILL})"
    )
    yield figure(
        "What does each tenant cost?",
        "The cost of these pools, shared out by tokens among these tenants. An estimate: a"
        " prompt token costs less than an answer's, and idle time is in it.",
        Query(shared, "{{tenant}}"),
        runbook="one-tenant-floods",
        base="blue",
        width=8,
        decimals=2,
        quiet=unset,
    )
