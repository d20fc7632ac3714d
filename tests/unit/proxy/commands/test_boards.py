"""`penstock boards`: what it writes, and that it says where."""

from pathlib import Path

import orjson
import pytest

from penstock.proxy.commands.alerts import FOLDER
from penstock.proxy.commands.cli import main

NAMES = ["engines.json", "overview.json", "tenants.json"]


def test_it_writes_every_board_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "boards"
    assert main(["boards", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / name) for name in NAMES]
    for name in NAMES:
        written = orjson.loads((folder / name).read_bytes())
        kept = orjson.loads((FOLDER / name).read_bytes())
        assert written["panels"] == kept["panels"]


def test_links_lead_to_the_runbook_that_is_given(tmp_path: Path) -> None:
    url = "https://docs.example.com/runbook.html"
    assert main(["boards", str(tmp_path), "--runbook", url]) == 0
    for name in NAMES:
        variables = orjson.loads((tmp_path / name).read_bytes())["templating"]["list"]
        (field,) = (each for each in variables if each["name"] == "runbook")
        assert (field["query"], field["current"]["value"]) == (url, url)


def test_a_folder_that_cannot_be_made_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["boards", str(tmp_path / "none" / "boards")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
