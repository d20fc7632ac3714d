"""The sentence, the rows of backends and the service levels are read from the same facts."""

from collections.abc import Iterator

import pytest

from penstock.balancing.verdict.cause import Finding, Kind
from penstock.balancing.verdict.verdict import Verdict
from penstock.proxy.admin.fleet_listing import describe
from penstock.proxy.admin.listings import slo_listing
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.commands.fleet_table import state_of
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, token

SLO = [{"pool": "p", "ttft_s": {"p95": 0.5}}]


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play(slo=SLO)
    yield play
    play.close()


def told(play: Play, finding: Finding) -> Verdicts:
    """Verdicts of which one is this."""
    verdicts = Verdicts(play.plane)
    verdicts.by_pool["p"] = verdict = Verdict(play.loop.now_s)
    verdict.finding, verdict.seen_s = finding, play.loop.now_s
    return verdicts


def test_the_row_of_a_backend_has_the_figure_of_the_sentence(play: Play) -> None:
    figures = {"prefill": 1.2, "decode": 7.8}
    verdicts = told(play, Finding(Kind.UNEVEN, "slow", backend="b1", figures=figures))
    (sentence,) = [each["sentence"] for each in verdicts.listing()]
    assert sentence == "Uneven: for a token b1 takes 7.8 times as long as its peers."
    for backend in play.backends:
        pace, verdict = verdicts.pace(backend), verdicts.accuses(backend)
        row = describe(backend, {}, play.loop.now_s, pace=pace, verdict=verdict)
        told_state = (
            state_of(row).removeprefix("ready (loading), ").replace("ready (loading)", "ready")
        )
        assert (row["slower"], told_state) == (
            (7.8, "uneven") if backend.name == "b1" else (None, "ready")
        )


def test_the_sentence_says_of_a_missed_level_what_the_level_says(play: Play) -> None:
    for _ in range(12):
        play.client.sends(chat())
        name = next(each.name for each in play.backends if each.requests_in_flight)
        play.passes(2.0)
        play[name].sends(STREAM, token("a"), DONE, END)
    play.passes(1.0)
    play.metrics.count_ended()
    (level,) = slo_listing(play.plane.slos.evaluated(), play.plane.now())
    assert level["state"] == "critical"
    ((pool, missed),) = Verdicts(play.plane)._missed()
    assert (pool, missed.name, missed.because) == ("p", "ttft_p95", level["because"])
    verdicts = told(play, Finding(Kind.MISSED, missed=(missed,)))
    (listed,) = verdicts.listing()
    assert str(level["because"]) in str(listed["sentence"])
    assert listed["kind"] != "fine"
