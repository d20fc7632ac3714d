"""Requests that have ended are counted together, a little later; series of what is gone vanish."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.conf.settings import Settings
from penstock.proxy.data.account import COUNT_S, UNCOUNTED_MAX
from penstock.proxy.telemetry.access_log import AccessLog
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.metrics import LABEL_VALUES_MAX
from penstock.proxy.telemetry.record import Record
from tests.unit.proxy.data.playbook import Play, chat, keyed, some_turns, tenants

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


STANDARD, SLOW = [{"name": name, "max_wait_s": 60.0} for name in ("standard", "slow")]


def reloads(play: Play, *names: str, classes: Any = (STANDARD, SLOW)) -> None:
    old = play.plane.configuration
    asked = old.settings.model_dump(exclude={"tenants", "admission"}, by_alias=True)
    added = {"tenants": tenants(*names), "admission": {"enabled": True, "classes": list(classes)}}
    settings = Settings.model_validate(asked | added)
    play.plane.use(dataclasses.replace(old, settings=settings))


def told(play: Play, family: str, label: str) -> dict[str, float]:
    """By the value of a label, the counts of a family."""
    collector = PenstockCollector(play.metrics, lambda: play.backends)
    found: dict[str, float] = {}
    for part in collector.collect():
        for sample in part.samples if part.name == f"penstock_{family}" else []:
            found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
    return found


def begun(*names: str) -> Play:
    admission = {"enabled": True, "classes": [STANDARD, SLOW]}
    return Play(1, tenants=tenants(*names), admission=admission)


def test_a_tenant_that_is_gone_has_no_series_and_the_others_keep_their_counts() -> None:
    play = begun("one", "two")
    for name in ("one", "two", "two"):
        play.client.sends(chat(head=keyed(name)))
        play.answers("b1")
    play.metrics.rate_limited.add("one")
    play.metrics.rate_limited.add("two")
    assert told(play, "tenant_requests", "tenant") == {"one": 1.0, "two": 2.0}
    reloads(play, "one")
    assert told(play, "tenant_requests", "tenant") == {"one": 1.0}
    assert set(told(play, "tenant_tokens", "tenant")) == {"one"}
    assert told(play, "rate_limited", "tenant") == {"one": 1.0}
    reloads(play, "one", "two")  # back again
    assert told(play, "tenant_requests", "tenant") == {"one": 1.0, "two": 2.0}


def test_a_tenant_that_is_gone_is_told_until_its_last_request_has_ended() -> None:
    play = begun("one", "two")
    play.client.sends(chat(head=keyed("two")))
    play.answers("b1")
    play.client.sends(chat(head=keyed("two")))
    reloads(play, "one")
    assert told(play, "tenant_requests", "tenant") == {"two": 1.0}
    play.answers("b1")
    assert told(play, "tenant_requests", "tenant") == {}
    usage = play.metrics.usage.totals()
    assert [(name, used.requests) for name, _, used in usage] == [("two", 2)]


def test_tenants_that_are_gone_take_no_place_of_new_ones() -> None:
    play = begun("one")
    for number in range(2 * LABEL_VALUES_MAX):
        reloads(play, f"t{number}")
        play.metrics.rate_limited.add(f"t{number}")
    last = f"t{2 * LABEL_VALUES_MAX - 1}"
    assert told(play, "rate_limited", "tenant") == {last: 1.0}


def test_a_class_that_is_gone_has_no_series() -> None:
    play = begun("one")
    for name in ("standard", "slow"):
        play.metrics.shed.add("wait", name)
        play.metrics.admitted.add(name, "yes")
        play.metrics.waited(name, 1.0)
    play.metrics.shed.add("memory", "0")
    reloads(play, classes=[STANDARD])
    assert set(told(play, "shed", "priority")) == {"standard", "0"}
    for family in ("admitted", "queue_wait_seconds"):
        assert set(told(play, family, "priority")) == {"standard"}
    play.metrics.admitted.add("slow", "yes")  # one that had waited
    play.plane.measure(play.loop.now_s + 100.0)
    assert set(told(play, "admitted", "priority")) == {"standard"}
