"""No command shows a secret, wherever somebody wrote it."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.proxy.commands.cli import main


@pytest.mark.parametrize("command", [["check"], ["config", "show"]])
def test_no_command_shows_a_secret(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fine: dict[str, Any] = {
        "admin": {"token": "canary-admin"},
        "tenants": [
            {"name": "one", "keys": [{"key": "canary-key"}, {"key_sha256": "ab" * 32}]},
        ],
        "pools": [{"name": "p", "api_key": "canary-pool", "backends": [{"name": "a", "url": "http://a"}]}],
    }  # fmt: skip
    wrong: list[dict[str, Any]] = [
        {"tenants": [{"name": "one", "keys": [{"key_sha256": "canary-digest"}]}]},
        {"tenants": [{"name": "one", "keys": ["canary-key"]}]},
        {"tenants": [{"name": "one", "keys": "canary-key"}]},
        {"tenants": [{"name": "one", "key": "canary-key"}]},
        {"tenants": [{"name": "one", "keys": [{"key": "canary-key" + " x"}]}]},
        {"tenants": [{"name": "one", "keys": [{"key": "canary-key", "key_file": "x"}]}]},
        {"tenants": [{"name": n, "keys": [{"key": "canary-key"}]} for n in ("one", "two")]},
        {"tenants": "canary-key"},
    ]
    path = tmp_path / "penstock.yaml"
    for number, change in enumerate([{}, *wrong]):
        path.write_bytes(orjson.dumps(fine | change))
        assert main([*command, str(path)]) == (2 if number else 0)
        told = "".join(capsys.readouterr())
        assert told
        assert "canary" not in told
        assert "abab" not in told
