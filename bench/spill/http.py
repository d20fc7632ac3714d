"""The same over HTTP: one penstock before simulated servers, in real time."""

from collections.abc import Sequence
from typing import Any, Final

import uvloop

from penstock.bench.client import HOST
from penstock.bench.overload.calls import Call, Log
from penstock.bench.overload.http import Player
from penstock.bench.peers.fleet import Fleet
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.routing.trace import Arrival
from penstock.bench.spill.world import TwoKinds, routes

# Nobody leaves: what waits for long counts in the percentiles.
PATIENCE_S: Final = 600.0


def play(
    rule: str,
    profile: str,
    coming: Sequence[Arrival],
    backends: int,
    long_engines: int,
    *,
    admission: bool,
) -> dict[str, float]:
    """Play all requests to the end of the last answer. Raises NotStarted."""
    calls = [
        Call(each.at_s, each.prompt_tokens, each.output_tokens, 1, each.tenant, PATIENCE_S, 0)
        for each in coming
    ]
    with Fleet(backends, profile, 1.0) as fleet:
        servers = [
            {"name": f"gpu-{number}", "url": f"http://{HOST}:{port}"}
            for number, port in enumerate(fleet.ports)
        ]
        pools = [{"name": "long", "backends": servers[:long_engines]}]
        pools.append({"name": "chat", "backends": servers[long_engines:]})
        config: dict[str, Any] = {
            "log": {"access": False, "level": "error"},
            "admission": {"enabled": admission},
            "pools": [each for each in pools if each["backends"]],
            "routes": routes(rule),
        }

        async def played() -> Log:
            async with ProxyProcess([], **config) as proxy:
                return await Player(proxy.port, 1.0, 1).play(calls)

        log = uvloop.run(played())
    outcome = TwoKinds(backends)
    for arrival, call in zip(coming, log.calls, strict=True):
        if call.ttft_s >= 0.0:
            lasted_s = call.tpot_s * max(1, arrival.output_tokens - 1)
            end_s = arrival.at_s + call.ttft_s + lasted_s
            outcome.add(arrival, call.ttft_s, end_s, 0)
    lost = len([call for call in log.calls if call.ttft_s < 0.0])
    return outcome.told() | {"lost": float(lost)}
