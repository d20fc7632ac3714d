"""`penstock alerts`: Prometheus' alert rules for a configuration."""

import argparse
import os
from typing import Any, Final

import yaml

from penstock.conf.load import load
from penstock.conf.settings import Settings
from penstock.proxy.commands.fleet_alerts import FLEET, Rule
from penstock.proxy.commands.slo_alerts import slo_rules

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
