"""The Grafana boards: whole as Grafana needs them, and no panel asks for what there is not."""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from docs.boards.panels import limit
from tests.boards import BOARDS, Asked, Board, Panel, asked, panels

ROOT = Path(__file__).resolve().parents[2]
# Grafana's version of the format, in the Grafana that the boards are built for (11.6).
SCHEMA = 41
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Which of a board's variables are no choices of series.
FIELDS = {"datasource", "runbook"}
# What a healthy fleet, or a small configuration, has no series of.
MAY_BE_ABSENT = (
    *("penstock_shed", "penstock_stream_failures", "penstock_client_aborts", "penstock_degraded"),
    *("penstock_slo_", "penstock_tenant_", "penstock_rate_limited", "penstock_cost"),
    *("penstock_backend_gpu_utilization", "penstock_certificate"),
    *("penstock_newcomers", "penstock_canary"),
)
RULES = {
    rule["alert"].lower(): rule
    for group in yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
ASKED = list(asked())
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels(board)
]


def documented() -> dict[str, set[str]]:
    """Each series that docs/metrics.md tells of, and its labels."""
    found: dict[str, set[str]] = {}
    rows = re.findall(
        r"^\| `(penstock_\w+)` \| (\w+) \| ([^|]*) \|",
        (ROOT / "docs/metrics.md").read_text(),
        re.MULTILINE,
    )
    for name, kind, labels in rows:
        known = {*re.findall(r"`(\w+)`", labels), "instance", "job"}
        if kind == "histogram":
            found |= {f"{name}_bucket": known | {"le"}, f"{name}_count": known}
        else:
            found[name] = known
    return found


METRICS = documented()


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Each choice of series in an expression."""
    found: list[promql_parser.VectorSelector] = []

    def see(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expr), see)
    return found


def grouped(expr: str) -> Iterator[set[str]]:
    """The labels of each `by (…)`."""
    for labels in re.findall(r"\bby \(([^)]*)\)", expr):
        yield {label.strip() for label in labels.split(",")}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_what_grafana_loads(name: str) -> None:
    board = BOARDS[name]
    assert (board["uid"], board["schemaVersion"]) == (f"penstock-{name}", SCHEMA)
    assert board["tags"] == ["penstock"]
    assert "id" not in board  # a number of the server's own
    ids = [panel["id"] for panel in board["panels"]]
    assert ids == [*range(1, len(ids) + 1)]
    for panel in panels(board):
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == [chr(ord("A") + place) for place in range(len(letters))]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == SOURCE for source in sources)


@pytest.mark.parametrize("name", BOARDS)
def test_no_panel_covers_another(name: str) -> None:
    places = [panel["gridPos"] for panel in BOARDS[name]["panels"]]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 and at["h"] > 0 for at in places)
    for one, other in combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)


def used(board: Board) -> set[str]:
    """The variables that a board's queries and links name."""
    texts = [target["expr"] for panel in panels(board) for target in panel["targets"]]
    texts += [each["query"] for each in board["templating"]["list"]]
    texts += [link["url"] for panel in panels(board) for link in panel["links"]]
    texts += [panel["datasource"]["uid"] for panel in panels(board)]
    found = {name for text in texts for name in re.findall(r"\$\{?(\w+)", text)}
    return {name for name in found if not name.startswith("__")}


@pytest.mark.parametrize("name", BOARDS)
def test_each_variable_is_there_and_is_used(name: str) -> None:
    board = BOARDS[name]
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert used(board) == set(variables) >= {*FIELDS, "pool", "model"}
    for each in variables.values():
        assert each["label"]
        if each["name"] not in FIELDS:
            metric, _, label = re.findall(
                r"^label_values\((\w+)(\{.*\})?, (\w+)\)$", each["query"]
            )[0]
            assert label in METRICS[metric]
            assert each["description"]
            assert (each["includeAll"], each["multi"], each["datasource"]) == (True, True, SOURCE)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_says_what_to_do_and_links_the_runbook(panel: Panel) -> None:
    assert panel["title"].endswith("?")
    assert len(panel["title"]) <= 45
    assert len(panel["description"]) > 20
    sections = {
        re.sub(r"[^a-z0-9 ]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"^#+ (.+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    }
    (link,) = panel["links"]
    base, _, section = link["url"].partition("#")
    assert base == "${runbook:raw}"
    assert section in sections
    assert link["title"] == f"Runbook: {section}"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_units_or_words(panel: Panel) -> None:
    told = panel["fieldConfig"]
    if panel["type"] == "table":
        columns = {f"Value #{target['refId']}" for target in panel["targets"]}
        names = panel["transformations"][1]["options"]["renameByName"]
        assert set(names) == columns == {each["matcher"]["options"] for each in told["overrides"]}
        assert panel["options"]["sortBy"][0]["displayName"] in names.values()
        properties = [{item["id"] for item in each["properties"]} for each in told["overrides"]]
        assert all("unit" in each for each in properties)
    else:
        assert told["defaults"].get("unit") or told["defaults"].get("mappings")


@pytest.mark.parametrize("panel", PANELS)
def test_lines_are_where_the_linked_alert_begins(panel: Panel) -> None:
    """The alert's rule has the number, too, in what `penstock alerts` prints."""
    section = panel["links"][0]["url"].partition("#")[2]
    if panel["type"] != "timeseries" or section not in RULES:
        return
    drawn = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]
    if drawn:
        (value,) = drawn
        expr = RULES[section]["expr"]
        assert re.search(rf" [<>]=? {re.escape(f'{value:g}')}(\s|$)", expr), (value, expr)
        assert panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] == "dashed"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_means_to_be_empty(panel: Panel) -> None:
    first = re.findall(r"penstock_\w+", panel["targets"][0]["expr"])[0]
    if first.startswith(MAY_BE_ABSENT):
        assert panel["fieldConfig"]["defaults"]["noValue"]


def test_most_alerts_have_a_line() -> None:
    """Those of a state, such as of a reload, have a figure."""
    drawn = {
        panel["links"][0]["url"].partition("#")[2]
        for board in BOARDS.values()
        for panel in panels(board)
    }
    left_out = {"penstockdown"}  # a proxy that is not there has no series
    assert set(RULES) - drawn == left_out
    assert limit("PenstockLoopLag") == 0.025


@pytest.mark.parametrize("each", ASKED, ids=[each.place for each in ASKED])
def test_each_query_is_promql_of_documented_metrics(each: Asked) -> None:
    known: set[str] = set()
    chosen = selectors(each.expr)
    assert chosen
    for selector in chosen:
        assert selector.name in METRICS, f"{selector.name} is not in docs/metrics.md"
        labels = METRICS[selector.name]
        named = {matcher.name for matcher in selector.matchers.matchers}
        assert named <= labels, f"{selector.name} has no {named - labels}"
        known |= labels
    groups = list(grouped(each.expr))
    assert all(group <= known for group in groups)
    shown = set(re.findall(r"\{\{(\w+)\}\}", each.legend))
    assert len(shown) <= 3
    assert not shown or any(shown <= group for group in groups), "a legend would be empty"


def test_every_rate_follows_the_zoom() -> None:
    """A window of its own would show gaps, or nothing, where the scrapes are further apart."""
    for board in BOARDS.values():
        for panel in panels(board):
            for target in panel["targets"]:
                windows = re.findall(r"\[([^\]]*)\]", target["expr"])
                assert {*windows} <= {"$__rate_interval", "$__range", "*"}, target["expr"]


def test_the_overview_opens_with_the_verdict() -> None:
    first, *_ = panels(BOARDS["overview"])
    assert "penstock_bottleneck" in first["targets"][0]["expr"]
    assert (first["gridPos"]["x"], first["gridPos"]["y"]) == (0, 0)
    words: dict[str, Any] = first["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert [words[key]["text"] for key in ("0", "9")] == ["fine", "failing"]
    assert len(words) == 11
