"""How long starts take: only of servers that were seen to start."""

from penstock.balancing.backend import Backend
from penstock.balancing.cold_start import ColdStart
from penstock.balancing.engine_report import EngineReport


def test_a_server_that_was_ready_at_first_sight_started_before() -> None:
    start = ColdStart()
    start.probed("", 1.0, starting=True)
    start.served(9.0)
    assert start.last_s is None


def test_from_the_first_sign_to_the_first_token() -> None:
    start = ColdStart()
    start.probed("unreachable", 1.0, starting=True)
    start.probed("timeout", 10.0, starting=True)
    start.probed("status_503", 20.0, starting=True)
    start.probed("", 40.0, starting=True)
    assert start.last_s is None
    start.served(55.0)
    start.served(99.0)
    assert start.last_s == 45.0


def test_one_that_loads_at_first_sight_is_starting() -> None:
    start = ColdStart()
    start.probed("status_503", 3.0, starting=True)
    start.probed("", 4.0, starting=True)
    start.served(5.0)
    assert start.last_s == 2.0


def test_a_restart_counts_anew() -> None:
    start = ColdStart()
    start.gone()
    start.probed("unreachable", 1.0, starting=False)
    start.served(2.0)  # of a stream that began before
    start.probed("timeout", 10.0, starting=False)
    start.probed("", 12.0, starting=False)
    start.served(14.0)
    assert start.last_s == 4.0


def test_a_hung_server_has_not_started_again() -> None:
    start = ColdStart()
    start.probed("timeout", 10.0, starting=False)
    start.probed("", 12.0, starting=False)
    start.served(14.0)
    assert start.last_s is None


def test_counters_that_begin_anew_show_a_start() -> None:
    backend = Backend("a", "")
    backend.take(EngineReport(at_s=1.0, generated_tokens=50))
    backend.take(EngineReport(at_s=3.0, generated_tokens=0))
    backend.cold_start.served(7.0)
    assert backend.cold_start.last_s == 4.0
