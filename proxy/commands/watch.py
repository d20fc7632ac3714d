"""Shows something again and again, until Ctrl-C: on a terminal in one place, else one block after
another."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from penstock.proxy.commands.admin_client import AdminError

EVERY_S: Final = 2.0
_CLEAR: Final = "\x1b[2J\x1b[H"


def watch(draw: Callable[[], list[str]], sleep: Callable[[float], None] = time.sleep) -> int:
    """Show the lines of `draw`. If it raises AdminError, show that and go on.

    Returns 0 when nobody reads any more.
    """
    try:
        while True:
            try:
                lines = draw()
            except AdminError as error:
                lines = [f"penstock: {error}"]
            _show([datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"), *lines])
            sleep(EVERY_S)
    except BrokenPipeError:  # of `| head`, for example
        # Python writes what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show(lines: list[str]) -> None:
    if not sys.stdout.isatty():
        print("\n".join(lines), end="\n\n", flush=True)
        return
    size = shutil.get_terminal_size()
    print(_CLEAR + "\n".join(_fitting(lines, size.columns, size.lines - 1)), flush=True)


def _fitting(lines: list[str], columns: int, rows: int) -> list[str]:
    """The first lines, and how many are left out. All of them would push the first ones, which
    tell most, off the screen. The terminal wraps what is wider than it."""
    taken = [max(1, -(-len(line) // columns)) for line in lines]
    if sum(taken) <= rows:
        return lines
    shown = 0
    while shown < len(lines) and sum(taken[: shown + 1]) < rows:
        shown += 1
    return [*lines[:shown], f"{len(lines) - shown:,} more lines: penstock status shows all"]
