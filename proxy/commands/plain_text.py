"""What others have written, as a terminal may show it: nothing of it is a command to the terminal.

Names of models, tenants and backends come from clients and files. A control character could move
the cursor, and a character of unknown width would shift all that follows it.
"""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

UNSHOWN: Final = "?"
CUT: Final = ".."
# From here on many characters are pictures, which terminals show in one cell or in two.
_PICTURES: Final = 0x1F000


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """`text` with a `?` for each character that is no ordinary, visible one."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if _visible(each) else UNSHOWN for each in unicodedata.normalize("NFC", text)
    )


def plain_texts(value: Any) -> Any:
    """The same JSON, with all texts in it plain."""
    if isinstance(value, dict):
        return {plain(key): plain_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain_texts(each) for each in value]
    return plain(value) if isinstance(value, str) else value


def cells(text: str) -> int:
    """How many cells of a terminal a plain text takes."""
    if text.isascii():
        return len(text)
    return len(text) + sum(map(_is_wide, text))


def cut(text: str, width: int) -> str:
    """At most `width` cells of it. The middle is left out: names of pods differ at their ends."""
    if cells(text) <= width:
        return text
    if width <= len(CUT):
        return _begin(text, width)
    begin = _begin(text, (width - len(CUT)) // 2)
    end = _begin(text[::-1], width - len(CUT) - cells(begin))[::-1]
    return f"{begin}{CUT}{end}"


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly `width` cells: cut, or filled with spaces."""
    text = cut(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """The lines of a table. So many columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrap(text: str, width: int, lines_max: int) -> list[str]:
    """It in lines of at most `width` cells, broken between words. The last one may be cut."""
    lines = [""]
    words = text.split()
    for number, word in enumerate(words):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(longer) <= width:
            lines[-1] = longer
        elif len(lines) < lines_max:
            lines.append(cut(word, width))
        else:
            rest = f"{lines[-1]} {' '.join(words[number:])}"
            lines[-1] = _begin(rest, max(0, width - len(CUT))) + CUT
            break
    return lines


def _begin(text: str, width: int) -> str:
    """Its first characters, `width` cells at most."""
    taken = 0
    for number, each in enumerate(text):
        taken += 1 + _is_wide(each)
        if taken > width:
            return text[:number]
    return text


def _visible(character: str) -> bool:
    if not character.isprintable() or unicodedata.category(character).startswith("M"):
        return False  # a mark has no cell of its own, and any number could be piled up
    return ord(character) < _PICTURES or _is_wide(character)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
