"""Backends that do nothing while requests wait."""

from dataclasses import replace

import pytest

from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.engine_report import IDLE_UTILIZATION, STALE_S, EngineReport, GpuReport
from penstock.balancing.fleet import Pool
from penstock.balancing.policies import POLICIES
from penstock.balancing.pool_costs import ADDS_S_MAX, LOOK_S, GpuFloor


class Fleet:
    def __init__(self) -> None:
        self.idle, self.busy = (Backend(name, "", "chat") for name in ("idle", "busy"))
        for backend in (self.idle, self.busy):
            backend.state = State.READY
            backend.report = EngineReport(at_s=0.0)
        self.busy.own.requests = 1
        self.pools = (Pool("chat", (self.idle, self.busy), POLICIES["random"](())),)
        self.queued = 1
        self.floor = GpuFloor()
        self.look(0.0)

    def look(self, *times_s: float) -> tuple[float, float]:
        for now_s in times_s:
            self.floor.look(self.pools, lambda pool: self.queued, now_s)
        return self.idle.gpu_floor_s, self.busy.gpu_floor_s


def test_idle_while_requests_wait_here_or_in_a_peers_engine_as_long_as_it_tells() -> None:
    assert Fleet().look(1.0, 2.0) == (2.0, 0.0)
    fleet = Fleet()
    fleet.queued = 0
    assert fleet.look(1.0, 2.0) == (0.0, 0.0)  # nobody waits
    fleet.busy.report = EngineReport(at_s=3.0, waiting=3)
    assert fleet.look(3.0) == (1.0, 0.0)
    assert fleet.look(3.0 + STALE_S) == (1.0, 0.0)


@pytest.mark.parametrize("why", ["drained", "ejected", "others_use_it"])
def test_what_may_not_serve_or_serves_others_is_not_idle(why: str) -> None:
    fleet = Fleet()
    if why == "drained":
        fleet.idle.admin_state = AdminState.DRAIN
    elif why == "ejected":
        fleet.idle.state = State.EJECTED
    else:
        fleet.idle.report = EngineReport(at_s=1.0, running=1)
    assert fleet.look(1.0) == (0.0, 0.0)


def test_gpus_that_hardly_compute_are_idle_whatever_else_is_told() -> None:
    fleet = Fleet()
    fleet.busy.gpus = GpuReport(until_s=1.5, utilization=IDLE_UTILIZATION / 2)
    assert fleet.look(1.0) == (1.0, 1.0)
    assert fleet.look(2.0) == (2.0, 1.0)  # the report is old
    fleet.busy.gpus = replace(fleet.busy.gpus, until_s=9.0, utilization=IDLE_UTILIZATION)
    assert fleet.look(3.0) == (3.0, 1.0)


def test_a_process_that_slept_adds_little_and_looks_are_rare() -> None:
    fleet = Fleet()
    assert fleet.look(0.5 * LOOK_S) == (0.0, 0.0)
    assert fleet.look(1_000.0) == (ADDS_S_MAX, 0.0)
