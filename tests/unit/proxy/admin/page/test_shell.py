"""The page's own files: what is in them, and what they may not do."""

import re
from pathlib import Path

import pytest

from penstock.proxy.admin.guard import _OPEN_FILE
from penstock.proxy.admin.page.shell import _TYPES, FOLDER, POLICY

OURS = sorted(path for path in FOLDER.iterdir() if not path.name.startswith("uPlot"))
TEXTS = {path.name: path.read_text() for path in OURS}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_every_file_is_served_without_a_token(path: Path) -> None:
    assert path.suffix in _TYPES
    assert _OPEN_FILE.fullmatch(f"/ui/{path.name}") or path.name == "index.html"


@pytest.mark.parametrize("path", ["/ui/session", "/ui/../api/v1/config", "/ui/a/b.js", "/uix/a.js"])
def test_nothing_else_is_open_by_its_name(path: str) -> None:
    assert not _OPEN_FILE.fullmatch(path)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_become_no_markup_and_no_script(name: str) -> None:
    """What comes from clients, backends and configurations is set as text only."""
    told = re.sub(r"//.*", "", TEXTS[name]) if name.endswith(".js") else TEXTS[name]
    for forbidden in (
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"),
        *("createContextualFragment", "srcdoc", "eval(", "new Function", "javascript:"),
        *("setHTML", "localStorage", "sessionStorage", "indexedDB", "document.cookie"),
    ):
        assert forbidden not in told, forbidden


def test_the_page_has_no_script_and_no_style_in_it() -> None:
    page = TEXTS["index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
    for target in re.findall(r'(?:src|href|action)="([^"#]+)"', page):
        assert target.startswith("ui/"), "it loads its own files only, below any prefix"


def test_what_the_page_loads_exists() -> None:
    named = re.findall(r'(?:src|href)="ui/([^"]+)"', TEXTS["index.html"])
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            named += re.findall(r'from "\./([^"]+)"', text)
    assert {*named} | {"index.html", "uPlot.license.txt"} == {
        path.name for path in FOLDER.iterdir()
    }


def test_no_file_names_another_place() -> None:
    """But the namespace of SVG, which is never fetched."""
    for name, text in TEXTS.items():
        found = re.findall(r"https?://[^\s\"'<>]+", text)
        assert set(found) <= {"http://www.w3.org/2000/svg"}, name


def test_every_colour_is_there_for_dark_pages_too() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", TEXTS["page.css"], re.DOTALL)
    names = [set(re.findall(r"(--[\w-]+):", text)) for text in (light, dark)]
    assert names[0] == names[1]
    used = set(re.findall(r"var\((--[\w-]+)\)", "".join(TEXTS.values())))
    widths = {"--beside"}  # of tables
    assert used - widths <= names[0]


def test_the_policy_lets_nothing_else_in() -> None:
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self';")


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(".js")])
def test_modules_stay_small(name: str) -> None:
    assert TEXTS[name].count("\n") <= 250
