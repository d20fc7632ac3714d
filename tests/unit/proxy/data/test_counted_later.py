"""Requests that have ended are counted together, a little later, and each of them once."""

import os
from pathlib import Path

import orjson
import pytest

from penstock.proxy.data.account import COUNT_S, UNCOUNTED_MAX
from penstock.proxy.telemetry.access_log import AccessLog
from penstock.proxy.telemetry.record import Record
from tests.unit.proxy.data.playbook import Play, chat, some_turns

ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,'
    b'"completion_tokens":3,"total_tokens":8}}'
)


class Busy(Play):
    """A play in which nobody reads figures between the requests."""

    def turns(self) -> None:
        self.loop.run_until_complete(some_turns())

    def asks(self, times: int) -> None:
        """One request after the other, each answered at once."""
        for _ in range(times):
            self.client.sends(chat(stream=False))
            self.turns()
            self["b1"].sends(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
            )
            self.turns()

    @property
    def counted(self) -> int:
        return sum(self.metrics.of("p").requests.values())


@pytest.fixture
def busy() -> Busy:
    return Busy(1)


def test_they_are_counted_when_a_moment_has_passed(busy: Busy) -> None:
    busy.asks(3)
    assert busy.counted == 0
    assert not busy.plane.recent.all()
    busy.passes(COUNT_S + 0.01)
    assert busy.counted == 3
    assert len(busy.plane.recent.all()) == 3
    assert busy.metrics.of("p").prompt_tokens == 15
    busy.passes(10 * COUNT_S)
    assert busy.counted == 3


def test_many_are_counted_without_a_wait(busy: Busy) -> None:
    busy.asks(UNCOUNTED_MAX)
    assert busy.counted == UNCOUNTED_MAX
    busy.asks(1)
    assert busy.counted == UNCOUNTED_MAX


@pytest.mark.once  # compiled, nothing but a request can stand there
def test_one_that_cannot_be_counted_takes_no_other_with_it(busy: Busy) -> None:
    busy.asks(3)
    busy.plane.uncounted[0] = (None, None, None)  # type: ignore[assignment]
    busy.passes(COUNT_S + 0.01)
    assert busy.counted == 2


def test_a_line_tells_when_its_request_ended_and_not_when_it_was_counted(
    busy: Busy, tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    log = busy.plane.access_log = AccessLog(busy.loop, busy.metrics, fd)
    busy.asks(1)
    busy.passes(COUNT_S / 2)
    busy.asks(1)
    busy.passes(COUNT_S)
    log.close(10.0)
    os.close(fd)
    first, second = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert second["time"] - first["time"] == pytest.approx(COUNT_S / 2, abs=0.03)


def test_series_of_a_backend_that_is_gone_do_not_come_back(busy: Busy) -> None:
    busy.asks(1)
    busy.metrics.forget_backend("p", "b1")
    busy.passes(2 * COUNT_S)
    assert busy.counted == 0
    assert not busy.metrics.of("p").backends


def test_a_record_is_whole_before_it_is_counted(busy: Busy) -> None:
    busy.asks(1)
    ((request, _, _),) = busy.plane.uncounted
    record: Record = request.record
    assert (record.status, record.whole, record.backend) == (200, True, "b1")
    assert record.ended_s
    assert not request.body
