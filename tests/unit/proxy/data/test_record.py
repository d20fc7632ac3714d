"""What is told of a request at its end: when what happened, who was tried, what it cost."""

from typing import Any

import pytest

from penstock.proxy.telemetry.access_log import add_request
from penstock.proxy.telemetry.pool_metrics import Lately
from penstock.proxy.telemetry.record import Record
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, chunk, plain, token

USAGE = chunk(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n')


def record_of(play: Play) -> Record:
    """Of the request that is under way."""
    return play.client.exchange.request.record


def line_of(record: Record) -> dict[str, Any]:
    line: dict[str, Any] = {}
    add_request(line, record, "m", stream=True)
    return line


def test_every_time_of_a_request_is_kept() -> None:
    play = Play(1)
    request = chat()
    play.client.sends(request[:9])
    play.passes(1)
    play.client.sends(request[9:-1])
    play.passes(1)
    play.client.sends(request[-1:])
    record = record_of(play)
    play.passes(1)
    play.streams("b1")
    play.passes(1)
    play.says("b1", "a")
    play.passes(1)
    play["b1"].sends(token("b"), USAGE, DONE, END)
    line = line_of(record)
    times = ("accepted_ms", "received_ms", "read_ms", "sent_ms", "first_byte_ms", "ttft_ms")
    assert [round(line[name], -1) for name in times] == [1000, 2000, 2000, 2000, 3000, 4000]
    assert round(line["duration_ms"], -1) == 5000
    assert (line["backend"], line["attempts"], line["whole"]) == ("b1", 1, True)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (7, 2)
    assert (line["pool"], line["reason"], line["class"]) == ("p", "only", "standard")
    assert (line["overhead_ms"], line["cached_tokens"]) == (0.0, None)
    assert "failed" not in line


def test_every_attempt_that_failed_is_kept(play: Play) -> None:
    play.client.sends(chat())
    record = record_of(play)
    play.passes(2)
    play["b1"].resets()
    play.answers("b2")
    line = line_of(record)
    (failed,) = line["failed"]
    assert (failed["backend"], failed["reason"], failed["failure"]) == ("b1", "cost", "reset")
    assert (failed["began_ms"], round(failed["ended_ms"], -1)) == (0.0, 2000)
    assert (line["backend"], line["attempts"], line["sent_ms"]) == ("b2", 2, 0.0)


def test_a_500_that_is_passed_on_is_a_failed_attempt(play: Play) -> None:
    play.client.sends(chat())
    record = record_of(play)
    play.passes(2)
    for name in ("b1", "b2"):
        play[name].sends(plain("500 No"))
    line = line_of(record)
    failed, again = line["failed"]
    assert (again["backend"], again["failure"]) == ("b2", "internal")
    assert (failed["backend"], failed["failure"]) == ("b1", "internal")
    assert (round(failed["ended_ms"], -1), line["attempts"]) == (2000, 2)


def test_a_stale_connection_changes_nothing_of_when_it_was_sent() -> None:
    play = Play(1)
    play.client.sends(chat())
    play.answers("b1")
    play.passes(1)
    play.client.sends(chat())
    record = record_of(play)
    play.passes(0.2)
    play["b1"].resets()
    assert (len(record.tries), line_of(record)["sent_ms"]) == (1, 0.0)


def test_sleep_of_the_process_is_no_time_of_the_request(play: Play) -> None:
    request = chat()
    play.client.sends(request[:-1])
    play.sleeps(100)
    play.client.sends(request[-1:])
    assert line_of(record_of(play))["accepted_ms"] == 0.0


def test_what_never_happened_has_no_time(play: Play) -> None:
    play.down = {"b1": None}
    play.client.sends(chat())
    record = record_of(play)
    play.client.closes()
    line = line_of(record)
    assert (line["sent_ms"], line["first_byte_ms"], line["ttft_ms"]) == (None, None, None)
    assert (line["backend"], line["prompt_tokens"], record.status) == ("b1", None, 499)


def test_an_answer_teaches_while_its_lease_holds() -> None:
    """What the backend counted is compared before the claim on its cache is given up."""
    play = Play(1)
    play.client.sends(chat())
    play["b1"].sends(STREAM, token("a"), USAGE, DONE, END)
    assert sum(play.metrics.estimate_ratio.counts) == 1
    play.client.sends(chat())
    play["b1"].sends(STREAM, token("a"), USAGE)
    play.client.resets()  # before its end, and the counts have come
    assert sum(play.metrics.estimate_ratio.counts) == 2


@pytest.fixture
def play() -> Play:
    timeouts = {"first_byte_s": 60.0, "hold_s": 5.0}
    return Play(2, timeouts=timeouts)


def lately(play: Play, name: str) -> Lately:
    found = play.metrics.of("p").backend(name).lately
    found.advance(play.loop.now_s)
    return found


def counted(play: Play, name: str) -> tuple[int, float | None]:
    found = lately(play, name)
    return found.first_tokens, found.ttft_s(0.95)


def test_a_first_token_counts_when_it_comes_and_once(play: Play) -> None:
    play.client.sends(chat())
    play.passes(1)
    assert counted(play, "b1") == (0, None)
    play.streams("b1", "a")
    count, ttft_s = counted(play, "b1")
    assert count == 1
    assert ttft_s is not None
    assert 1.0 <= ttft_s <= 1.25
    play.ends("b1", "b")
    assert counted(play, "b1")[0] == 1
    assert counted(play, "b2")[0] == 0


def test_a_stream_that_was_held_counts_too(play: Play) -> None:
    play.client.sends(chat())
    play.streams("b1")
    play.passes(8)  # the client has its 200 and pings
    play.ends("b1", "a")
    count, ttft_s = counted(play, "b1")
    assert (count, ttft_s is not None and 8.0 <= ttft_s <= 10.0) == (1, True)


def test_a_client_that_sends_slowly_is_no_slow_backend(play: Play) -> None:
    request = chat()
    play.client.sends(request[:-5])
    play.passes(10)
    play.client.sends(request[-5:])
    play.answers("b1")
    count, ttft_s = counted(play, "b1")
    assert (count, ttft_s is not None and ttft_s < 0.1) == (1, True)


def test_a_plain_answer_has_no_first_token(play: Play) -> None:
    play.client.sends(chat(stream=False))
    play["b1"].sends(plain("200 OK", b'{"choices":[{"text":"a"}]}'))
    assert counted(play, "b1")[0] == 0


def test_a_failure_counts_at_the_backend_that_failed_with_its_reason(play: Play) -> None:
    play.client.sends(chat())
    play["b1"].resets()
    play.answers("b2")
    failed, served = lately(play, "b1"), lately(play, "b2")
    assert (failed.failures, failed.failure, failed.failed_s) == (1, "reset", play.loop.now_s)
    assert (served.failures, served.failure, served.first_tokens) == (0, "", 1)


def test_a_client_that_leaves_or_asks_for_what_is_wrong_is_no_failure(play: Play) -> None:
    play.client.sends(chat(stream=False))
    play["b1"].sends(plain("400 Bad Request", b'{"error":{}}'))
    play.client.sends(chat())
    play.client.closes()
    assert [lately(play, name).failures for name in ("b1", "b2")] == [0, 0]
