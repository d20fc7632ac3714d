"""`penstock status --watch`: what is written to a terminal and to a pipe, and when it ends."""

import io
import os

import pytest

from penstock.proxy.commands.admin_client import AdminError
from penstock.proxy.commands.status import EVERY_S, watch


class Screen(io.StringIO):
    """Standard output."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown(
    monkeypatch: pytest.MonkeyPatch, drawn: list[list[str] | AdminError], *, terminal: bool
) -> str:
    """What was written until Ctrl-C, which comes while it sleeps."""
    screen, slept_s = Screen(terminal=terminal), []
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "80")
    todo = iter(drawn)

    def draw() -> list[str]:
        lines = next(todo)
        if isinstance(lines, AdminError):
            raise lines
        return lines

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        if len(slept_s) == len(drawn):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(draw, sleep)
    assert slept_s == [EVERY_S] * len(drawn)
    return screen.getvalue()


def test_a_terminal_is_cleared_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(monkeypatch, [["one"], ["two"]], terminal=True)
    assert [block.splitlines()[1] for block in out.split("\x1b[2J\x1b[H")[1:]] == ["one", "two"]


def test_what_does_not_fit_a_terminal_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {number}" for number in range(1_000)]
    out = shown(monkeypatch, [lines], terminal=True).splitlines()
    assert out[1:] == ["line 0", "line 1", "line 2", "997 more lines: penstock status shows all"]
    wide = ["x" * 81, *lines]
    out = shown(monkeypatch, [wide], terminal=True).splitlines()
    assert out[1:] == ["x" * 81, "line 0", "999 more lines: penstock status shows all"]
    assert shown(monkeypatch, [lines], terminal=False).splitlines()[1:-1] == lines


def test_a_pipe_gets_one_block_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(monkeypatch, [["one", "more"], ["two"]], terminal=False)
    assert "\x1b" not in out
    assert [block.splitlines()[1:] for block in out.split("\n\n")] == [["one", "more"], ["two"], []]


def test_a_proxy_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(monkeypatch, [["one"], AdminError("no answer"), ["two"]], terminal=False)
    blocks = [block.splitlines()[1:] for block in out.split("\n\n")]
    assert blocks == [["one"], ["penstock: no answer"], ["two"], []]


def test_it_ends_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert watch(lambda: ["one"], lambda _: None) == 0
