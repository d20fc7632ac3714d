"""What `penstock top` needs before it takes the screen."""

import sys

import pytest

from penstock.proxy.commands.cli import main

pytestmark = pytest.mark.once


def test_without_textual_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    assert main(["top"]) == 1
    assert "pip install 'penstock[top]'" in capsys.readouterr().err


def test_without_a_terminal_it_names_the_command_that_needs_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["top"]) == 1
    assert capsys.readouterr().err == (
        "penstock: penstock top needs a terminal; penstock status --watch needs none\n"
    )
