"""What documents name exists: metrics, keys, files, commands, flags and columns."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from docs.references import exposed
from penstock.conf.settings import Settings
from penstock.proxy.commands import requests
from penstock.proxy.commands.cli import _parser
from penstock.proxy.commands.fleet_table import COLUMNS
from penstock.proxy.telemetry.family_table import FAMILIES
from tests.unit.test_guides import exists

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
    if path.name != "CHANGELOG.md"  # it tells of what was, too
}
FOLDERS: Final = ("balancing", "conf", "health", "proxy", "bench", "tests", "docs", "deploy")
FILES: Final = {"hatch_build.py"} | {
    path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")
}
# Files of others, named as sources.
THEIRS: Final = {"docs/cli_reference.md"}
SCHEMA: Final[dict[str, Any]] = Settings.model_json_schema()


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command with its parser, also those below others."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield name, each
                yield from ((f"{name} {more}", below) for more, below in commands(each))


COMMANDS: Final = dict(commands(_parser()))


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_exists(page: str) -> None:
    names = {exposed(family) for family in FAMILIES}
    text = re.sub(r"penstock_\w*[({*]\S*", "", PAGES[page])  # a part of a name, or a file
    for told in re.findall(r"penstock_[a-z_0-9]+[a-z0-9]\b", text):
        base = re.sub(r"_(bucket|sum|count)$", "", told)
        assert told in names or base in names or f"{told}_total" in names, told


@pytest.mark.parametrize("page", PAGES)
def test_every_key_exists(page: str) -> None:
    tops = "|".join(SCHEMA["properties"])
    for told in re.findall(rf"`((?:{tops})(?:\[\])?\.[a-z_0-9.\[\]]+)[`:]", PAGES[page]):
        if told in FILES:
            continue
        assert exists(told.replace("[]", "").split("."), SCHEMA, SCHEMA["$defs"]), told


@pytest.mark.parametrize("page", PAGES)
def test_every_file_exists(page: str) -> None:
    for told in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.-]+)`", PAGES[page]):
        assert told in THEIRS or (ROOT / told).exists(), told
    if page == "ARCHITECTURE.md":
        for told in re.findall(r"`([a-z_0-9]+\.py)`", PAGES[page]):
            assert told in FILES, told


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_flag_exists(page: str) -> None:
    for told, rest in re.findall(r"\bpenstock ([a-z]{3,})\b([^`\n|]*)", _code(PAGES[page])):
        if told in ("bench", "sim"):
            continue
        assert told in COMMANDS, told
        below = [name for name in COMMANDS if name.startswith(f"{told} ")]
        flags = {
            flag
            for name in (told, *below)
            for action in COMMANDS[name]._actions
            for flag in action.option_strings
        }
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest.split(" # ")[0].split(";")[0]):
            assert flag in flags, f"penstock {told} {flag}"


@pytest.mark.parametrize("page", PAGES)
def test_every_column_exists(page: str) -> None:
    for told, columns in (
        ("BACKEND", [each.head for each in COLUMNS]),
        ("REQUEST", list(requests._HEADS)),
    ):
        heads = "|".join(sorted(columns, key=len, reverse=True))
        for line in re.findall(rf"^{told} .*$", PAGES[page], re.MULTILINE):
            if "COST MS" in line:  # of `penstock explain`
                continue
            assert re.fullmatch(rf"(({heads}) *)+", line), line


def _code(text: str) -> str:
    """What stands between backticks, and blocks of commands."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)
    return "\n".join(
        [*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]
    )
