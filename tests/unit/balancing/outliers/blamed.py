"""A pool whose backends fail requests of an attacker and of a victim."""

from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.policies import POLICIES

ATTACKER, VICTIM = "6.6.6.6", "10.0.0.1"


def fleet(count: int = 4) -> tuple[Pool, Gate]:
    backends = tuple(Backend(f"b{i}", "http://127.0.0.1:1") for i in range(count))
    for backend in backends:
        backend.state = State.READY
    pool = Pool("default", backends, POLICIES["token_cost"](backends))
    return pool, Gate(lambda: Fleet((pool,)), Random(2))


def ask_of(client: str, path: str = "/v1/completions") -> Ask:
    return Ask(path, prompt_tokens=200, stream=True, client=client)


def failed(gate: Gate, backend: Backend, ask: Ask, now_s: float) -> Cause:
    lease = Lease(backend, ask, now_s)
    cause = gate.cause(lease, now_s)
    lease.fail(now_s, cause=cause)
    return cause
