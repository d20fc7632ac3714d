"""What all boards share: their name, their variables, and the way from one to another."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    Panel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from docs.boards.parts import SOURCE
from penstock.proxy.commands.alerts import RUNBOOK

Panels = Iterator[dashboard.Row | Builder[Panel]]
TAG: Final = "penstock"
# Requests that reached no pool have no name of one, and service levels for all pools have `*`.
# A tenant that was always refused is not in the list of those that were served.
ANY: Final = ".*"

# Which backends, models and tenants there are.
POOLS: Final = "label_values(penstock_backend_can_serve, pool)"
BACKENDS: Final = 'label_values(penstock_backend_can_serve{pool=~"$pool"}, backend)'
MODELS: Final = (
    'label_values(penstock_backend_request_duration_seconds_count{pool=~"$pool"}, model)'
)
TENANTS: Final = "label_values(penstock_tenant_requests_total, tenant)"


def board(
    name: str, title: str, text: str, choices: Sequence[dashboard.QueryVariable], *parts: Panels
) -> dashboard.Dashboard:
    """A board with these panels and headings. `name`: of its file, and the end of its address."""
    built = (
        dashboard.Dashboard(f"penstock: {title}")
        .uid(f"penstock-{name}")
        .description(text)
        .tags([TAG])
        .readonly()
        .time("now-1h", "now")
        .timezone("browser")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(_others(TAG, "penstock"))
        .link(_others("vllm", "vLLM"))
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(
            dashboard.TextBoxVariable("runbook")
            .label("Runbook")
            .description("Where the links to the runbook lead: your copy of docs/runbook.md.")
            .default_value(RUNBOOK)
        )
    )
    for variable in choices:
        built.with_variable(variable)
    for each in chain(*parts):
        if isinstance(each, dashboard.Row):
            built.with_row(each)
        else:
            built.with_panel(each)
    return built


def choice(name: str, query: str, text: str, every: str | None = None) -> dashboard.QueryVariable:
    """A variable whose values come from Prometheus. `every`: what *All* means, if not each."""
    variable = (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .description(text)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )
    return variable if every is None else variable.all_value(every)


def _others(tag: str, title: str) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.DASHBOARDS)
        .tags([tag])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
