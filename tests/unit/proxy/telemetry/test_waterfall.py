"""Where the time of a request went: the parts of its record, and what a client is told of them."""

from random import Random

import pytest

from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import server_timing, waterfall


def record_of(**times: float | str | bool) -> Record:
    record = Record(100.0, 100.5, 101.0)
    record.read_s = 101.25
    for name, value in times.items():
        setattr(record, name, value)
    return record


def tried(record: Record, backend: str, began_s: float, **times: float | str) -> None:
    record.begin_try(backend, "p", "cost", began_s)
    for name, value in times.items():
        setattr(record.tries[-1], name, value)


def parts_of(record: Record, now_s: float = 0.0) -> list[tuple[str, float, str, str]]:
    return [
        (each.name, round(each.seconds, 6), each.backend, each.why)
        for each in waterfall(record, now_s)
    ]


def test_a_stream_that_waited_and_failed_over_has_every_part() -> None:
    record = record_of(ended_s=120.0, streamed=True, waited_s=2.0, waits_for="kv_cache")
    tried(record, "b1", 103.5, sent_s=103.6, failure="reset", ended_s=104.5)
    served = {"sent_s": 104.75, "first_byte_s": 105.0, "first_token_s": 108.0}
    tried(record, "b2", 104.5, **served)
    record.stalled_s = 4.0
    assert parts_of(record) == [
        ("receive", 1.0, "", ""),
        ("read", 0.25, "", ""),
        ("choose", 0.25, "", ""),
        ("queue", 2.0, "", "kv_cache"),
        ("failed", 1.0, "b1", "reset"),
        ("connect", 0.25, "b2", ""),
        ("head", 0.25, "b2", ""),
        ("prefill", 3.0, "b2", ""),
        ("decode", 8.0, "b2", ""),
        ("client", 4.0, "", ""),
    ]


def test_a_plain_answer_has_no_prefill_of_its_own() -> None:
    record = record_of(ended_s=110.0)
    tried(record, "b1", 101.25, sent_s=101.25, first_byte_s=109.0, first_token_s=109.5)
    assert parts_of(record)[2:] == [("head", 7.75, "b1", ""), ("body", 1.0, "b1", "")]


def test_a_stream_that_broke_keeps_its_parts_and_the_failure() -> None:
    record = record_of(ended_s=111.0, streamed=True)
    times = {"sent_s": 102.0, "first_byte_s": 103.0, "first_token_s": 104.0}
    tried(record, "b1", 101.25, **times, failure="idle", ended_s=110.0)
    assert parts_of(record)[2:] == [
        ("connect", 0.75, "b1", ""),
        ("head", 1.0, "b1", ""),
        ("prefill", 1.0, "b1", ""),
        ("decode", 6.0, "b1", "idle"),
        ("end", 1.0, "", ""),
    ]


def test_what_still_runs_is_told_up_to_now() -> None:
    waits = record_of(waiting_since_s=101.5, waits_for="")
    assert parts_of(waits, 104.0)[2:] == [("choose", 0.25, "", ""), ("queue", 2.5, "", "")]
    stalls = record_of(streamed=True, stalled_since_s=105.0)
    tried(stalls, "b1", 101.25, sent_s=101.25, first_byte_s=101.5, first_token_s=102.0)
    assert parts_of(stalls, 106.0)[-2:] == [("decode", 3.0, "b1", ""), ("client", 1.0, "", "")]


def test_a_wait_after_a_failure_is_a_wait_of_its_own() -> None:
    """All waits together are known, and none is longer than what came before its attempt."""
    record = record_of(ended_s=110.0, waited_s=4.5, waits_for="turn")
    tried(record, "b1", 103.25, failure="reset", ended_s=104.0)
    tried(record, "b2", 107.0, sent_s=107.0, first_byte_s=109.0)
    assert parts_of(record)[2:] == [
        ("queue", 2.0, "", "turn"),
        ("failed", 0.75, "b1", "reset"),
        ("choose", 0.5, "", ""),
        ("queue", 2.5, "", "turn"),
        ("head", 2.0, "b2", ""),
        ("body", 1.0, "b2", ""),
    ]


def test_a_client_that_left_before_the_body_was_read() -> None:
    record = record_of(read_s=0.0, ended_s=103.0)
    assert parts_of(record) == [("receive", 1.0, "", ""), ("read", 2.0, "", "")]


@pytest.mark.parametrize("seed", range(400))
def test_the_parts_of_any_record_add_up_to_all_of_its_time(seed: int) -> None:
    """Times may be missing, and in any order: no fault of ours may invent or lose time."""
    rng = Random(seed)

    def at(share: float = 0.7) -> float:
        return rng.uniform(95.0, 125.0) if rng.random() < share else 0.0

    record = record_of(read_s=at(), waited_s=rng.choice((0.0, rng.uniform(0, 40))))
    record.waiting_since_s, record.stalled_since_s = at(0.2), at(0.2)
    record.stalled_s = rng.choice((0.0, rng.uniform(0, 40)))
    record.streamed = rng.random() < 0.5
    for number in range(rng.randrange(4)):
        names = ("sent_s", "first_byte_s", "first_token_s", "ended_s")
        tried(record, f"b{number}", at(), **{name: at() for name in names})
        record.tries[-1].failure = rng.choice(("", "reset"))
    record.ended_s = rng.uniform(100.0, 125.0) if rng.random() < 0.8 else 0.0
    parts = waterfall(record, 130.0)
    assert all(part.seconds > 0.0 for part in parts)
    assert sum(part.seconds for part in parts) == pytest.approx((record.ended_s or 130.0) - 100.0)


def test_a_client_is_told_of_times_and_of_no_backend() -> None:
    record = record_of(waited_s=2.0, waits_for="turn", streamed=True)
    tried(record, "b1", 103.25, failure="reset", ended_s=104.0)
    tried(record, "b2", 104.0, sent_s=104.5, first_byte_s=105.0, first_token_s=106.0)
    assert server_timing(record, 106.0) == (
        b'read;dur=250.000, queue;dur=2000.000;desc="turn", failed;dur=750.000,'
        b" connect;dur=500.000, upstream;dur=1500.000"
    )
