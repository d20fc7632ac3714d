"""Transcripts of requests that lost time somewhere: their records say where, and so do answers."""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import orjson
import pytest

from penstock.balancing.backend import State
from penstock.proxy.admin.request_listing import (
    AT_ONCE,
    BadQuery,
    request_listing,
    requests_with_id,
    under_way,
)
from penstock.proxy.commands.time_spent import mostly
from penstock.proxy.data.account import refused
from penstock.proxy.data.own_headers import answer_to
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import Unauthorized
from penstock.proxy.telemetry.access_log import AccessLog
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from tests.unit.proxy.data.playbook import Play, chat, plain

T = TypeVar("T")
LONG = "all work and no play " * 1_000
# Its prefill takes more than six seconds.
VERY_LONG = 20 * LONG
TIMED = b"x-penstock-timing: 1\r\n"


class AccessLines:
    """The access log of a proxy, to be read at its end."""

    def __init__(self, play: Play) -> None:
        self._reads, self._writes = os.pipe()
        self._log = AccessLog(play.loop, play.metrics, self._writes)
        play.plane.access_log = self._log

    def told(self) -> list[dict[str, Any]]:
        self._log.close()
        lines = os.read(self._reads, 65_536).splitlines()
        os.close(self._reads)
        os.close(self._writes)
        return [orjson.loads(line) for line in lines]


def listed(play: Play, **query: str) -> list[dict[str, Any]]:
    return list(play.loop.run_until_complete(request_listing(play.plane, query)))


def one(play: Play, request_id: str, **query: str) -> list[dict[str, Any]]:
    found = requests_with_id(play.plane, request_id, query)
    return list(play.loop.run_until_complete(found))


def parts(entry: dict[str, Any]) -> list[tuple[str, int, Any, Any]]:
    """Rounded to what the test has moved the clock by; shorter ones are left out."""
    told = [(p["part"], round(p["ms"], -1), p["backend"], p["why"]) for p in entry["parts"]]
    return [(name, int(ms), backend, why) for name, ms, backend, why in told if ms >= 50]


def identified(name: bytes, more: bytes = b"") -> bytes:
    return b"x-request-id: " + name + b"\r\n" + more


def timing(answer: bytes) -> dict[str, float]:
    (line,) = [each for each in answer.split(b"\r\n") if each.startswith(b"server-timing: ")]
    fields = [each.split(";") for each in line[15:].decode().split(", ")]
    return {each[0]: round(float(each[1].removeprefix("dur=")), -1) for each in fields}


@pytest.fixture
def waiting() -> Play:
    return Play(1, admission={"enabled": True})


def test_a_failover_is_told_with_its_reason(play: Play) -> None:
    play.client.sends(chat(head=identified(b"id-1", TIMED)))
    play.passes(2)
    play["b1"].resets()
    play.passes(1)
    play.streams("b2")
    play.passes(1)
    play.says("b2", "a")
    play.passes(4)
    play.ends("b2", "b")
    (entry,) = one(play, "id-1")
    assert parts(entry) == [
        ("failed", 2000, "b1", "reset"),
        ("head", 1000, "b2", None),
        ("prefill", 1000, "b2", None),
        ("decode", 4000, "b2", None),
    ]
    assert entry["failures"] == [{"backend": "b1", "reason": "cost", "failure": "reset"}]
    assert (entry["backend"], entry["attempts"], entry["failed"]) == ("b2", 2, False)
    assert timing(play.client.written) == {"failed": 2000.0, "upstream": 2000.0}


def test_nobody_is_told_of_times_who_does_not_ask(play: Play) -> None:
    for head in (b"", b"x-penstock-timing: 0\r\n"):
        play.client.sends(chat(head=head, stream=False))
        for name in ("b1", "b2"):
            if name in play._upstream and play[name].head:
                play[name].sends(plain("200 OK", b'{"choices":[{"text":"a"}]}'))
                play[name].head = b""
    assert b"200 OK" in play.client.written
    assert b"server-timing" not in play.client.written


def test_an_error_of_penstock_tells_its_times_too() -> None:
    play = Play(1)
    play.client.sends(chat(head=TIMED))
    play.passes(3)
    play["b1"].resets()
    assert b"HTTP/1.1 502" in play.client.written
    assert timing(play.client.written)["failed"] == 3000.0
    (entry,) = listed(play, failed="1")
    assert (entry["status"], entry["error"]) == (502, "backend_error")
    assert parts(entry) == [("failed", 3000, "b1", "reset")]


def test_a_wait_is_told_with_what_there_was_none_of(waiting: Play) -> None:
    play = waiting
    play.client.sends(chat(content=VERY_LONG))
    second = play.connects()
    second.sends(chat(content=VERY_LONG, head=identified(b"second", TIMED)))
    third = play.connects()
    third.sends(chat(content=LONG, head=identified(b"third")))
    play.passes(6)
    told = {each["id"]: each for each in listed(play)}
    assert told["second"]["state"] == "running"
    assert parts(told["second"]) == [("queue", 6000, None, "prompts")]
    assert parts(told["third"]) == [("queue", 6000, None, "turn")]
    play.streams("b1", "a")
    first = play["b1"]
    play.passes(1)
    play.answers("b1")
    (entry,) = one(play, "second")
    assert parts(entry) == [("queue", 6000, None, "prompts"), ("head", 1000, "b1", None)]
    assert entry["class"] == "standard"
    assert b';desc="prompts"' in second.written
    assert timing(second.written)["queue"] == 6000.0
    third.closes()
    (entry,) = one(play, "third")
    assert (entry["status"], entry["failed"]) == (499, True)
    second.closes()
    assert first is not play["b1"]


def test_time_that_the_process_slept_is_no_wait(waiting: Play) -> None:
    play = waiting
    play.client.sends(chat(content=VERY_LONG))
    second = play.connects()
    second.sends(chat(content=LONG, head=identified(b"second")))
    play.passes(1)
    play.sleeps(100)
    play.streams("b1", "a")
    second.closes()
    (entry,) = one(play, "second")
    queued = [ms for name, ms, _, _ in parts(entry) if name == "queue"]
    assert queued == [1000]


def test_what_the_client_does_not_take_is_its_own_time() -> None:
    play = Play(1)
    play.client.sends(chat(head=identified(b"id-1")))
    play.streams("b1", "a")
    play.passes(1)
    play.client.fills()
    play.passes(7)
    play.client.drains()
    play.passes(1)
    play.ends("b1", "b")
    (entry,) = one(play, "id-1")
    assert parts(entry) == [("decode", 2000, "b1", None), ("client", 7000, None, None)]


def test_a_client_that_leaves_while_it_takes_nothing() -> None:
    play = Play(1)
    play.client.sends(chat(head=identified(b"id-1")))
    play.streams("b1", "a")
    play.client.fills()
    play.passes(3)
    play.client.resets()
    (entry,) = one(play, "id-1")
    assert parts(entry) == [("client", 3000, None, None)]
    assert (entry["status"], entry["whole"], entry["failed"]) == (200, False, True)
    (kept,) = play.plane.recent.all()
    assert round(kept.record.stalled_s) == 3


def test_a_running_stream_is_listed_once_it_is_old(play: Play) -> None:
    play.client.sends(chat(head=identified(b"id-1")))
    play.streams("b1", "a")
    play.passes(4)
    assert listed(play) == []
    play.passes(2)
    (entry,) = listed(play, backend="b1")
    assert (entry["state"], entry["status"], entry["failed"]) == ("running", None, False)
    assert parts(entry) == [("decode", 6000, "b1", None)]
    assert one(play, "id-1")[0]["state"] == "running"
    assert listed(play, backend="b2") == listed(play, failed="true") == []


def test_those_that_run_leave_half_of_the_places_to_others(play: Play) -> None:
    play.client.sends(b"GET /x HTTP/1.1\r\nhost: x\r\nx-request-id: over\r\n\r\n")
    clients = [play.connects() for _ in range(30)]
    for number, client in enumerate(clients):
        client.sends(chat(head=identified(b"id-%d" % number)))
        play.passes(0.05)
    play.passes(6)
    told = listed(play)
    assert [each["state"] for each in told] == ["running"] * 20 + ["ended"]  # all of one client
    assert [each["id"] for each in listed(play, limit="2")] == ["id-0", "over"]
    assert [each["id"] for each in listed(play, limit="1")] == ["over"]


def test_many_that_run_are_looked_at_in_steps_and_told_in_order(play: Play) -> None:
    clients = [play.connects() for _ in range(2 * AT_ONCE + 10)]
    for number, client in enumerate(clients):
        client.sends(chat(head=identified(b"id-%d" % number)))
        play.passes(0.001)
    looked = [0]

    def fits(request: Request) -> bool:
        looked[-1] += 1
        return request.answer.request_id != b"id-3"

    async def others() -> None:
        while True:
            looked.append(0)
            await asyncio.sleep(0)

    async def names(*, latest_first: bool) -> list[bytes]:
        beside = asyncio.ensure_future(others())
        found = under_way(play.plane, fits, latest_first=latest_first)
        told = [kept.request_id async for kept in found]
        beside.cancel()
        return told

    ids = [b"id-%d" % number for number in range(len(clients)) if number != 3]
    assert play.loop.run_until_complete(names(latest_first=False)) == ids
    assert play.loop.run_until_complete(names(latest_first=True)) == ids[::-1]
    assert max(looked) <= AT_ONCE


def _rest(begun: Coroutine[Any, Any, Iterator[T]]) -> list[T]:
    """What it returns when it goes on without a loop."""
    try:
        while True:
            begun.send(None)
    except StopIteration as over:
        return list(over.value)


def test_what_ends_while_others_are_looked_at_is_told_once(play: Play) -> None:
    play.client.sends(chat(head=identified(b"id-1")))
    play.passes(6)

    asking = request_listing(play.plane, {})
    asking.send(None)  # the step in which it was seen
    play.answers("b1")
    assert [each["state"] for each in _rest(asking)] == ["ended"]


def test_a_request_that_is_refused_by_its_head_is_kept(play: Play) -> None:
    play.client.sends(b"GET /secret HTTP/1.1\r\nhost: x\r\nx-request-id: id-1\r\n\r\n")
    play.connects().sends(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: id-2\r\n"
                          b"content-length: 100\r\n\r\n{")  # fmt: skip
    for client in list(play.plane.clients):
        client.eof_received()  # type: ignore[attr-defined]
    assert [(each["id"], each["status"], each["error"]) for each in listed(play)] == [
        ("id-2", 499, None),
        ("id-1", 404, "unknown_path"),
    ]
    assert "secret" not in str(listed(play))


@pytest.mark.parametrize("sent_bytes", [60, -5], ids=["half a head", "half a body"])
def test_the_time_of_a_client_that_does_not_finish_its_request_is_told(
    play: Play, sent_bytes: int
) -> None:
    play.passes(7)  # before its first byte nothing counts
    play.client.sends(chat(head=identified(b"id-1"))[:sent_bytes])
    play.passes(100)
    (entry,) = listed(play)
    limits = play.plane.timeouts
    limit_ms = 1e3 * (limits.client_head_s if sent_bytes > 0 else limits.client_body_s)
    assert (entry["status"], entry["error"]) == (408, "request_timeout")
    assert entry["duration_ms"] == pytest.approx(limit_ms, abs=200.0)
    ((name, ms, _, _),) = parts(entry)
    assert (name, ms) == ("receive", round(entry["duration_ms"], -1))
    assert mostly(entry) == "client sent slowly"


def test_the_time_of_a_client_that_leaves_before_its_body_is_whole_is_told(play: Play) -> None:
    lines = AccessLines(play)
    play.client.sends(chat(head=identified(b"id-1"))[:-5])
    play.passes(4)
    play.client.connection.eof_received()
    (entry,) = listed(play)
    assert parts(entry) == [("receive", 4000, None, None)]
    assert [(each["status"], round(each["duration_ms"], -1)) for each in lines.told()] == [
        (499, 4000)
    ]


def test_a_request_that_is_refused_at_once_is_not_charged_for_a_silent_connection(
    play: Play,
) -> None:
    lines = AccessLines(play)
    for _ in range(2):
        play.passes(7)
        play.client.sends(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
    play.passes(7)
    play.client.connection.give_way(asked=True)  # its next request is not read any more
    assert [each["duration_ms"] for each in listed(play)] == [0.0] * 3
    assert {mostly(each) for each in listed(play)} == {"refused at once"}
    assert [list(each)[-2:] for each in lines.told()] == [["duration_ms", "error"]] * 3


def test_an_id_is_told_for_each_client_that_used_it(play: Play) -> None:
    """A flood under somebody's id hides nothing of it."""
    play.client.sends(b"GET /x HTTP/1.1\r\nhost: x\r\nx-request-id: same\r\n\r\n")
    entry = listed(play)[0]
    for _ in range(50):
        play.client.sends(b"GET /x HTTP/1.1\r\nhost: x\r\nx-request-id: same\r\n\r\n")
    assert len(one(play, "same")) == 1
    assert len(listed(play, limit="500")) == 51
    assert entry["id"] == "same"


def kept(name: str, began_s: float) -> Kept:
    record = Record(began_s, began_s, began_s)
    record.ended_s = began_s + 0.5
    return Kept(record, b"same", name, name, None, stream=False)


def test_of_an_id_that_many_used_later_the_first_user_is_still_found(play: Play) -> None:
    now_s = play.loop.now_s
    play.plane.recent.add(kept("victim", now_s - 90.0))
    for number in range(400):
        play.plane.recent.add(kept(f"{number}", now_s - 80.0 + number / 10))
    told = one(play, "same")
    assert [each["tenant"] for each in told] == [f"{number}" for number in range(399, 349, -1)]
    assert {each["same_id"] for each in told} == {401}
    (first,) = one(play, "same", tenant="victim")
    # The wall clock goes on here, and the other one does not. The next one began 10 s later.
    before = datetime.fromisoformat(first["began"]) + timedelta(seconds=5)
    for query in ({"tenant": "victim"}, {"before": before.isoformat()}):
        (entry,) = one(play, "same", **query)
        assert (entry["tenant"], entry["same_id"]) == ("victim", 1)
    assert one(play, "same", limit="500")[-1]["tenant"] == "victim"
    assert one(play, "same", before="2001-01-01T00:00:00Z") == []
    assert len(one(play, "same", before="2999-01-01", limit="500")) == 401


def test_those_that_run_under_an_id_leave_half_of_the_places_to_others() -> None:
    """A tenant each: of one only the latest is told."""
    keys = [f"{number:032}" for number in range(60)]
    tenants = [{"name": f"t{key[-2:]}", "keys": [{"key": key}]} for key in keys]
    play = Play(1, tenants=tenants)
    for name in (*map(str, range(40)), "victim"):
        play.plane.recent.add(kept(name, play.loop.now_s - 90.0))
    clients = [play.connects() for _ in keys]
    for client, key in zip(clients, keys, strict=True):
        keyed = b"authorization: Bearer %s\r\n" % key.encode()
        client.sends(chat(head=identified(b"same", keyed)))
    told = one(play, "same")
    assert [each["state"] for each in told] == ["running"] * 25 + ["ended"] * 25
    assert "victim" in [each["tenant"] for each in told]
    assert told[0]["same_id"] == 101


@pytest.mark.parametrize(
    ("of_one", "query"),
    [
        *((True, each) for each in ({"before": "-1"}, {"before": "x"}, {"before": ""})),
        *((each, {"limit": "501"}) for each in (True, False)),
        (True, {"slow": "1"}),
        *(
            (False, each)
            for each in ({"limit": "0"}, {"limit": "x"}, {"slow": "maybe"}, {"x": "1"})
        ),
    ],
)
def test_a_query_that_nobody_understands_is_refused(
    play: Play, of_one: bool, query: dict[str, str]
) -> None:
    with pytest.raises(BadQuery):
        one(play, "same", **query) if of_one else listed(play, **query)


def test_a_wait_for_any_backend_is_told_as_that() -> None:
    play = Play(1, admission={"enabled": True, "hold_for_backend_s": 60})
    play.backends[0].state = State.EJECTED
    play.client.sends(chat(head=identified(b"id-1")))
    play.passes(7)
    assert parts(listed(play)[0]) == [("queue", 7000, None, "backend")]
    play.backends[0].state = State.READY
    play.passes(0.2)
    play.answers("b1")
    (entry,) = one(play, "id-1")
    assert next(part[::3] for part in parts(entry)) == ("queue", "backend")


def test_with_tenants_all_who_show_no_key_are_one() -> None:
    """They may have many addresses, and would push out each other's and nobody else's."""
    tenants = [{"name": "one", "keys": [{"key": "0123456789abcdef" * 2}]}]
    for keyed, owners in ((False, {"10.0.0.1", "10.0.0.2"}), (True, {""})):
        play = Play(1, tenants=tenants if keyed else [])
        for peer in (b"10.0.0.1", b"10.0.0.2"):
            answer = answer_to(play.plane, play.client, None)
            client: Any = SimpleNamespace(peer=peer, began_s=play.loop.now_s)
            refused(play.plane, None, answer, Unauthorized(), client)
        assert {kept.owner for kept in play.plane.recent.all()} == owners
