"""Rates of the pools and the parts of first tokens, as requests through the real data path."""

import pytest

from penstock.proxy.admin.page.history import GAP_S, FirstTokens, Rates
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, plain, token


def looked(play: Play, rates: Rates) -> dict[str, dict[str, object]]:
    play.loop.run_until_complete(rates.take(parts=True))
    return rates.look()


def served(play: Play) -> None:
    """One stream whose first token takes two seconds."""
    play.client.sends(chat())
    play.passes(2.0)
    play["b1"].sends(STREAM, token("a"), DONE, END)


def test_rates_are_known_from_the_second_look_on(play: Play) -> None:
    rates = Rates(play.plane)
    assert looked(play, rates)["p"]["requests_per_s"] is None
    served(play)
    told = looked(play, rates)["p"]
    assert told["requests_per_s"] == pytest.approx(0.5, abs=0.05)
    assert (told["failed_per_s"], told["refused_per_s"]) == (0.0, 0.0)
    assert (told["streams"], told["cost_per_hour"]) == (1, None)
    assert told["ttft_p50_s"] == pytest.approx(2.0, abs=0.1)
    parts = told["parts"]
    assert isinstance(parts, dict)
    assert parts["engine"] == pytest.approx(2.0, abs=0.1)
    assert sum(parts.values()) == pytest.approx(told["ttft_mean_s"], abs=0.01)


def test_a_failure_counts_for_its_pool(play: Play) -> None:
    rates = Rates(play.plane)
    looked(play, rates)
    play.client.sends(chat(stream=False))
    play.passes(1.0)
    play["b1"].sends(plain("500 Internal Server Error"))
    told = looked(play, rates)["p"]
    assert told["failed_per_s"] == pytest.approx(1.0, abs=0.1)


def test_after_a_gap_nothing_is_known_of_the_rates(play: Play) -> None:
    rates = Rates(play.plane)
    looked(play, rates)
    served(play)
    play.passes(GAP_S + 1.0)
    assert looked(play, rates)["p"]["requests_per_s"] is None


def stream(ended_s: float, ttft_s: float, number: int) -> Kept:
    record = Record(ended_s - 2 * ttft_s, ended_s - 2 * ttft_s, ended_s - 2 * ttft_s)
    record.read_s = record.began_s
    record.begin_try("b1", "p", "cost", record.began_s)
    record.tries[0].sent(record.began_s)
    record.tries[0].first_byte_s = record.tries[0].first_token_s = record.began_s + ttft_s
    record.streamed, record.ended_s = True, ended_s
    kept = Kept(record, b"id", "owner", "", None, stream=True)
    kept.number = number
    return kept


def test_percentiles_are_of_the_last_minute() -> None:
    first_tokens = FirstTokens()
    for each in range(1, 101):
        first_tokens.add(stream(100.0, each / 100, each), 100.0)
    told = first_tokens.told(100.0)["p"]
    assert (told["streams"], told["ttft_p50_s"], told["ttft_p95_s"]) == (100, 0.51, 0.96)
    assert first_tokens.told(159.0)["p"]["streams"] == 100
    assert first_tokens.told(161.0) == {}
    first_tokens.add(stream(100.0, 1.0, 200), 161.0)  # told late: nobody has looked meanwhile
    assert first_tokens.told(161.0) == {}


def test_fast_requests_of_one_client_make_failures_of_another_no_more(play: Play) -> None:
    rates = Rates(play.plane)
    looked(play, rates)
    counts = play.metrics.of("p")
    for number in range(2_000):
        counts.request("b1", 200 if number % 200 else 502, 0.01)
        play.plane.recent.add(kept("fast" if number % 200 else "slow", number % 200 == 0))
    play.passes(1.0)
    told = looked(play, rates)["p"]
    assert told["requests_per_s"] == pytest.approx(2_000.0, rel=0.05)
    assert told["failed_per_s"] == pytest.approx(10.0, rel=0.05)


def kept(owner: str, failed: bool) -> Kept:
    record = Record(1_000.0, 1_000.0, 1_000.0)
    record.ended_s, record.status, record.whole = 1_000.5, 502 if failed else 200, not failed
    return Kept(record, b"id", owner, "", None, stream=False)
