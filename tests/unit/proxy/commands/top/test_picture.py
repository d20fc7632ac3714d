"""The whole screen, for any size and any fleet."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from penstock.proxy.commands.top.feed import Link
from penstock.proxy.commands.top.lines import clock, text_of, width_of
from penstock.proxy.commands.top.picture import Scene, picture
from penstock.proxy.commands.top.view import View
from tests.browser.figures import AT_S, EMPTY, HOSTILE, snapshot

pytestmark = pytest.mark.once

URL = "http://127.0.0.1:9321"
LIVE = Link("live", AT_S)
# Penstock's own words, which it never takes from others.
OWN_WORDS = ("state", "admin_state", "kind", "began", "waits_for")
SIZES = [(20, 5), (40, 10), (80, 24), (100, 50), (139, 36), (140, 40), (200, 60), (400, 120)]


def drawn(
    told: Any, width: int, height: int, link: Link = LIVE, view: View | None = None
) -> list[str]:
    lines = picture(Scene(URL, link, told), view or View(), width, height)
    assert len(lines) == height
    assert all(width_of(line) <= width for line in lines)
    return [text_of(line).rstrip() for line in lines]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("count", [0, 1, 12, 200, 1_000])
def test_it_fits_every_screen(width: int, height: int, count: int) -> None:
    drawn(snapshot(count), width, height)
    drawn(EMPTY, width, height)
    drawn(snapshot(count), width, height, Link("lost", AT_S, "Connection refused."))


FOLDER = Path(__file__).parent / "pictures"
PICTURES: dict[str, tuple[dict[str, Any], int, int]] = {
    "50x12": (snapshot(), 50, 12),
    "80x24": (snapshot(), 80, 24),
    "200x60": (snapshot(20), 200, 60),
    "empty": (EMPTY, 100, 40),
    "empty-small": (EMPTY, 80, 24),
}


def timeless(name: str) -> str:
    """The picture as the folder holds it, where no clock has another time."""
    text = "\n".join(drawn(*PICTURES[name]))
    return re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text) + "\n"


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_are_as_they_are_kept(name: str) -> None:
    """`python -m tests.unit.proxy.commands.top.test_picture` keeps what is drawn now."""
    assert timeless(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_of_a_large_fleet_it_says_which_rows_it_shows() -> None:
    told, view = snapshot(1_000), View()
    lines = drawn(told, 80, 24, view=view)
    assert any("rows 1 to 8 of 1,000; worst first" in line for line in lines)
    view.move(told, 10_000)
    lines = drawn(told, 80, 24, view=view)
    assert any(line.startswith(">") and "gpu-999" in line for line in lines)
    assert any("rows 993 to 1,000 of 1,000" in line for line in lines)


def test_few_backends_leave_room_for_requests() -> None:
    lines = drawn(snapshot(3, verdicts=[]), 80, 24)
    assert sum("llama" in line for line in lines) >= 9


def test_before_the_first_picture_it_says_whom_it_asks() -> None:
    lines = drawn(None, 80, 24, Link("connecting", AT_S))
    assert lines[0] == "Asking http://127.0.0.1:9321 for the first picture."
    assert lines[-2].endswith("asking")


def test_a_lost_stream_keeps_the_last_picture_and_says_since_when() -> None:
    lines = drawn(snapshot(), 80, 24, Link("lost", AT_S, "Connection refused."))
    since = f"! No news since {clock(AT_S)}: Connection refused. It tries again by itself."
    assert lines[0] == since
    assert lines[1].startswith("! chat, since ")
    assert any(line.startswith(">!gpu-6") for line in lines)
    assert lines[-2].endswith("OLD FIGURES")


def hostile(value: Any) -> Any:
    """The same snapshot, with hostile texts wherever a client's or a model's text stands."""
    if isinstance(value, dict):
        return {
            key: "\x1b[2J" + HOSTILE[len(str(key)) % 5]
            if isinstance(each, str) and key not in OWN_WORDS
            else hostile(each)
            for key, each in value.items()
        }
    return [hostile(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_no_text_of_others_moves_the_cursor(width: int, height: int) -> None:
    told = hostile(snapshot(12))
    lines = drawn(told, width, height)
    assert all(line.isprintable() for line in lines)
    if height > 20:
        assert any("?[2J" in line for line in lines)
    hostile_link = Link("lost", AT_S, "\x1b[2J")
    noted = picture(Scene(URL, hostile_link, told, "\x07"), View(), width, height)
    assert all(text_of(line).isprintable() for line in noted)


def test_a_picture_of_the_same_figures_is_the_same() -> None:
    told, view = snapshot(200), View()
    later = deepcopy(told) | {"at": AT_S + 1.0}
    for each in later["requests"]["slow"]:
        each["ago_s"] += 1.0
    first = picture(Scene(URL, LIVE, told), view, 200, 60)
    assert picture(Scene(URL, LIVE, later), view, 200, 60) == first


if __name__ == "__main__":
    for each in PICTURES:
        (FOLDER / f"{each}.txt").write_text(timeless(each), encoding="utf-8")
