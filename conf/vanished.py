"""Keys that earlier versions had: they are taken with a warning that says what replaced them."""

from typing import Final

from penstock.conf.draft import Draft
from penstock.conf.keypath import KeyPath

VANISHED: Final[dict[KeyPath, str]] = {
    (
        "admission",
        "reserve",
    ): "does nothing any more: a request leaves room in each KV cache for what"
    " higher classes asked for in the last second",
    ("admission", "window_s"): "does nothing any more: the window is 0.1 s or four steps of"
    " the engine, and the round trip",
}


def take_vanished(draft: Draft) -> None:
    """Warn of each such key, and take it out, whatever its value is."""
    for path, problem in VANISHED.items():
        if draft.has(path):
            draft.doubt(path, problem)
            draft.remove(path)
