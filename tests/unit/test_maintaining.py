"""What maintainers and contributors read is true: targets of make, the version, the rules."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from penstock import proxy

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / ".github").rglob("*.*")),
        ROOT / ".ci" / "run",
    ]
    if path.is_file() and path.name != "CHANGELOG.md"
}


def targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    return set(phony.split())


def test_make_alone_lists_every_target_in_a_group() -> None:
    """Not in the environment of a make that runs this, which would say more."""
    listed = subprocess.run(
        ["make"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    assert set(re.findall(r"^  ([a-z-]+) +\S", listed, re.MULTILINE)) == targets()
    assert {"Test", "Measure", "Release"} <= set(re.findall(r"^(\w[\w ]+)$", listed, re.MULTILINE))


@pytest.mark.parametrize("name", TEXTS)
def test_every_target_that_is_named_exists(name: str) -> None:
    named = re.findall(r"(?:`|^)make ([a-z-]+)", TEXTS[name], re.MULTILINE)
    assert set(named) <= targets()


def test_every_folder_of_tests_is_told() -> None:
    told = set(re.findall(r"^\| `(tests/\w+)` \|", TEXTS["CONTRIBUTING.md"], re.MULTILINE))
    assert all((ROOT / folder).is_dir() for folder in told)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["pytest"]["ini_options"]["testpaths"]) <= told


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    path = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert path.samefile(ROOT / "proxy" / "__init__.py")
    assert f'__version__ = "{proxy.__version__}"' in path.read_text()


def test_the_changelog_begins_with_what_is_not_released() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", each) for each in sections[1:])


def test_every_decision_is_in_the_table() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "decisions").glob("*.md")} - {"index"}
    index = TEXTS["docs/decisions/index.md"]
    assert set(re.findall(r"^\| \[[^]]+\]\(([\w-]+)\.md\)", index, re.MULTILINE)) == pages
    assert pages <= set(index.splitlines())  # the toctree
