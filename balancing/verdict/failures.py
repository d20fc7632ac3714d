"""What failed attempts tell of a pool: that all fail, some, those at one backend, or of one client.

Where there are several clients, one of them alone makes nothing failing: its own requests may be
the cause.
"""

from collections import Counter
from typing import Final

from penstock.balancing.verdict.cause import Finding, Kind
from penstock.balancing.verdict.window import MOST, NEARLY_ALL, Scene, Seen, only

# So many attempts must have failed, and this share.
FAILURES_MIN: Final = 3
FAILURES_SHARE: Final = 0.05
# One that fails so many of its requests is broken, however few it gets.
OWN_FAILURES_MIN: Final = 5
OWN_FAILURES_SHARE: Final = 0.5
# And so many must be of other clients than the one with most failures, and FAILURES_SHARE.
APART_MIN: Final = 3


def nearly_all_fail(scene: Scene) -> Finding | None:
    """Most attempts fail, for several clients or for the only one."""
    return _erring(scene, MOST)


def some_fail(scene: Scene) -> Finding | None:
    """So many that users see it, and not for one of several clients alone."""
    return _erring(scene, FAILURES_SHARE)


def one_fails(scene: Scene) -> Finding | None:
    """One backend fails most of the few requests that it still gets: of all, few fail."""
    for each in scene.backends:
        failures = each.minute_failures
        if failures < max(OWN_FAILURES_MIN, OWN_FAILURES_SHARE * each.minute_requests):
            continue
        if each.minute_apart >= APART_MIN or each.minute_requests_apart < APART_MIN:
            figures = {"failures": float(failures), "requests": float(each.minute_requests)}
            return Finding(Kind.FAILING, "backend", backend=each.now.name, figures=figures)
    return None


def faulty_client(scene: Scene) -> Finding | None:
    """Attempts fail, nearly all for one client, and others are served."""
    if not _many(scene, FAILURES_SHARE) or scene.requests - scene.failures < FAILURES_MIN:
        return None
    figures = {"failures": float(scene.failures), "requests": float(scene.requests)}
    return Finding(Kind.CLIENT, "fails", figures=figures)


def _erring(scene: Scene, share: float) -> Finding | None:
    if not _many(scene, share) or not _is_common(scene):
        return None
    everywhere = all_fail(scene, scene.backends) if len(scene.backends) > 1 else None
    if everywhere is not None:
        return everywhere
    figures = {"out": 0.0, "of": float(len(scene.backends)), "failures": float(scene.failures)}
    worst = [each for each in scene.backends if each.failures >= NEARLY_ALL * scene.failures]
    return Finding(Kind.FAILING, "requests", backend=only(worst), figures=figures)


def all_fail(scene: Scene, backends: list[Seen]) -> Finding | None:
    """Each of these backends fails, for several clients: the cause is something that they share.

    `backends`: all that are not out.
    """
    if not backends or not all(_fails(each) for each in backends) or not _is_common(scene):
        return None
    figures = {"of": float(len(scene.backends)), "failures": float(scene.failures)}
    return Finding(Kind.FAILING, "everywhere", figures=figures)


def _many(scene: Scene, share: float) -> bool:
    return scene.failures >= max(FAILURES_MIN, share * scene.requests)


def _fails(seen: Seen) -> bool:
    return seen.failures >= max(FAILURES_MIN, MOST * seen.requests)


def _is_common(scene: Scene) -> bool:
    """Whether attempts of several clients fail, or there is only one client. One of several may
    fail by its own requests."""
    if scene.requests - scene.failures < FAILURES_MIN:
        return True  # nobody is served
    failures = sum(each.minute_failures for each in scene.backends)
    apart = sum(each.minute_apart for each in scene.backends)
    apart += _beside([(each.now.failed_most, each.minute_failures) for each in scene.backends])
    asked = sum(each.minute_requests_apart for each in scene.backends)
    asked += _beside([(each.now.asks_most, each.minute_requests) for each in scene.backends])
    return apart >= max(APART_MIN, FAILURES_SHARE * failures) or asked < APART_MIN


def _beside(counts: list[tuple[str, int]]) -> int:
    """How many are at backends whose most frequent client is another one than that of the pool."""
    totals = Counter[str]()
    for client, count in counts:
        if client:
            totals[client] += count
    return totals.total() - max(totals.values(), default=0)
