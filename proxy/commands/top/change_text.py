"""What drain, ready and maint would do to a backend and its pool, before it is done."""

from collections.abc import Sequence

from penstock.proxy.commands.fleet_table import state_of
from penstock.proxy.commands.top.backend_rows import key_of
from penstock.proxy.commands.top.columns import Told
from penstock.proxy.commands.top.figures import many


def question(backend: Told, state: str, backends: Sequence[Told]) -> list[str]:
    """The lines of a dialog. What is serious begins with a `!`."""
    now = (
        f"Now: wanted {backend['admin_state']}, state {state_of(backend)},"
        f" {backend['requests_in_flight']:,} in flight, pool {backend['pool']}."
    )
    return [now, _does(backend, state), _effect(backend, state, backends)]


def outcome(told: Told) -> str:
    """What the admin port says of a change that was made."""
    line = (
        f"{told['name']}: wanted {told['admin_state']}, {told['requests_in_flight']:,} in flight."
    )
    if told["admin_state"] == "ready" or told.get("pool_can_serve", True):
        return line
    return f"{line} No backend of {told['pool']} can serve now: new requests get 503."


def _does(backend: Told, state: str) -> str:
    if state == "ready":
        return "It gets requests again as soon as it is healthy."
    running = backend["requests_in_flight"]
    rest = f"The {many(running, 'request')} there may finish." if running else "None runs there."
    probes = " and no probes" if state == "maint" else ""
    return f"It gets no new requests{probes}. {rest}"


def _effect(backend: Told, state: str, backends: Sequence[Told]) -> str:
    pool = backend["pool"]
    if state == "ready":
        healthy = backend["state"] == "ready"
        return "Requests come at once." if healthy else "Its probes must pass before requests come."
    peers = [each for each in backends if each["pool"] == pool and key_of(each) != key_of(backend)]
    serving = sum(each["can_serve"] for each in peers)
    if serving:
        of = many(len(peers), "other backend")
        return f"{serving:,} of {of} of {pool} can serve: requests go there."
    return f"! No other backend of {pool} can serve: new requests will get 503."
