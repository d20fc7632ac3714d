"""A pool whose backends fail requests of an attacker and of a victim."""

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from tests.unit.balancing.backends import gate_over, numbered
from tests.unit.health.watched import Scene

ATTACKER, VICTIM = "6.6.6.6", "10.0.0.1"


def fleet(count: int = 4, policy: str = "token_cost") -> tuple[list[Backend], Gate]:
    backends = numbered(count)
    return backends, gate_over(backends, policy)


def ask_of(client: str, path: str = "/v1/completions") -> Ask:
    return Ask(path, prompt_tokens=200, stream=True, client=client)


def failed(gate: Gate, backend: Backend, ask: Ask, now_s: float) -> Cause:
    lease = Lease(backend, ask, now_s)
    cause = gate.cause(lease, now_s)
    lease.fail(now_s, cause=cause)
    return cause


async def watched() -> Scene:
    """A backend that its first probe has found ready."""
    scene = Scene()
    await scene.turn()
    return scene


def fails(scene: Scene, *clients: str) -> None:
    """A request of each of these fails there, and its watch is told."""
    for client in clients:
        scene.lease(client=client).fail(scene.now_s)
        scene.watch.requests_failed()
