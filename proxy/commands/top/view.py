"""What whoever looks has chosen: the list, its order, the filter and the marks."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from penstock.proxy.commands.top import backend_rows, request_rows
from penstock.proxy.commands.top.columns import Column, Told
from penstock.proxy.commands.top.cursor import Cursor

# So many characters a filter may have.
WANTED_CHARS_MAX: Final = 80


class View:
    """`sorted_by`: the head of a column. None: the worst first. `wanted`: the filter. `editing`:
    keys are its text. `kind`: of the requests."""

    def __init__(self) -> None:
        self.focus: Literal["backends", "requests"] = "backends"
        self.sorted_by: str | None = None
        self.down = False
        self.wanted = ""
        self.editing = False
        self.kind: Literal["slow", "failed"] = "slow"
        self.backends = Cursor()
        self.requests = Cursor()

    def other_list(self) -> None:
        """Move the keys to the other list."""
        self.focus = "requests" if self.focus == "backends" else "backends"

    def other_requests(self) -> None:
        """Show the failed ones, or the slow ones."""
        self.kind = "failed" if self.kind == "slow" else "slow"
        self.requests = Cursor()

    def sort(self, columns: Sequence[Column], step: int) -> None:
        """Sort by the next column of these, or the one before. Beyond the last: worst first.

        Figures begin with the largest, texts with the first.
        """
        heads: list[str | None] = [None, *(each.head for each in columns)]
        at = heads.index(self.sorted_by) if self.sorted_by in heads else 0
        self.sorted_by = heads[(at + step) % len(heads)]
        self.down = any(each.head == self.sorted_by and each.descends for each in columns)

    def turn_round(self) -> None:
        """The other direction."""
        if self.sorted_by is not None:
            self.down = not self.down

    def edit(self, key: str, character: str | None) -> bool:
        """Change the filter by a key. Returns False if the key means something else."""
        if key in ("enter", "escape"):
            self.editing = False
            if key == "escape":
                self.wanted = ""
        elif key == "backspace":
            self.wanted = self.wanted[:-1]
        elif key == "ctrl+u":
            self.wanted = ""
        elif character is not None and character.isprintable():
            self.wanted = (self.wanted + character)[:WANTED_CHARS_MAX]
        else:
            return False
        return True

    def rows(self, snapshot: Mapping[str, Any]) -> list[Told]:
        """The backends in their order."""
        return backend_rows.ordered(
            snapshot["backends"], self.wanted, self.sorted_by, down=self.down
        )

    def move(self, snapshot: Mapping[str, Any], by: int) -> None:
        """Move the mark of the list that has the keys."""
        if self.focus == "backends":
            self.backends.move([backend_rows.key_of(each) for each in self.rows(snapshot)], by)
        else:
            entries = snapshot["requests"][self.kind]
            self.requests.move([request_rows.key_of(each) for each in entries], by)

    def marked_backend(self, snapshot: Mapping[str, Any]) -> Told | None:
        """The marked backend, if the filter finds it."""
        found = self.rows(snapshot)
        return next(
            (each for each in found if backend_rows.key_of(each) == self.backends.key), None
        )

    def marked_request(self, snapshot: Mapping[str, Any]) -> Told | None:
        """The marked request."""
        entries = snapshot["requests"][self.kind]
        key = self.requests.key
        return next((each for each in entries if request_rows.key_of(each) == key), None)
