"""The same over HTTP: one penstock before simulated servers, in real time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson
import uvloop

from penstock.bench.client import HOST
from penstock.bench.overload.calls import Call
from penstock.bench.overload.http import Player
from penstock.bench.peers.fleet import Fleet
from penstock.bench.processes import await_health, start_penstock, stop
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
        config = _config(rule, fleet.ports, long_engines, admission=admission)
        with _penstock(config) as port:
            log = uvloop.run(Player(port, 1.0, 1).play(calls))
    outcome = TwoKinds(backends)
    for arrival, call in zip(coming, log.calls, strict=True):
        if call.ttft_s >= 0.0:
            lasted_s = call.tpot_s * max(1, arrival.output_tokens - 1)
            end_s = arrival.at_s + call.ttft_s + lasted_s
            outcome.add(arrival, call.ttft_s, end_s, 0)
    lost = len([call for call in log.calls if call.ttft_s < 0.0])
    return outcome.told() | {"lost": float(lost)}


@contextmanager
def _penstock(config: dict[str, Any]) -> Iterator[int]:
    """Its port meanwhile."""
    with TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder, "penstock.json")
        path.write_bytes(orjson.dumps(config))
        process, port, _ = start_penstock(["penstock.proxy"], "--config", str(path))
        try:
            await_health(port, process)
            yield port
        finally:
            stop(process)


def _config(
    rule: str, ports: Sequence[int], long_engines: int, *, admission: bool
) -> dict[str, Any]:
    servers = [
        {"name": f"gpu-{number}", "url": f"http://{HOST}:{port}"}
        for number, port in enumerate(ports)
    ]
    pools = [{"name": "long", "backends": servers[:long_engines]}]
    pools.append({"name": "chat", "backends": servers[long_engines:]})
    return {
        "listen": {"host": HOST, "port": 0},
        "admin": {"host": HOST, "port": 0},
        "log": {"access": False},
        "admission": {"enabled": admission},
        "pools": [each for each in pools if each["backends"]],
        "routes": routes(rule),
    }
