"""Verdicts: all parts of an answer tell the same, and which clients are slow."""

from collections.abc import Iterator

import pytest

from penstock.balancing.engine_report import EngineReport
from penstock.balancing.verdict.cause import Finding, Kind
from penstock.balancing.verdict.verdict import Verdict
from penstock.proxy.admin.fleet_listing import describe
from penstock.proxy.admin.listings import slo_listing
from penstock.proxy.admin.verdicts import CLIENTS_MAX, UNTAKEN_BYTES, Reading, SlowClients, Verdicts
from penstock.proxy.commands.fleet_table import state_of
from penstock.proxy.data.ending import EndingConnection
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, plain, text, token

SLO = [{"pool": "p", "ttft_s": {"p95": 0.5}}]


@pytest.fixture
def pair() -> Iterator[Play]:
    pair = Play(slo=SLO)
    yield pair
    pair.close()


def told(pair: Play, finding: Finding) -> Verdicts:
    """Verdicts of which one is this."""
    verdicts = Verdicts(pair.plane)
    verdicts.by_pool["p"] = verdict = Verdict(pair.loop.now_s)
    verdict.finding, verdict.seen_s = finding, pair.loop.now_s
    return verdicts


def test_the_row_of_a_backend_has_the_figure_of_the_sentence(pair: Play) -> None:
    figures = {"prefill": 1.2, "decode": 7.8}
    verdicts = told(pair, Finding(Kind.UNEVEN, "slow", backend="b1", figures=figures))
    (sentence,) = [each["sentence"] for each in verdicts.listing()]
    assert sentence == "Uneven: for a token b1 takes 7.8 times as long as its peers."
    for backend in pair.backends:
        pace, verdict = verdicts.pace(backend), verdicts.accuses(backend)
        row = describe(backend, {}, pair.loop.now_s, pace=pace, verdict=verdict)
        told_state = (
            state_of(row).removeprefix("ready (loading), ").replace("ready (loading)", "ready")
        )
        assert (row["slower"], told_state) == (
            (7.8, "uneven") if backend.name == "b1" else (None, "ready")
        )


def test_where_the_sentence_speaks_of_several_caches_the_full_ones_are_marked(pair: Play) -> None:
    first, second = pair.backends
    first.report, second.report = EngineReport(0.0, kv_usage=0.97), EngineReport(0.0, kv_usage=0.5)
    verdicts = told(pair, Finding(Kind.MEMORY, figures={"kv_usage": 0.97, "full": 2.0}))
    assert [verdicts.accuses(each) for each in (first, second)] == [Kind.MEMORY, None]


def test_a_row_that_is_not_ready_is_not_called_fine(pair: Play) -> None:
    verdicts = told(pair, Finding(Kind.FINE, "suspect", backend="b1"))
    assert [verdicts.accuses(each) for each in pair.backends] == [None, None]


def test_the_sentence_says_of_a_missed_level_what_the_level_says(pair: Play) -> None:
    for _ in range(12):
        pair.client.sends(chat())
        name = next(each.name for each in pair.backends if each.requests_in_flight)
        pair.passes(2.0)
        pair[name].sends(STREAM, token("a"), DONE, END)
    pair.passes(1.0)
    pair.metrics.count_ended()
    (level,) = slo_listing(pair.plane.slos.evaluated(), pair.plane.now())
    assert level["state"] == "critical"
    ((pool, missed),) = Verdicts(pair.plane)._missed()
    assert (pool, missed.name, missed.because) == ("p", "ttft_p95", level["because"])
    verdicts = told(pair, Finding(Kind.MISSED, missed=(missed,)))
    (listed,) = verdicts.listing()
    assert str(level["because"]) in str(listed["sentence"])
    assert listed["kind"] != "fine"


# Clients that do not take what came for them ------------------------------------------------------


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def look(slow: SlowClients, play: Play) -> Reading:
    """The second of two looks."""
    play.loop.run_until_complete(slow.look())
    return play.loop.run_until_complete(slow.look()).get("p", Reading())


def test_a_client_that_takes_nothing_is_slow_at_the_second_look(play: Play) -> None:
    slow = SlowClients(play.plane)
    play.client.sends(chat())
    play["b1"].sends(STREAM, token("a"))
    assert look(slow, play) == Reading(clients=1)
    play.client.fills()
    play["b1"].sends(token("a" * UNTAKEN_BYTES))
    first = play.loop.run_until_complete(slow.look())["p"]
    assert (first.clients, first.slow) == (1, 0)
    assert look(slow, play).slow == 1
    (kept,) = play.plane.clients
    assert isinstance(kept, EndingConnection)
    assert kept.request is not None
    record = kept.request.record
    play.passes(2.0)
    look(slow, play)
    assert record.stalled_since_s
    assert record.behind_s == 0.0  # its stall is counted already
    record.flows(play.loop.time())
    play.passes(2.0)
    look(slow, play)
    assert record.behind_s == 2.0
    record.received_s = play.loop.time() + 1.5  # as if it were the next one of its connection
    play.passes(2.0)
    look(slow, play)
    assert record.behind_s == 2.5
    play.client.drains()


@pytest.mark.parametrize("served", [False, True])
def test_connections_that_ask_for_nothing_hide_nobody(play: Play, *, served: bool) -> None:
    """Nor do those that were served before, as a gateway keeps many."""
    slow = SlowClients(play.plane)
    others = [play.connects() for _ in range(CLIENTS_MAX + 10)]
    for other in others:
        other.sends(chat(stream=False) if served else HEALTH)
        if served:
            play["b1"].sends(plain("200 OK", text("a")))
    client = play.connects()
    client.sends(chat())
    play["b1"].sends(STREAM, token("a"))
    client.fills()
    play["b1"].sends(token("a" * UNTAKEN_BYTES))
    found = look(slow, play)
    assert (found.clients, found.slow) == (1, 1)
    client.drains()
    for each in (*others, client):
        each.closes()
