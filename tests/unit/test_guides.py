"""Runbook and migration tell what the code has: configurations pass, metrics and keys exist."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.references import FOLDER, exposed
from penstock.conf.settings import Settings
from penstock.proxy.commands.cli import main
from penstock.proxy.telemetry.family_table import FAMILIES

MIGRATING = (FOLDER / "migrating.md").read_text(encoding="utf-8")
RUNBOOK = (FOLDER / "runbook.md").read_text(encoding="utf-8")
GUIDES = {"migrating": MIGRATING, "runbook": RUNBOOK}
CONFIGURATIONS = re.findall(r"```yaml\n(.*?)```", MIGRATING, re.DOTALL)


@pytest.mark.parametrize("text", CONFIGURATIONS, ids=["nginx", "HAProxy", "LiteLLM", "vllm-router"])
def test_every_configuration_passes_the_check(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for name in ("vllm-key", "keys/research"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text("0123456789abcdef" * 2)
    path = tmp_path / "penstock.yaml"
    path.write_text(text)
    assert main(["check", "--strict", str(path)]) == 0


@pytest.mark.parametrize("name", GUIDES)
def test_every_metric_exists(name: str) -> None:
    names = {exposed(family) for family in FAMILIES}
    for told in re.findall(
        r"penstock_[a-z_]+[a-z]", re.sub(r"penstock_\w*\(\S+", "", GUIDES[name])
    ):
        assert told in names, told


@pytest.mark.parametrize("name", GUIDES)
def test_every_key_exists(name: str) -> None:
    schema = Settings.model_json_schema()
    tops = "|".join(schema["properties"])
    for told in re.findall(rf"`((?:{tops})(?:\[\])?\.[a-z_0-9.\[\]]+)", GUIDES[name]):
        assert exists(told.replace("[]", "").split("."), schema, schema["$defs"]), told


def exists(path: list[str], section: dict[str, Any], definitions: dict[str, Any]) -> bool:
    node = section["properties"].get(path[0])
    if node is None or len(path) == 1:
        return node is not None
    (name,) = re.findall(r"#/\$defs/(\w+)", str(node))
    return exists(path[1:], definitions[name], definitions)
