"""The configurations of the guide to migration pass the check."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.references import FOLDER
from penstock.proxy.commands.cli import main

MIGRATING = (FOLDER / "migrating.md").read_text(encoding="utf-8")
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


def exists(path: list[str], section: dict[str, Any], definitions: dict[str, Any]) -> bool:
    node = section["properties"].get(path[0])
    if node is None or len(path) == 1:
        return node is not None
    (name,) = re.findall(r"#/\$defs/(\w+)", str(node))
    return exists(path[1:], definitions[name], definitions)
