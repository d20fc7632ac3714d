"""The benches of leaving and slow clients, short: their counts hold here, their times elsewhere."""

import asyncio
import statistics

import pytest

from penstock.bench.reliability import aborts, scrapes, slow, stalls
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.sim.server import SimServer


@pytest.mark.parametrize("name", ["queued", "connect", "prefill", "decode", "plain"])
async def test_whoever_leaves_is_counted_and_nothing_is_left(name: str) -> None:
    phase = await aborts.measure(name, 50)
    assert phase.faults == []
    assert len(phase.times_s) == 50
    print(f"{name}: median {statistics.median(phase.times_s) * 1e3:.1f} ms")


@pytest.mark.alone
async def test_slow_senders_are_all_closed_in_time() -> None:
    server = await SimServer("sim", "instant").start()
    timeouts = {"client_head_s": 1.0, "client_body_s": 2.0}
    async with ProxyProcess([server.url], timeouts=timeouts) as proxy:
        others = asyncio.Event()
        window = asyncio.create_task(slow.Others(proxy).window(others))
        lives = await slow.attack(slow.Attack(proxy.port, 150, 150, 1.0, 2.0, drip_s=0.2))
        others.set()
        assert len(await window) > 30
        # The process is no fatter for it, and nobody is left inside.
        assert (await proxy.held()).descriptors < 100
    await server.stop()
    assert lives.never == 0
    assert lives.statuses == {"408": 300}
    assert 0.9 < min(lives.heads_s) <= max(lives.heads_s) < 1.0 + slow.CLOSING_S
    assert 1.9 < min(lives.bodies_s) <= max(lives.bodies_s) < 2.0 + slow.CLOSING_S


async def test_stalled_readers_take_bounded_memory_and_are_dropped() -> None:
    figures = await slow.stall(40, 4.0)
    assert slow.report_stalled(figures) == []
    # It did hold something for them. Some of it lies in pages that were in use before.
    assert figures.each_bytes > 50 * slow.KIB


async def test_bodies_of_any_shape_and_framing_are_answered_and_metered() -> None:
    shapes = ["options", stalls.CHUNKS]
    rows = [row async for row in stalls.measure(shapes, 1, (1,))]
    assert [name for name, _ in rows] == ["(no body)", *shapes]
    assert all(stall.own_ms > 0 and stall.beside_ms > 0 for _, (stall,) in rows)


async def test_seconds_with_and_without_a_scrape_take_turns() -> None:
    longest_ms = await scrapes.measure(2, backends=20, requests=40)
    assert len(longest_ms[scrapes.RENDERED]) == 2
    assert len(longest_ms[scrapes.NONE]) == sum(map(len, longest_ms.values())) / 2
    # The stream flows: an event each 5 ms, and none is missed for long.
    assert all(4.0 < gap_ms < 500.0 for gaps_ms in longest_ms.values() for gap_ms in gaps_ms)
