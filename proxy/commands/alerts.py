"""`penstock alerts`: Prometheus' alert rules for every fleet, and for the SLOs of a configuration.

Each says what a person has to do. Thresholds are where users notice. The bounds of the histograms
lie on them, so quantiles are exact there: 10 and 25 ms, and 10 s. A counter's first increase is not
seen by rate(): it has no sample before its first event.

`penstock boards`: writes the Grafana boards that come with penstock.

`make references` writes them into `proxy/boards` (docs/boards has the script). Each has a field for
the runbook's address, because penstock does not know where its users keep theirs.
"""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson
import yaml

from penstock.balancing.slo.objective import BAD_MIN, Goal, Pair, goals_of, pairs_within, rate_of
from penstock.conf.load import load
from penstock.conf.settings import Settings
from penstock.conf.slo import SloSettings
from penstock.proxy.telemetry.families import ALL

FOLDER: Final = Path(__file__).parents[1] / "boards"
RUNBOOK: Final = "docs/runbook.md"


def add_boards(commands: Any) -> None:
    """Add the command to the command line."""
    boards = commands.add_parser(
        "boards",
        help="write Grafana boards for penstock's metrics",
        description="Writes three boards into a folder, as JSON for Grafana 11.6 or newer: the "
        "overview, the engines, tenants and cost. Import them, or let Grafana read the folder.",
        epilog="Example: penstock boards /var/lib/grafana/dashboards --runbook "
        "https://docs.example.com/penstock/runbook.html; files of the same names are replaced. "
        "Exit status 1 when the folder cannot be written.",
    )
    boards.add_argument("folder", type=Path, metavar="DIR", help="folder, made if it is missing")
    boards.add_argument(
        "--runbook",
        default=RUNBOOK,
        metavar="URL",
        help="where the panels' links to the runbook lead (your copy of docs/runbook.md)",
    )
    boards.set_defaults(command=write)


def write(parsed: argparse.Namespace) -> int:
    """Write the boards and print their paths. Raises OSError."""
    parsed.folder.mkdir(exist_ok=True)
    for name, board in _boards():
        _set_runbook(board, parsed.runbook)
        path = parsed.folder / name
        path.write_bytes(orjson.dumps(board, option=orjson.OPT_INDENT_2) + b"\n")
        print(path)
    return 0


def _boards() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each file, and the board in it."""
    for path in sorted(FOLDER.glob("*.json")):
        yield path.name, orjson.loads(path.read_bytes())


def _set_runbook(board: dict[str, Any], url: str) -> None:
    (field,) = (each for each in board["templating"]["list"] if each["name"] == "runbook")
    field["query"] = url
    field["current"] = {"text": url, "value": url}


_FILE: Final = Path(__file__).with_suffix(".yaml")
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


# The rules for every fleet.
FLEET: Final = [Rule(**each) for each in yaml.safe_load(_FILE.read_text("utf-8"))]


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
