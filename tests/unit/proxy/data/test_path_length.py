"""How many files and functions of penstock one request runs: each one more costs CPU and a look."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from tests.unit.proxy.data.playbook import Play, chat

# Of a plain streamed chat at one backend, as measured. Before a change raises one of them, see what
# it could replace.
FILES: Final = 73
FUNCTIONS: Final = 372


def ran(work: Callable[[], object]) -> set[CodeType]:
    """The functions of penstock that ran while `work` did."""
    seen: set[CodeType] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "/penstock/" in frame.f_code.co_filename:
            seen.add(frame.f_code)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


def test_files_and_functions_that_a_plain_streamed_chat_runs() -> None:
    play = Play(1, policy="token_cost", admission={})

    def asks() -> None:
        play.client.sends(chat())
        play.answers("b1", "one", "two")
        play.happened()

    asks()  # opens the connection and makes the tables
    found = ran(asks)
    files = {code.co_filename for code in found}
    play.close()
    print(len(files), len(found))
    assert len(files) <= FILES
    assert len(found) <= FUNCTIONS
