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
CHAT = {"pool": "chat", "priority": "interactive", "slo": "availability"}
HOUR = 60
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)"
)


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


class Scenario:
    """Requests by minute, and which alerts shall fire when. Prometheus' own tool judges."""

    every_min = 1  # between two samples

    def __init__(self, tmp_path: Path, rules: str) -> None:
        self._folder = tmp_path
        self._series: list[dict[str, str]] = []
        self._tests: list[dict[str, Any]] = []
        (tmp_path / "rules.yml").write_text(rules)
        self._rules = {(each["alert"], each["labels"].get("slo")): each for each in each_of(rules)}

    def requests(
        self, labels: dict[str, str], *parts: tuple[int, int, int], instance: str = "a"
    ) -> None:
        """`parts`: for so many minutes so many good and bad requests a minute."""
        chosen = ", ".join(f'{name}="{value}"' for name, value in labels.items())
        for verdict, at in (("good", 1), ("bad", 2)):
            values, count = ["0"], 0
            for part in parts:
                minutes, more = part[0], part[at]
                if minutes < 0:  # a restart
                    values.append("0")
                    count = 0
                    continue
                step = self.every_min * more
                values.append(f"{count + step}+{step}x{minutes // self.every_min - 1}")
                count += minutes * more
            name = f'{{{chosen}, instance="{instance}", verdict="{verdict}"}}'
            self._series.append(
                {"series": f"penstock_slo_requests_total{name}", "values": " ".join(values)}
            )

    def fires(self, name: str, slo: str, at_min: int, summary: str) -> None:
        rule = self._rules[name, slo]
        notes = {**rule["annotations"], "summary": summary}
        expected = {"exp_labels": rule["labels"], "exp_annotations": notes}
        self._tests.append({"alertname": name, "eval_time": f"{at_min}m", "exp_alerts": [expected]})

    def rests(self, name: str, *at_min: int) -> None:
        self._tests += [{"alertname": name, "eval_time": f"{each}m"} for each in at_min]

    def judge(self) -> None:
        every = f"{self.every_min}m"
        test = {"interval": every, "input_series": self._series, "alert_rule_test": self._tests}
        told = {"rule_files": ["rules.yml"], "evaluation_interval": every, "tests": [test]}
        file = self._folder / "test.yml"
        file.write_text(yaml.safe_dump(told))
        for command in (("check", "rules", "rules.yml"), ("test", "rules", "test.yml")):
            done = subprocess.run(
                ["promtool", *command],
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def scenario(tmp_path: Path, rules: str) -> Scenario:
    return Scenario(tmp_path, rules)


FAST, SLOW, SLOWEST = "PenstockSloFastBurn", "PenstockSloBurn", "PenstockSloSlowBurn"


@needs_promtool
def test_an_outage_pages_soon_and_is_over_soon(scenario: Scenario) -> None:
    """A fifth fails for 20 minutes, where one of 1,000 may."""
    scenario.requests(CHAT, (2 * HOUR, 100, 0), (20, 80, 20), (12 * HOUR, 100, 0))
    scenario.rests(FAST, 2 * HOUR, 2 * HOUR + 3)
    scenario.fires(
        FAST,
        "availability",
        2 * HOUR + 6,
        "2% of the requests of pool chat, class interactive missed availability in 1h; 0.1% may.",
    )
    scenario.rests(FAST, 2 * HOUR + 26, 4 * HOUR)  # the last five minutes are good
    scenario.fires(
        SLOW,
        "availability",
        2 * HOUR + 30,
        "2.667% of the requests of pool chat, class interactive missed availability in 6h;"
        " 0.1% may.",
    )
    scenario.rests(SLOW, 2 * HOUR + 51, 6 * HOUR)
    scenario.rests(SLOWEST, 9 * HOUR)
    scenario.judge()


@needs_promtool
def test_a_slow_leak_is_a_ticket_and_no_page(scenario: Scenario) -> None:
    """Three of 1,000 fail for three days, and then none."""
    scenario.every_min = 5
    scenario.requests(CHAT, (72 * HOUR, 997, 3), (10 * HOUR, 1_000, 0))
    scenario.rests(FAST, HOUR, 30 * HOUR, 60 * HOUR)
    scenario.rests(SLOW, HOUR, 30 * HOUR, 60 * HOUR)
    scenario.fires(
        SLOWEST,
        "availability",
        70 * HOUR,
        "0.3% of the requests of pool chat, class interactive missed availability in 3d; 0.1% may.",
    )
    scenario.rests(SLOWEST, 72 * HOUR + 6 * HOUR)
    scenario.judge()


@needs_promtool
def test_few_bad_requests_do_not_alarm(scenario: Scenario) -> None:
    """Nine in three hours, all within ten minutes."""
    scenario.requests(CHAT, (3 * HOUR, 1, 0), (9, 0, 1), (3 * HOUR, 1, 0))
    for name in (FAST, SLOW, SLOWEST):
        scenario.rests(name, 3 * HOUR + 9, 3 * HOUR + 12, 4 * HOUR)
    scenario.judge()


@needs_promtool
def test_replicas_count_together_and_restarts_do_not_alarm(scenario: Scenario) -> None:
    """A fifth fails at the smaller of two, for an hour. It restarts before and after."""
    scenario.requests(CHAT, (2 * HOUR, 100, 0), (-1, 0, 0), (4 * HOUR, 100, 0))
    scenario.requests(
        CHAT, (2 * HOUR, 10, 0), (-1, 0, 0), (60, 8, 2), (-1, 0, 0), (4 * HOUR, 10, 0), instance="b"
    )
    scenario.rests(FAST, 2 * HOUR + 1, 2 * HOUR + 30)
    scenario.fires(
        FAST,
        "availability",
        2 * HOUR + 58,
        "1.757% of the requests of pool chat, class interactive missed availability in 1h;"
        " 0.1% may.",
    )
    scenario.rests(FAST, 3 * HOUR + 10)
    scenario.judge()


@needs_promtool
def test_a_median_pages_when_nearly_all_are_slow(scenario: Scenario) -> None:
    """A burn rate of 14.4 is out of its reach: it is 2 at most."""
    slow = CHAT | {"slo": "ttft_p50"}
    scenario.requests(slow, (2 * HOUR, 100, 0), (2 * HOUR, 2, 98), (HOUR, 20, 80))
    scenario.fires(
        FAST,
        "ttft_p50",
        4 * HOUR,
        "98% of the requests of pool chat, class interactive missed ttft_p50 (0.2 s) in 1h;"
        " 50% may.",
    )
    scenario.rests(FAST, 2 * HOUR, 4 * HOUR + 10)
    scenario.judge()
