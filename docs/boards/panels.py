"""Panels as our boards need them, by the names of Grafana's own builders.

A panel's title is the question that it answers. Its text says what to do. Its link leads to the
section of the runbook that says more. A line is where an alert begins.
"""

import re
from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import (
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import prometheus as kinds
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
)

from docs.boards.parts import (
    HEIGHT,
    SOURCE,
    Column,
    Query,
    cell,
    drawn,
    legend,
    letter,
    links,
    mapping,
    stacking,
    target,
    thresholds,
    tooltip,
)
from docs.boards.words import Word
from penstock.balancing.slo.objective import PAIRS, USUAL_S, rate_of
from penstock.proxy.commands.alerts import FLEET

_RULES: Final = {rule.name: rule for rule in FLEET}
# Of a rule's comparisons the first is its limit. Others say how many requests it needs.
_COMPARED: Final = re.compile(r" [<>]=? ([\d.]+)")
# The burn rates of budgets of 30 days, where no share is too small for them.
BURN_RATES: Final = {pair.long: rate_of(pair, 0.999, USUAL_S) for pair in PAIRS}


def limit(alert: str) -> float:
    """What an alert compares with. Raises KeyError for an unknown alert."""
    found = _COMPARED.search(_RULES[alert].expr)
    assert found is not None, f"{alert} compares with nothing"
    return float(found[1])


# As in vLLM's own board.
_SHARES: Final = (("p50", 0.5, "light-blue"), ("p95", 0.95, "blue"), ("p99", 0.99, "dark-blue"))


def percentiles(metric: str, matchers: str) -> list[Query]:
    """The median and the slowest of a histogram, over all that match."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{matchers}}}[$__rate_interval]))"
    return [
        Query(f"histogram_quantile({share}, {buckets})", name, color)
        for name, share, color in _SHARES
    ]


def percentile(share: float, metric: str, by: str, matchers: str = "") -> Query:
    """One percentile of a histogram for each `by`."""
    chosen = f"{{{matchers}}}" if matchers else ""
    rate = f"rate({metric}_bucket{chosen}[$__rate_interval])"
    return Query(f"histogram_quantile({share}, sum by ({by}, le) ({rate}))", f"{{{{{by}}}}}")


def lines(
    title: str,
    text: str,
    *queries: Query,
    unit: str,
    alert: str | None = None,
    runbook: str = "",
    limits: Sequence[tuple[float, str]] = (),
    most: float | None = None,
    width: int = 8,
    quiet: str = "",
    stacked: bool = False,
) -> timeseries.Panel:
    """Lines over time.

    `alert`: the rule whose limit is drawn and whose section is linked; else `limits` and `runbook`.
    `most`: the highest value there can be. `quiet`: what no series at all means.
    """
    if alert is not None:
        limits = ((limit(alert), "red"),)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(HEIGHT)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .stacking(stacking(stacked))
        .legend(legend())
        .tooltip(tooltip())
        .thresholds(thresholds(limits))
        .thresholds_style(drawn(limits))
        .links(links(alert.lower() if alert else runbook))
    )
    if most is not None:
        panel = panel.max(most)
    if quiet:
        panel = panel.no_value(quiet)
    for place, query in enumerate(queries):
        panel = panel.with_target(target(query, place))
        if query.color:
            fixed = {"mode": FieldColorModeId.FIXED.value, "fixedColor": query.color}
            color = DynamicConfigValue(id_val="color", value=fixed)
            panel = panel.override_by_name(query.legend, [color])
    return panel


def timeline(
    title: str,
    text: str,
    query: Query,
    words: Sequence[Word],
    *,
    runbook: str,
    width: int,
    quiet: str = "",
) -> statetimeline.Panel:
    """A bar for each series, in the colour of its word."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .span(width)
        .height(HEIGHT)
        .mappings([mapping(words)])
        .thresholds(thresholds(()))
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.8)
        .legend(legend())
        .tooltip(tooltip())
        .links(links(runbook))
        .with_target(target(query))
    )
    return panel.no_value(quiet) if quiet else panel


def figure(
    title: str,
    text: str,
    *queries: Query,
    runbook: str,
    unit: str = units.Short,
    words: Sequence[Word] = (),
    limits: Sequence[tuple[float, str]] = (),
    base: str = "green",
    width: int = 4,
    decimals: int | None = None,
    quiet: str = "",
) -> stat.Panel:
    """The last value of each series, large, in its colour."""
    panel = (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .span(width)
        .height(HEIGHT)
        .thresholds(thresholds(limits, base))
        .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .links(links(runbook))
    )
    if words:
        panel = panel.mappings([mapping(words)])
    if decimals is not None:
        panel = panel.decimals(decimals)
    if quiet:
        panel = panel.no_value(quiet)
    for place, query in enumerate(queries):
        panel = panel.with_target(target(query, place))
    return panel


def rows(
    title: str,
    text: str,
    keys: Sequence[str],
    columns: Sequence[Column],
    *,
    runbook: str,
    sort: str,
    width: int = 24,
    height: int = 10,
    quiet: str = "",
) -> table.Panel:
    """A row for each value of the labels `keys`, the highest of the column `sort` first."""
    names = {letter(place): column for place, column in enumerate(columns)}
    order = [*keys, *(f"Value #{name}" for name in names)]
    renamed = {f"Value #{name}": column.title for name, column in names.items()}
    arranged = {
        "excludeByName": {"Time": True},
        "renameByName": renamed,
        "indexByName": {name: place for place, name in enumerate(order)},
    }
    panel = (
        table.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .thresholds(thresholds(()))
        .links(links(runbook))
        .sort_by([options.TableSortByFieldState().display_name(sort).desc(True)])
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(DataTransformerConfig(id_val="organize", options=arranged))
    )
    if quiet:
        panel = panel.no_value(quiet)
    for name, column in names.items():
        query = prometheus.Dataquery().expr(column.expr).ref_id(name).instant()
        panel = panel.with_target(query.format(kinds.PromQueryFormat.TABLE).datasource(SOURCE))
        panel = panel.override_by_name(f"Value #{name}", cell(column))
    return panel
