"""`/sim/...`: what no real server has. Faults are set and counters read over HTTP."""

from typing import Any

from penstock.bench.sim.endpoints import send
from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.instance import Instance
from penstock.bench.sim.job import parse_body
from penstock.bench.sim.reply import Reply
from penstock.bench.sim.request import Request


def faults(server: Instance, request: Request, reply: Reply) -> None:
    """POST: `{"set": [{"kind": "busy", "times": 1}, ...], "clear": true | [kinds]}`."""
    body = parse_body("application/json", request.body)
    cleared = body.get("clear")
    try:
        if cleared is True:
            server.faults.clear()
        elif isinstance(cleared, list) and cleared:
            server.faults.clear(*cleared)
        for options in body.get("set", []):
            server.faults.set(**options)
    except (TypeError, ValueError) as error:
        raise Refusal(400, str(error)) from None
    send(reply, {"faults": server.faults.listing()})


def state(server: Instance, request: Request, reply: Reply) -> None:
    send(reply, snapshot(server))


def snapshot(server: Instance) -> dict[str, Any]:
    """Counters of one server; `requests` are the last ones, oldest first."""
    engine = server.engine
    return {
        "name": server.name,
        "model": server.model,
        "profile": server.profile.name,
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_usage": engine.kv_usage,
        "requests_total": engine.requests_total,
        "finished_total": engine.finished_total,
        "aborted_total": engine.aborted_total,
        "client_aborts_total": server.client_aborts_total,
        "busy_total": server.busy_total,
        "prompt_tokens_total": engine.prompt_tokens_total,
        "generation_tokens_total": engine.generation_tokens_total,
        "cache_queries_total": engine.cache_queries_total,
        "cache_hits_total": engine.cache_hits_total,
        "connections": len(server.connections),
        "connections_total": server.connections_total,
        "faults": server.faults.listing(),
        "requests": server.seen.listing(),
    }
