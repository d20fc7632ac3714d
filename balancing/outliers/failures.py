"""What a failure, a refusal or an empty answer costs a backend: a place in a run, or a penalty."""

from collections.abc import Sequence
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.outliers.penalties import GROUPS, Cause, group_of

# How long a backend is left alone that has too much to do and does not say for how long.
BUSY_S: Final = 1.0
# Failures that something else explains set `failing_since_s` at most this often.
EXPLAINED_S: Final = 60.0
# A client that gets empty answers elsewhere too charges a backend for all only if the backend's
# engine has generated nothing for this long.
BARE_S: Final = 1.0
# This many more than the peers' share explains are no accident: eight of eight at one of two
# backends have a chance of one in 128.
REFUSALS_MIN: Final = 8
# How many times the peers' share is tolerated.
TIMES: Final = 4.0
# So many peers are compared. More would cost time, and change nothing.
PEERS_MAX: Final = 32


def add_to_run(backend: Backend, ask: Ask, now_s: float, cause: Cause, *, fatal: bool) -> None:
    """Count one more failure in the run, unless something else than the backend explains it.

    `fatal`: the engine may have died of it.
    """
    if cause is Cause.CLIENT or cause is Cause.KIND:
        first = not backend.failures_in_row and now_s - backend.failing_since_s > EXPLAINED_S
        if fatal and first:
            backend.failing_since_s = now_s
        return
    if not backend.failures_in_row:
        backend.failing_since_s = now_s
    backend.progress_at_failure = backend.progress
    backend.accusers.add(None if cause is Cause.NO_REQUEST else ask.client)


def leave_alone(backend: Backend, client: str, now_s: float, hint_s: float) -> None:
    """It says that it has too much to do: leave it alone, for `hint_s` if it says for how long.

    For this client alone, until another one is refused, too: the requests of one client may be
    larger than what it has room for.
    """
    rest_s = max(BUSY_S, hint_s)
    if not backend.left_alone.charge_for(client, now_s, hint_s=rest_s):
        backend.left_alone.charge(now_s, hint_s=rest_s)


def charge(backend: Backend, client: str, now_s: float, cause: Cause) -> None:
    """Charge a penalty: for this client alone, until another client has met a failure, too."""
    penalty = backend.penalty
    in_row = backend.failures_in_row
    if cause is Cause.NO_REQUEST:
        penalty.charge(now_s, in_row=in_row)
    elif cause is Cause.CLIENT:
        penalty.charge_for(client, now_s, explained=True)
    elif not penalty.charge_for(client, now_s, in_row=in_row):
        others = backend.accusers.others
        penalty.charge(now_s, in_row=in_row if others > 1 else others)


def charge_refusal(backend: Backend, client: str, peers: Sequence[Backend], now_s: float) -> bool:
    """Count a refusal. Returns whether several clients are refused by this backend alone."""
    for_all, for_client = _excess_refusals(backend, peers, client, now_s)
    if for_all:
        backend.penalty.charge(now_s, in_row=for_all)
        return True
    if for_client:
        backend.penalty.charge_for(client, now_s, in_row=for_client)
    return False


def charge_bare(backend: Backend, client: str, now_s: float, cause: Cause) -> None:
    """An answer had no token: charge a penalty, for its client or, if several met it, for all.

    If the client's requests end so at most backends, only while the engine generates nothing.
    """
    in_row = backend.came_bare(now_s)
    explained = cause is Cause.CLIENT
    if backend.penalty.charge_for(client, now_s, in_row=in_row, explained=explained):
        return
    silent_s = now_s - backend.bare_since_s
    if cause is Cause.BACKEND or silent_s >= BARE_S:
        backend.penalty.charge(now_s)


def _excess_refusals(
    backend: Backend, peers: Sequence[Backend], client: str, now_s: float
) -> tuple[int, int]:
    """Count a refusal. By how many refusals does the backend exceed its peers: for all clients, and
    for this one alone? 0: not.

    For all, the group with the largest excess is left out: it would look like several. So are
    groups that are refused everywhere: they would hide what others meet here.
    """
    given = backend.refusals.by_group(backend.requests_total, now_s)
    backend.refusals.add(client)
    peers = peers[:: len(peers) // PEERS_MAX + 1]
    there = [each.refusals.by_group(each.requests_total, now_s) for each in peers]
    sent = [each.refusals.requests for each in peers]

    def excess_of(groups: Sequence[int]) -> float:
        """How many more these groups were given than several times the peers' share explains."""
        own = sum([given[group] for group in groups])
        refused = [sum([each[group] for group in groups]) for each in there]
        asked = sum([each for each, some in zip(sent, refused, strict=True) if some])
        share = sum(refused) / asked if asked else 0.0
        return max(0.0, own - TIMES * share * backend.refusals.requests) if there else 0.0

    alone = _counted(excess_of([group_of(client)]))
    if sum(given) - max(given) < REFUSALS_MIN:
        return 0, alone
    excesses = [(excess_of([group]), group) for group in range(GROUPS)]
    kept = [
        (excess, group)
        for excess, group in excesses
        if excess or sum([each[group] for each in there]) < REFUSALS_MIN
    ]
    kept.remove(max(kept))
    return _counted(excess_of([group for _, group in kept])), alone


def _counted(excess: float) -> int:
    return max(0, int(excess) - REFUSALS_MIN + 1)
