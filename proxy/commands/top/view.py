"""What whoever looks has chosen: the list, its order, the filter and the marks."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Literal, TypeVar

from penstock.proxy.commands.top.lines import Column, Told
from penstock.proxy.commands.top.rows import backend_key, ordered, request_key

T = TypeVar("T")
# So many characters a filter may have.
WANTED_CHARS_MAX: Final = 80
_MOVES: Final = {
    **{"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10},
    **{"home": -1_000_000, "end": 1_000_000},
}


class Cursor:
    """The mark in a list. It stays on what it marks, wherever that goes: who drains a backend means
    this one, and not the row where it stood. `key_of`: tells entries apart. `top`: the number of
    the first row that is shown."""

    def __init__(self, key_of: Callable[[Any], Hashable]) -> None:
        self.key: Hashable = None
        self.top = 0
        self._key_of = key_of
        self._at = 0

    def place(self, entries: Sequence[Any], rows: int) -> int:
        """Find the mark in a new list, and scroll so that it is seen. Returns its number.

        If the entry is gone, the one that took its place is marked.
        """
        keys = [self._key_of(each) for each in entries]
        self._mark(entries, keys.index(self.key) if self.key in keys else self._at)
        self.top = max(0, min(self.top, self._at, len(keys) - rows), self._at - rows + 1)
        return self._at

    def move(self, entries: Sequence[Any], by: int) -> None:
        """Mark another entry, `by` further down."""
        if entries:
            self._mark(entries, self._at + by)

    def _mark(self, entries: Sequence[Any], at: int) -> None:
        self._at = max(0, min(at, len(entries) - 1))
        self.key = self._key_of(entries[self._at]) if entries else None

    def marked(self, entries: Sequence[T]) -> T | None:
        """The marked entry, if it is there."""
        return next((each for each in entries if self._key_of(each) == self.key), None)


class View:
    """`sorted_by`: the head of a column. None: the worst first. `wanted`: the filter. `editing`:
    keys are its text. `kind`: of the requests. `columns`: those of the backends that are shown."""

    def __init__(self) -> None:
        self.focus: Literal["backends", "requests"] = "backends"
        self.sorted_by: str | None = None
        self.down = False
        self.wanted = ""
        self.editing = False
        self.kind: Literal["slow", "failed"] = "slow"
        self.backends = Cursor(backend_key)
        self.requests = Cursor(request_key)
        self.columns: Sequence[Column] = ()

    def press(self, key: str, snapshot: Told) -> bool:
        """Do what a key changes here. Returns False if it means something else."""
        if key in _MOVES:
            self.move(snapshot, _MOVES[key])
        elif key in ("tab", "shift+tab"):
            self.focus = "requests" if self.focus == "backends" else "backends"
        elif key in ("s", "S"):
            self._sort(1 if key == "s" else -1)
        elif key == "i":
            self.down = not self.down and self.sorted_by is not None
        elif key == "w":
            self.sorted_by = None
        elif key == "f":
            self.kind = "failed" if self.kind == "slow" else "slow"
            self.requests = Cursor(request_key)
        elif key == "slash":
            self.editing = True
        elif key == "escape":
            self.wanted = ""
        else:
            return False
        return True

    def edit(self, key: str, character: str | None) -> bool:
        """Change the filter by a key. Returns False if the key means something else."""
        if key in ("enter", "escape"):
            self.editing = False
            self.wanted = self.wanted if key == "enter" else ""
        elif key in ("backspace", "ctrl+u"):
            self.wanted = self.wanted[:-1] if key == "backspace" else ""
        elif character is not None and character.isprintable():
            self.wanted = (self.wanted + character)[:WANTED_CHARS_MAX]
        else:
            return False
        return True

    def _sort(self, step: int) -> None:
        """Sort by the next column that is shown. Beyond the last: worst first.

        Figures begin with the largest, texts with the first.
        """
        heads: list[str | None] = [None, *(each.head for each in self.columns)]
        at = heads.index(self.sorted_by) if self.sorted_by in heads else 0
        self.sorted_by = heads[(at + step) % len(heads)]
        self.down = any(each.head == self.sorted_by and each.is_figure for each in self.columns)

    def rows(self, snapshot: Told) -> list[Told]:
        return ordered(snapshot["backends"], self.wanted, self.sorted_by, down=self.down)

    def move(self, snapshot: Told, by: int) -> None:
        """Move the mark of the list that has the keys."""
        if self.focus == "backends":
            self.backends.move(self.rows(snapshot), by)
        else:
            self.requests.move(snapshot["requests"][self.kind], by)
