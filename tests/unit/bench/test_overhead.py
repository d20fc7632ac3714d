"""The overhead benchmark's pure parts: bytes, bins, clocks, the wheel, the table."""

import json
import os
import time
from pathlib import Path

import pytest

from penstock.bench import meter
from penstock.bench.overhead import answers, history
from penstock.bench.overhead.backend import Wheel
from penstock.bench.overhead.cli import Row, cell, ratio_cell, report, table
from penstock.bench.overhead.client import fault_of
from penstock.bench.overhead.loads import DEFAULT, QUICK, LoadReport, Plan
from penstock.bench.overhead.rounds import DIRECT, Results, order
from penstock.bench.peers.field import Peer
from penstock.bench.report import BenchError


def stream_of(events: int, *, usage: bool = False) -> bytes:
    return answers.TOKEN_CHUNK * (events - 1) + answers.stream_end(usage=usage)


# The bytes ----------------------------------------------------------------------------------


def test_an_event_is_a_chat_chunk_of_vllms_size() -> None:
    assert answers.TOKEN.startswith(b"data: {")
    assert answers.TOKEN.endswith(b"}]}\n\n")
    assert 220 <= len(answers.TOKEN) <= 280
    assert answers.TOKEN.count(b'"finish_reason":null') == 1
    choice = json.loads(answers.LAST[6:])["choices"][0]
    assert choice["finish_reason"] == "length"


def test_a_chunk_states_its_length_in_hex() -> None:
    assert answers.chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_a_dechunked_stream_is_what_the_client_expects() -> None:
    assert fault_of(answers.STREAM_HEAD + stream_of(5), answers.stream_body(5)) == ""
    assert answers.stream_body(5).count(b"\n\n") == 6  # five tokens and [DONE]


def test_the_usage_chunk_comes_only_when_asked_for() -> None:
    assert answers.USAGE not in stream_of(3)
    end = answers.LAST + answers.USAGE + answers.DONE
    whole = answers.STREAM_HEAD + stream_of(3, usage=True)
    assert fault_of(whole, answers.TOKEN * 2 + end) == ""
    assert json.loads(answers.USAGE[6:])["choices"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        stream_of(3)[:-1],
        stream_of(3)[: -len(answers.LAST_CHUNK)],
        stream_of(3) + b"0",
        b"zz\r\nab\r\n0\r\n\r\n",
        b"5\r\nab\r\n0\r\n\r\n",
        b"-1\r\n\r\n",
    ],
)
def test_a_body_that_is_not_whole_or_too_long_is_told(body: bytes) -> None:
    assert fault_of(answers.STREAM_HEAD + body, answers.stream_body(3)) == "cut"


@pytest.mark.parametrize(
    ("received", "fault"),
    [
        (answers.STREAM_HEAD + stream_of(4), ""),
        (answers.STREAM_HEAD + stream_of(5), "other bytes"),
        (answers.STREAM_HEAD + stream_of(4)[:-5], "cut"),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "status 503"),
        (answers.PLAIN, "not chunked"),
        (b"", "no answer"),
    ],
)
def test_the_client_names_what_is_wrong_with_a_stream(received: bytes, fault: str) -> None:
    assert fault_of(received, answers.stream_body(4)) == fault


def test_of_an_answer_that_was_written_anew_the_words_count() -> None:
    content = answers.stream_body(3)
    spaced = content.replace(b'":"', b'": "').replace(b'"finish_reason":null', b'"x":1')
    head = answers.STREAM_HEAD
    whole = head + answers.chunk(spaced) + answers.LAST_CHUNK
    assert fault_of(whole, content) == "other bytes"
    assert fault_of(whole, content, exact=False) == ""
    other = head + answers.chunk(spaced.replace(b"gate", b"pipe")) + answers.LAST_CHUNK
    assert fault_of(other, content, exact=False) == "other words"
    cut = head + answers.chunk(spaced.replace(answers.DONE, b"")) + answers.LAST_CHUNK
    assert fault_of(cut, content, exact=False) == "other words"


def test_a_long_prompt_is_as_long_as_asked() -> None:
    request = answers.chat_request(prompt_bytes=10_000)
    text = json.loads(request.partition(b"\r\n\r\n")[2])["messages"][1]["content"]
    assert 9_998 <= len(text) <= 10_000  # but for a space at its end


def test_requests_are_framed_and_only_streams_say_so() -> None:
    for request, streams in (
        (answers.chat_request(), False),
        (answers.chat_request(events=7, interval_ms=20), True),
    ):
        head, _, body = request.partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert json.loads(body).get("stream", False) is streams
        assert (b'"max_tokens": 7' in body and b'"seed": 20' in body) is streams


# Clocks -------------------------------------------------------------------------------------


def test_the_clock_of_this_process_is_its_own_cpu_clock() -> None:
    before = time.process_time_ns()
    through = meter.cpu_ns(os.getpid())
    assert before <= through <= time.process_time_ns()


def test_peak_memory_is_read_from_status() -> None:
    assert meter.peak_memory_bytes("Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n") == 2_097_152
    with pytest.raises(ValueError, match="VmHWM"):
        meter.peak_memory_bytes("Name:\tx\n")


def test_machine_ticks_leave_guests_out() -> None:
    text = "cpu  10 1 5 100 4 1 2 3 50 60\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert meter.machine_ticks(text) == (104, 126)


def test_used_is_the_difference_of_two_readings() -> None:
    first = meter.Reading(1.0, {"peer": 100}, 1_000, 2_000)
    used = meter.Reading(3.0, {"peer": 700}, 1_300, 2_400).since(first)
    assert used == meter.Used(2.0, {"peer": 600}, 0.25)


def test_a_report_tells_cost_and_who_else_was_busy() -> None:
    spent = {"peer": 400_000_000, "client": 200_000_000}
    told = LoadReport(count=20_000, window_s=2.0, cpu_ns=spent, busy_share=0.4, broken={})
    assert told.us_each("peer") == pytest.approx(20.0)
    assert told.core_share("peer") == pytest.approx(0.2)
    assert told.others_share(cores=2) == pytest.approx(0.5)


# The wheel and the plan ---------------------------------------------------------------------


class Turns:
    """Notes the ticks at which it is turned; stays `left` turns."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.turned = 0

    def turn(self) -> bool:
        self.turned += 1
        self.left -= 1
        return self.left > 0


class Loop:
    """Takes timers and never fires them."""

    def call_later(self, delay_s: float, callback: object) -> None:
        assert delay_s > 0


def test_the_wheel_spreads_phases_and_drops_what_has_ended() -> None:
    wheel = Wheel(Loop())  # type: ignore[arg-type]
    items = [Turns(left=3) for _ in range(20)]
    for item in items:
        wheel.put(item, 10)
    turned = []
    for tick in range(50):
        before = sum(item.turned for item in items)
        wheel.turn(tick)
        turned.append(sum(item.turned for item in items) - before)
    assert turned[:30] == [2] * 30
    assert turned[30:] == [0] * 20


@pytest.mark.parametrize("plan", [DEFAULT, QUICK])
def test_streams_outlast_the_window(plan: Plan) -> None:
    load = plan.wide
    assert load.events / load.events_per_s > load.ramp_s + load.settle_s + load.window_s
    assert load.interval_ms == 50
    assert load.wanted_per_s == 40_000


def test_more_rounds_are_of_what_is_short() -> None:
    plan = DEFAULT.of_rounds(9)
    assert [each.rounds for each in plan.streams] == [9, 3]
    assert [each.rounds for each in plan.requests] == [9, 9, 3, 3, 3]
    assert (plan.rounds, plan.wide.rounds) == (9, 3)
    assert DEFAULT.of_rounds(1).wide.rounds == 1
    assert QUICK.of_rounds(2).streams[0].window_s == QUICK.streams[0].window_s


def test_every_round_begins_with_another_peer() -> None:
    names = ["a", "b", "c"]
    assert [order(names, number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


# The table ----------------------------------------------------------------------------------


def results() -> Results:
    found = Results()
    for value in (12.0, 13.0, 20.0):
        found.add("stream_us", "penstock", value)
    found.add("stream_us", "nginx", 10.0)
    found.add("stream_us", "aiohttp", 26.0)
    found.add("wide_gap_p99_ms", DIRECT, 51.0)
    return found


def test_a_cell_is_the_median_with_its_spread() -> None:
    row = Row("stream_us", "", 1, ratios=True, spread=True)
    assert cell(results(), row, "penstock") == "13.0 (12.0 to 20.0)"
    assert cell(results(), row, "nginx") == "10.0"
    assert cell(results(), row, "HAProxy") == "-"


def test_faults_are_summed_over_the_rounds() -> None:
    found = Results()
    for broken in (0, 7, 0):
        found.add("wide_broken", "penstock", broken)
    assert cell(found, Row("wide_broken", "", 0, total=True), "penstock") == "7"


def test_ratios_are_quotients_of_medians() -> None:
    row = Row("stream_us", "", ratios=True)
    assert ratio_cell(results(), row, "penstock", "nginx") == "1.30"
    assert ratio_cell(results(), row, "penstock", "aiohttp") == "0.50"
    assert ratio_cell(results(), row, "penstock", "HAProxy") == "-"
    assert ratio_cell(results(), Row("stream_us", ""), "penstock", "nginx") == "-"


def test_the_table_has_a_column_a_peer_and_no_empty_rows() -> None:
    lines = table(results(), DEFAULT, ["penstock", "nginx"]).splitlines()
    assert lines[0] == "|  | direct | penstock | nginx | penstock / nginx |"
    assert len(lines) == 4
    assert lines[2].endswith("| - | 13.0 (12.0 to 20.0) | 10.0 | 1.30 |")
    assert len({line.count("|") for line in lines}) == 1


def test_the_report_names_who_is_missing() -> None:
    found = results()
    found.fault("wide", "nginx", "3 x cut")
    text = report(DEFAULT, found, {}, {Peer.parsed("haproxy"): "not installed"})
    assert "Not measured: HAProxy leastconn (not installed)." in text
    assert "Fault: wide through nginx: 3 x cut." in text


# The history --------------------------------------------------------------------------------


def line(small_us: float, build: str = "compiled") -> dict[str, str]:
    results = Results()
    results.add("request_us", "penstock token_cost", small_us)
    results.add("request_us", "nginx least_conn", 40.0)
    about = {"date": "2026-11-25", "commit": "abc", "build": build, "rounds": "5"}
    return history.line_of(results, ["penstock token_cost", "nginx least_conn"], about)


def test_a_line_of_the_history_has_ratios_of_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "overhead.csv"
    assert history.read(path) == []
    for small_us in (100.0, 110.0):
        history.add(path, line(small_us))
    first, second = history.read(path)
    assert (first["request/nginx"], second["request/nginx"]) == ("2.500", "2.750")
    assert (first["request/aiohttp"], first["commit"]) == ("", "abc")


def test_what_became_dearer_is_told() -> None:
    before = [line(100.0), line(109.0), line(10.0, "interpreted"), line(118.0)]
    assert history.dearer(line(114.0), before) == []
    assert history.dearer(line(120.0), before) == ["request/nginx: 3.000, once 2.500"]
    assert history.dearer(line(900.0), []) == []


def test_another_file_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BenchError, match="other columns"):
        history.read(path)
