"""What panels are made of: queries, columns, links, limits and legends."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import (
    dashboard,
    prometheus,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models.dashboard import (
    DashboardLink,
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)

from docs.boards.words import Word

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT: Final = 8
TOKENS: Final = "si:tokens"
TOKENS_A_SECOND: Final = "si:tokens/s"


class Query(NamedTuple):
    """An expression, and what its series are called. `color`: of the one series that it has."""

    expr: str
    legend: str
    color: str = ""


class Column(NamedTuple):
    """One column of a table. `limits`: from where on a cell is of a colour."""

    title: str
    expr: str
    unit: str = units.Short
    limits: Sequence[tuple[float, str]] = ()
    words: Sequence[Word] = ()
    decimals: int | None = None


def target(query: Query, place: int = 0) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(letter(place))
        .expr(query.expr)
        .legend_format(query.legend)
        .datasource(SOURCE)
        .range()
    )


def letter(place: int) -> str:
    """What a panel calls one of its queries."""
    return chr(ord("A") + place)


def links(section: str) -> list[Builder[DashboardLink]]:
    return [
        dashboard.DashboardLink(f"Runbook: {section}")
        .type(DashboardLinkType.LINK)
        .url(f"${{runbook:raw}}#{section}")
        .target_blank(True)
    ]


def mapping(words: Sequence[Word]) -> ValueMap:
    return ValueMap(
        options={
            str(number): ValueMappingResult(text=word.text, color=word.color, index=number)
            for number, word in enumerate(words)
        },
    )


def thresholds(
    limits: Sequence[tuple[float, str]], base: str = "green"
) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color=base)]
    steps += [Threshold(value=value, color=color) for value, color in limits]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def stacking(stacked: bool) -> options.StackingConfig:
    mode = common.StackingMode.NORMAL if stacked else common.StackingMode.NONE
    return options.StackingConfig().mode(mode).group("A")


def legend() -> options.VizLegendOptions:
    return (
        options.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    )


def tooltip() -> options.VizTooltipOptions:
    return (
        options.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )


def cell(column: Column) -> list[DynamicConfigValue]:
    """How a column looks."""
    told: list[tuple[str, Any]] = [("unit", column.unit)]
    if column.decimals is not None:
        told.append(("decimals", column.decimals))
    if column.words:
        told.append(("mappings", [mapping(column.words)]))
    if column.limits:
        told.append(("thresholds", thresholds(column.limits).build()))
    if column.words or column.limits:
        told.append(("custom.cellOptions", {"type": "color-text"}))
    return [DynamicConfigValue(id_val=name, value=value) for name, value in told]


def drawn(limits: Sequence[tuple[float, str]]) -> options.GraphThresholdsStyleConfig:
    """Limits are lines, where there are some."""
    style = common.GraphThresholdsStyleMode
    return options.GraphThresholdsStyleConfig().mode(style.DASHED if limits else style.OFF)
