"""The pictures that are committed are those that the script draws; they load nothing."""

import re
from xml.etree import ElementTree

import pytest

from docs.pictures import FOLDER, drawn

DRAWN = drawn()
SCREENSHOT = "page.png"


@pytest.mark.parametrize("name", DRAWN)
def test_the_script_draws_the_committed_file(name: str) -> None:
    told = "run `python docs/pictures.py`"
    assert (FOLDER / name).read_text() == DRAWN[name], told


def test_no_picture_is_left_over() -> None:
    drawings = {path.name for path in FOLDER.iterdir() if path.name != SCREENSHOT}
    assert drawings == DRAWN.keys()


def test_the_screenshot_is_small() -> None:
    """`make test-browser` takes it, in .browser/shots."""
    picture = (FOLDER / SCREENSHOT).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_xml_and_loads_nothing(name: str) -> None:
    root = ElementTree.fromstring(DRAWN[name])
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert re.findall(r"https?://[^\"]+", DRAWN[name]) == ["http://www.w3.org/2000/svg"]
    assert not re.search("url\\(|href|<script|@import", DRAWN[name])


@pytest.mark.parametrize("name", DRAWN)
def test_everything_is_inside(name: str) -> None:
    root = ElementTree.fromstring(DRAWN[name])
    width, height = (float(root.attrib[key]) for key in ("width", "height"))
    for each in root.iter():
        x, y = float(each.get("x", 0)), float(each.get("y", 0))
        assert 0 <= x + float(each.get("width", 0)) <= width
        assert 0 <= y + float(each.get("height", 0)) <= height
