"""The alert rules of a configuration: that they fire, that they clear, and where they point to."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.proxy.commands.alerts import FLEET
from penstock.proxy.commands.cli import main
from penstock.proxy.telemetry.family_table import FAMILIES

ROOT = Path(__file__).resolve().parents[4]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
CONFIGURATION = """
pools:
  - name: chat
    backends: [{name: a, url: "http://a:1"}]
slo:
  - {pool: chat, class: interactive, availability: 0.999, ttft_s: {p50: 0.2}}
  - {error_rate: 0.01, window_s: 6h}
"""


@pytest.fixture
def rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "c.yaml").write_text(CONFIGURATION)
    assert main(["alerts", str(tmp_path / "c.yaml")]) == 0
    return capsys.readouterr().out


def each_of(rules: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]


def test_the_committed_rules_are_those_of_a_configuration_without_slos(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["alerts", str(ROOT / "conf" / "examples" / "minimal.yaml")]) == 0
    assert capsys.readouterr().out == (ROOT / "deploy" / "alerts.yml").read_text(), (
        "call: make references"
    )


def test_each_objective_has_its_pages_and_its_ticket(rules: str) -> None:
    told = [
        (each["alert"], each["labels"]["severity"], each["labels"]["slo"])
        for each in each_of(rules)
        if "PenstockSlo" in each["alert"]
    ]
    assert told == [
        (name, severity, slo)
        for slo in ("ttft_p50", "availability")
        for name, severity in (
            ("PenstockSloFastBurn", "critical"),
            ("PenstockSloBurn", "critical"),
            ("PenstockSloSlowBurn", "warning"),
        )
    ] + [  # its budget is for six hours
        ("PenstockSloFastBurn", "critical", "error_rate"),
        ("PenstockSloBurn", "critical", "error_rate"),
    ]


def test_each_alert_says_what_to_do_and_has_a_section_in_the_runbook(rules: str) -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    }
    for each in each_of(rules):
        notes = each["annotations"]
        assert set(notes) == {"summary", "description", "runbook"}
        page, _, anchor = notes["runbook"].partition("#")
        assert page == "docs/runbook.md"
        assert anchor in anchors, each["alert"]
        for name in re.findall(r"penstock_(\w+)", each["expr"] + notes["description"]):
            bare = re.sub(r"_(total|bucket|count)$", "", name)
            assert bare in FAMILIES or name in FAMILIES


def test_each_alert_of_every_fleet_is_seen_to_fire_and_then_to_clear() -> None:
    """By promtool, which `make lint` runs on this file."""
    seen: set[str] = set()
    for test in yaml.safe_load((ROOT / "deploy" / "alerts.test.yml").read_text())["tests"]:
        fired: set[str] = set()
        for each in sorted(test["alert_rule_test"], key=lambda each: minutes(each["eval_time"])):
            name = each["alertname"]
            if each.get("exp_alerts"):
                fired.add(name)
            elif name in fired:
                seen.add(name)
    assert seen == {rule.name for rule in FLEET}


def minutes(time: str) -> float:
    """Of `4m30s`, say."""
    whole, _, seconds = time.partition("m")
    return int(whole) + int(seconds.removesuffix("s") or 0) / 60


def test_no_rules_for_a_wrong_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(CONFIGURATION.replace("pool: chat", "pool: chatt"))
    assert main(["alerts", str(tmp_path / "c.yaml")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "there is no pool chatt" in told.err


SCENES = list(yaml.safe_load_all(Path(__file__).with_name("slo_alerts.test.yml").read_text()))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene["tests"][0]["name"])
def test_promtool_sees_the_alerts_fire_and_rest(
    scene: dict[str, Any], rules: str, tmp_path: Path
) -> None:
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "test.yml").write_text(yaml.safe_dump(scene))
    for command in (("check", "rules", "rules.yml"), ("test", "rules", "test.yml")):
        done = subprocess.run(
            ["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_of_a_service_level_is_seen_to_fire(rules: str) -> None:
    """In those scenes, and they expect what the rule says."""
    kept = {(each["alert"], each["labels"].get("slo")): each for each in each_of(rules)}
    fired = set()
    for test in [test for scene in SCENES for test in scene["tests"][0]["alert_rule_test"]]:
        for each in test.get("exp_alerts", ()):
            fired.add(test["alertname"])
            rule = kept[test["alertname"], each["exp_labels"]["slo"]]
            assert each["exp_labels"] == rule["labels"]
            told = each["exp_annotations"] | {"summary": rule["annotations"]["summary"]}
            assert told == rule["annotations"]
    assert fired == {name for name, slo in kept if slo}
