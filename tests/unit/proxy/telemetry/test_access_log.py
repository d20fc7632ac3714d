"""Access lines: written in batches, in order, and a bad one takes no other with it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from penstock.proxy.telemetry.access_log import LINES_MAX, AccessLog
from penstock.proxy.telemetry.metrics import Metrics


class Loop:
    """Keeps what is due later."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.later.append(call)


def logged(path: Path, write: Callable[[AccessLog, Loop], None]) -> tuple[list[Any], Metrics]:
    """What a log has written after `write` and its end, and its metrics."""
    loop, metrics = Loop(), Metrics([])
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    log = AccessLog(loop, metrics, fd)  # type: ignore[arg-type]
    write(log, loop)
    log.close(10.0)
    os.close(fd)
    return [orjson.loads(line) for line in path.read_bytes().splitlines()], metrics


def test_lines_come_in_order_and_the_loop_is_asked_once_for_many(tmp_path: Path) -> None:
    def write(log: AccessLog, loop: Loop) -> None:
        for number in range(2 * LINES_MAX + 3):
            log.write({"number": number})
        assert len(loop.later) == 1
        loop.later.pop()()
        log.write({"number": 2 * LINES_MAX + 3})
        assert len(loop.later) == 1

    lines, metrics = logged(tmp_path / "log", write)
    assert [line["number"] for line in lines] == list(range(2 * LINES_MAX + 4))
    assert metrics.access_lines_dropped == 0


def test_a_line_that_is_no_json_is_dropped_alone(tmp_path: Path) -> None:
    def write(log: AccessLog, loop: Loop) -> None:
        for number in (1, 2**70, 3):
            log.write({"number": number})
        loop.later.pop()()
        log.write({"number": 4})

    lines, metrics = logged(tmp_path / "log", write)
    assert [line["number"] for line in lines] == [1, 3, 4]
    assert metrics.access_lines_dropped == 1
