"""A backend as `/api/v1/backends` describes it."""

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.failures import leave_alone
from penstock.health.probes import LastProbe
from penstock.proxy.admin.fleet_listing import describe
from penstock.proxy.telemetry.pool_metrics import Lately

SPEEDS = ("prefill_tokens_per_s", "decode_step_ms", "decode_ms_per_1k_held_tokens")


def last_failure(backend: Backend, lately: Lately | None, now_s: float) -> object:
    told = describe(backend, {}, now_s, lately=lately)["lately"]
    assert isinstance(told, dict)
    return told["last_failure"]


def test_a_refusal_for_load_is_the_last_error_until_a_later_one() -> None:
    backend, lately = Backend("b0", "http://b0"), Lately()
    assert last_failure(backend, lately, 10.0) is None
    lately.failed("reset", 10.0)
    leave_alone(backend, "client", 12.0, 0.0)
    assert last_failure(backend, lately, 15.0) == {"reason": "busy", "age_s": 3.0}
    lately.failed("idle", 16.0)
    assert last_failure(backend, lately, 18.0) == {"reason": "idle", "age_s": 2.0}
    assert lately.failures == 2


def test_a_first_token_that_is_awaited_counts_for_the_time_to_it() -> None:
    """Of an engine that hangs none comes."""
    backend, lately = Backend("b0", "http://b0"), Lately()
    lately.first_token(0.14, 0.0)
    Lease(backend, Ask("/v1/chat/completions", prompt_tokens=9, stream=True), 1.0)
    for now_s, least_s in ((1.1, 0.14), (24.0, 23.0)):
        told = describe(backend, {}, now_s, lately=lately)["lately"]
        assert isinstance(told, dict)
        assert least_s <= told["ttft_p95_s"] <= 1.3 * least_s


def test_an_engine_whose_port_is_closed_tells_nothing() -> None:
    backend = Backend("b0", "http://b0")
    backend.take(EngineReport(1.0, running=3))
    for passed in (True, False):
        probes = {"live": LastProbe(0.0, passed, "")}
        assert (describe(backend, probes, 2.0)["engine"] is not None) is passed


def test_a_speed_that_nobody_measured_is_null() -> None:
    backend = Backend("b0", "http://b0")
    assert [describe(backend, {}, 0.0)[name] for name in SPEEDS] == [None] * 3
    backend.decode_speed.observe(100, 1.0, 0.0, 0.0)
    listed = describe(backend, {}, 0.0)
    assert listed["prefill_tokens_per_s"] is None
    assert listed["decode_step_ms"] == round(1e3 * backend.decode_speed.step_s, 4) < 20.0
    backend.prefill_speed.observe(10_000.0, 1.0)
    assert describe(backend, {}, 0.0)["prefill_tokens_per_s"] == round(
        backend.prefill_speed.work_per_s
    )
