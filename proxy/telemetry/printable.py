"""Text for one line of a log."""

from typing import Final

LINE_CHARS_MAX: Final = 2_048


def printable(text: str) -> str:
    """The text on one line, shortened, with all characters escaped that are not printable."""
    if len(text) > LINE_CHARS_MAX:
        text = text[:LINE_CHARS_MAX] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
