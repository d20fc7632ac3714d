"""`penstock import`: where it writes, and what it says when it cannot."""

from pathlib import Path

import pytest

from penstock.proxy.commands.cli import main
from tests.unit.proxy.commands.imports.carried import EXAMPLES

pytestmark = pytest.mark.once

FILE = str(EXAMPLES / "one.nginx.conf")


def test_it_writes_a_file_or_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "nginx", FILE]) == 0
    told = capsys.readouterr().out
    written = tmp_path / "penstock.yaml"
    assert main(["import", "nginx", FILE, "--output", str(written)]) == 0
    assert written.read_text() == told
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        f"{written}: written. Check it: penstock check {written}\n",
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/nowhere"], "/nowhere: cannot be read: No such file or directory"),
        ([FILE, "--output", "/nowhere/x"], "/nowhere/x: cannot be written: No such file"),
    ],
)
def test_what_it_cannot_do(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "nginx", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_mistake_is_told_by_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "nginx.conf"
    theirs.write_text("server {\n  listen 80\n}\n")
    assert main(["import", "nginx", str(theirs)]) == 2
    assert capsys.readouterr().err == f"{theirs}:3: listen must end with ; or a block\n"
