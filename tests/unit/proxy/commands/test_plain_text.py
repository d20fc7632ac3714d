"""What a terminal gets of names that others chose."""

import pytest

from penstock.proxy.commands.plain_text import cells, cut, fit, plain, wrap

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", "?[2J?]0;owned?"),
        ("a\nb\tc\r\x9b31m", "a?b?c??31m"),
        ("\u202eright to left\u2066", "?right to left?"),
        ("zero\u200bwidth\ufeff", "zero?width?"),
        ("e\u0301", "\u00e9"),  # one letter, composed
        ("z\u0335\u0321\u035c", "z???"),  # marks without an end
        ("\ud800", "?"),
        ("\U0001f1e9\U0001f1ea", "??"),  # flags: one cell in some terminals, two in others
        ("[bold]x[/bold] &amp;", "[bold]x[/bold] &amp;"),
        ("模型 \U0001f600", "模型 \U0001f600"),
    ],
)
def test_nothing_that_others_wrote_moves_the_cursor(written: str, shown: str) -> None:
    assert plain(written) == shown


def test_wide_characters_take_two_cells() -> None:
    assert cells("模型-7") == 6
    assert fit("模型", 6) == "模型  "
    assert fit("模型", 6, right=True) == "  模型"


@pytest.mark.parametrize("text", ["gpu-chat-node-0123", "名前が長い模型-7", "a", ""])
@pytest.mark.parametrize("width", [0, 1, 2, 3, 5, 8, 30])
def test_a_cell_of_a_table_is_never_wider_than_its_column(text: str, width: int) -> None:
    assert cells(cut(text, width)) <= width
    assert cells(fit(text, width)) == width


def test_the_end_of_a_long_name_is_kept() -> None:
    assert cut("gpu-chat-node-0123", 12) == "gpu-c..-0123"


def test_sentences_break_between_words_and_say_that_they_are_cut() -> None:
    said = "Failing: gpu-6 is out (unreachable)."
    assert wrap(said, 20, 3) == ["Failing: gpu-6 is", "out (unreachable)."]
    assert wrap(said, 20, 1) == ["Failing: gpu-6 is .."]
    assert all(cells(line) <= 10 for line in wrap("x" * 300 + " y", 10, 3))
