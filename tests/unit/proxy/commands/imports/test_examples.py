"""Whole configurations of others: what is written passes the check, and holds no secret."""

import re
from pathlib import Path

import pytest
import trustme

from docs.references import FOLDER
from penstock.proxy.commands.cli import main
from penstock.proxy.commands.imports.command import imported
from tests.unit.proxy.commands.imports.carried import EXAMPLES, environment_of

pytestmark = pytest.mark.once

FILES = sorted(EXAMPLES.iterdir(), key=lambda path: path.name)


def kind_of(path: Path) -> str:
    return "nginx" if path.suffix == ".conf" else "litellm"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_written_passes_the_strict_check(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = tmp_path / "penstock.yaml"
    assert main(["import", kind_of(path), str(path), "--output", str(written)]) == 0
    for name, value in environment_of(written.read_text()).items():
        monkeypatch.setenv(name, value)
    certificate = trustme.CA().issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    (tmp_path / "tls.key").chmod(0o600)
    capsys.readouterr()
    main(["check", "--strict", str(written)])
    # What keeps strangers out is not in such a file.
    told = [line for line in capsys.readouterr().err.splitlines() if "list tenants" not in line]
    assert told == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_written(path: Path) -> None:
    """It is what the folder `written` holds. No line is long, no key is in it, and what is lost has
    the line where it stands."""
    text, kind = path.read_text(), kind_of(path)
    written = imported(kind, text, path.name)
    kept = EXAMPLES.parent / "written" / f"{path.name.partition('.')[0]}.{kind}.yaml"
    assert written == kept.read_text(), f"call: penstock import {kind} {path} --output {kept}"
    assert max(map(len, written.splitlines())) <= 100
    for number, what in re.findall(r"Not carried over \(line (\d+)\): ([\w.]+)", written):
        line = text.splitlines()[int(number) - 1]
        assert what in ("the", "what", "fallbacks") or what.rpartition(".")[2] in line
    secrets = re.findall(r"[a-z]+-secret-\d+|sk-[a-z0-9-]+", text)
    assert len(secrets) > 1 or "one" in path.name
    assert not [each for each in secrets if each in written]


PAGE = (FOLDER / "import.md").read_text(encoding="utf-8")
WRITTEN = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CASES = (("litellm", "text", "config.yaml"), ("nginx", "nginx", "nginx.conf"))


@pytest.mark.parametrize(("case", "written"), list(zip(CASES, WRITTEN, strict=True)))
def test_the_examples_are_what_is_written(case: tuple[str, str, str], written: str) -> None:
    kind, language, file = case
    (theirs,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert imported(kind, theirs, file) == written


FILE = str(EXAMPLES / "one.nginx.conf")


def test_it_writes_a_file_or_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "nginx", FILE]) == 0
    told = capsys.readouterr().out
    written = tmp_path / "penstock.yaml"
    assert main(["import", "nginx", FILE, "--output", str(written)]) == 0
    assert written.read_text() == told
    said = f"{written}: written. Check it: penstock check {written}\n"
    assert capsys.readouterr() == ("", said)


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
