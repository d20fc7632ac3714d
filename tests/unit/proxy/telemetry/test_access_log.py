"""Access lines: written in batches, in order, and a bad one takes no other with it."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
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
    written, metrics = bytes_of(path, write)
    return [orjson.loads(line) for line in written.splitlines()], metrics


def bytes_of(path: Path, write: Callable[[AccessLog, Loop], None]) -> tuple[bytes, Metrics]:
    """The same as bytes."""
    loop, metrics = Loop(), Metrics([])
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    log = AccessLog(loop, metrics, fd)  # type: ignore[arg-type]
    write(log, loop)
    log.close(10.0)
    os.close(fd)
    return path.read_bytes(), metrics


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


REFUSED: dict[str, Any] = {
    "time": 1795678928.618,
    "at": datetime.fromtimestamp(1795678928.618, UTC),
    "request_id": "id-1",
    "trace_id": None,
    "client": "10.0.0.7",
    "method": "GET",
    "path": None,
    "tenant": None,
    "status": 404,
    "bytes": 155,
    "error": "unknown_path",
}
SERVED = REFUSED | {
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "path": "/v1/chat/completions",
    "method": "POST",
    "tenant": "research",
    "status": 200,
    "error": None,
    "whole": False,
    "model": "llama",
    "pool": "chat",
    "backend": "gpu-1",
    "reason": "cost",
    "class": "batch",
    "attempts": 2,
    "duration_ms": 12_991.84,
    "ttft_ms": 312.07,
    "prompt_tokens": 812,
    "cached_tokens": 640,
    "completion_tokens": 64,
    "waited_ms": 20.5,
    "waits_for": "turn",
    "failed": [{"backend": "gpu-0", "reason": "cost", "failure": "reset"}],
}


def test_json_has_the_time_twice(tmp_path: Path) -> None:
    (line,), _ = logged(tmp_path / "log", lambda log, _: log.write(REFUSED))
    assert (line["time"], line["at"]) == (1795678928.618, "2026-11-26T07:42:08.618000Z")


def test_text_is_aligned_and_a_bad_line_is_dropped_alone(tmp_path: Path) -> None:
    def write(log: AccessLog, loop: Loop) -> None:
        log.as_text = True
        broken: dict[str, object] = {"number": 1}
        for line in (SERVED, broken, REFUSED):
            log.write(line)

    written, metrics = bytes_of(tmp_path / "log", write)
    assert written.decode().splitlines() == [
        "2026-11-26T07:42:08.618Z 200    12991.8ms      312.1ms gpu-1        research        POST"
        " /v1/chat/completions model=llama waited_ms=20.5 waits_for=turn attempts=2"
        " prompt_tokens=812 cached_tokens=640 completion_tokens=64 class=batch reason=cost"
        " trace_id=4bf92f3577b34da6a3ce929d0e0e4736 whole=no failed=gpu-0:reset id=id-1",
        "2026-11-26T07:42:08.618Z 404            -            - -            10.0.0.7        GET "
        " - error=unknown_path id=id-1",
    ]
    assert metrics.access_lines_dropped == 1
