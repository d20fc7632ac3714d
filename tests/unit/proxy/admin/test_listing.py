"""A backend as `/api/v1/backends` describes it."""

from penstock.balancing.backend import Backend
from penstock.proxy.admin.listing import describe

SPEEDS = ("prefill_tokens_per_s", "decode_step_ms", "decode_ms_per_1k_held_tokens")


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
