"""A new backend in a real process: judged beside its peers, taken out, and brought back."""

import asyncio
from typing import Any

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask
from tests.e2e.test_reload import pool

TENANTS = [{"name": f"t{n}", "keys": [{"key": f"key-of-tenant-{n}"}]} for n in range(5)]
# A penalty for failures sends no request away.
POLICY = "round_robin"


async def asks(penstock: Penstock, times: int = 5) -> list[str]:
    """Requests of all tenants: the backends that they were answered by."""
    got = await asyncio.gather(
        *[
            ask(
                penstock,
                "/v1/chat/completions",
                CHAT,
                authorization=f"Bearer key-of-tenant-{number % 5}",
            )
            for number in range(times)
        ]
    )
    assert {each.status for each in got} <= {200, 500}
    return [each.headers["x-penstock-backend"] for each in got]


async def told(penstock: Penstock, name: str) -> dict[str, Any]:
    (found,) = [each for each in await penstock.backends() if each["name"] == name]
    return found


async def adds(penstock: Penstock, *servers: SimServer) -> None:
    status, said = await penstock.reload(pools=pool(*servers, policy=POLICY))
    assert status == 200, said
    await penstock.until_ready(len(servers))


async def test_a_failing_new_backend_is_taken_out(simulate: Simulate, serve: Serve) -> None:
    old, new = await simulate(2)
    penstock = await serve([old], tenants=TENANTS, pool={"policy": POLICY})
    await adds(penstock, old, new)
    assert (await told(penstock, "b1"))["newcomer"]["stage"] == "judged"
    assert (await told(penstock, "b0"))["newcomer"] is None
    sent = 0
    async with asyncio.timeout(60):
        while (await told(penstock, "b1"))["state"] != "ejected":
            sent += 1
            if sent % 10 in (0, 3, 7):
                new.faults.set("internal_error", times=1)
            await asks(penstock, 2)
            await asyncio.sleep(0.05)
    new.faults.clear()
    backend = await told(penstock, "b1")
    assert (backend["reason"], backend["newcomer"]["stage"]) == ("worse", "worse")
    assert backend["newcomer"]["why"].startswith("errors ")
    assert new.seen
    assert set(await asks(penstock, 20)) == {"b0"}
    (line,) = [each for each in penstock.log if b"reason=worse" in each]
    assert b"backend ejected name=b1" in line
    assert b"why=errors" in line
    metrics = await penstock.metrics()
    assert 'penstock_newcomers_total{outcome="worse",pool="default"} 1.0' in metrics
    assert 'penstock_backend_state{backend="b1",state="ejected"} 1.0' in metrics
    ran = await run("status", "--admin", penstock.admin_url)
    assert "ejected (worse)" in ran.out
    assert "b1 was new, and worse than its peers: errors " in ran.out
    assert "penstock ready b1" in ran.out

    await asyncio.sleep(1.0)  # its probes pass all the while
    assert (await told(penstock, "b1"))["state"] == "ejected"
    ran = await run("ready", "b1", "--wait", "--admin", penstock.admin_url)
    assert ran.status == 0, ran.err
    await penstock.until_ready(2)
    assert set(await asks(penstock, 20)) == {"b0", "b1"}
    assert (await told(penstock, "b1"))["newcomer"] is None
