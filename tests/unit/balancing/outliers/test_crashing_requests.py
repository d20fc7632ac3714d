"""Which request an engine died of, from who was there when engines died, and its refusal."""

from itertools import pairwise

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.crashing_requests import (
    KEPT_S,
    MEMORY_S,
    REMEMBERED_MAX,
    TOGETHER_S,
    Deaths,
    Marking,
    Poison,
    Suspect,
    died_of_it,
    is_leaving,
    mark_of,
)
from penstock.balancing.outliers.penalties import Cause

CHAT = b"/v1/chat/completions"


class Story:
    """Requests and backends by name; each step says whom a death was blamed on."""

    def __init__(self) -> None:
        self.deaths = Deaths()
        self.suspects: dict[str, Suspect] = {}
        self.leases: dict[str, Lease] = {}
        self.backends: dict[str, Backend] = {}

    def send(self, request: str, to: str, now_s: float) -> None:
        backend = self.backends.setdefault(to, Backend(to, f"http://{to}:1"))
        self.leases[request] = Lease(backend, Ask("/v1/completions"), now_s)
        if request in self.suspects:
            self.suspects[request].sent(to)

    def kill(
        self, backend: str, now_s: float, *, expected: bool = False, told: bool = False
    ) -> list[str]:
        """All whose lease is there die with it; returns who is taken for the cause.

        `told`: its server says that the engine died.
        """
        blamed = []
        for request, lease in list(self.leases.items()):
            if lease.backend.name != backend:
                continue
            # Bytes tell requests apart: `x` and `x'` are the same.
            suspect = self.suspects.setdefault(request, Suspect(hash(request.rstrip("'"))))
            del self.leases[request]
            lease.end(now_s)
            peers = self.backends.values()
            if suspect.died(lease, self.deaths, now_s, expected=expected, told=told, peers=peers):
                blamed.append(request)
        return blamed

    def finish(self, request: str, now_s: float) -> None:
        self.leases.pop(request).end(now_s)
        if request in self.suspects:
            self.suspects[request].spared()


STORIES = {
    "two engines in a row": "0 poison > a; 0.1 a dies; 0.1 poison > b; 0.2 b dies of poison",
    "the next ones are found too, as what the first did is known": """
        0 p > a; 0.1 a dies; 0.1 p > b; 0.2 b dies of p
        1 q > c; 1.1 c dies; 1.1 q > d; 1.2 d dies of q
        2 r > e; 2.1 e dies; 2.1 r > f; 2.2 f dies of r""",
    # A restart is silent, so what an engine tells of itself excuses nobody.
    "two at once where the servers tell of the deaths": """
        0 p > a; 0.1 a tells; 0 q > b; 0.1 b tells
        0.1 p > c; 0.2 c tells of p; 0.1 q > d; 0.2 d tells of q""",
    "in company the third death tells": """
        0 poison x y > a; 0.1 a dies; 0.1 poison x > b; 0.1 y > d
        0.2 b dies; 0.2 poison > c; 0.2 x > d; 0.2 z > c; 0.3 c dies of poison""",
    "of two that died three times together none is blamed": """
        0 x y > a; 0.1 a dies; 1 x y > b; 1.1 b dies; 2 x y > c; 2.1 c dies""",
    "copies do not hide each other": """
        0 p p' p'' > a; 0.1 a dies; 1 p p' p'' > b; 1.1 b dies
        2 p p' p'' > c; 2.1 c dies of p p' p''""",
    "who was served beside it hides nothing": """
        0 poison x > a; 0.1 a dies; 1 poison x > b; 1.1 b dies
        2 poison x > c; 2.1 x served; 2.2 c dies of poison""",
    "a restart that servers tell of blames nobody who is old": """
        0 x > a; 12 a tells; 12 x > b; 18 b tells; 18 x > c; 24 c tells""",
    "it takes two engines": "0 x > a; 0.5 a dies; 2 x > a; 2.5 a dies; 4 x > a; 4.5 a dies",
    # The first one's is its own death.
    "one that probes found dead without it excuses it": """
        0 z > c; 0.1 z served; 1 x > a; 1.5 a dies
        1.5 x > b; 1.5 a restarted; 1.5 c restarted; 2 b dies""",
    # The restart beside it may have ended both of the others.
    "a backend that is taken out dies of that": """
        0 x > a; 6 a drained; 6 x > b; 6.1 b dies; 6.1 x > c; 6.2 c dies""",
    "three engines at once blame nobody": """
        0 k l > a; 0 m n > b; 0 o p > c
        1 a dies; 1 k l > b; 1 b dies; 1 k l m n > c; 1 c dies""",
    "an old death of others says nothing": f"""
        0 x > z; 0.1 z dies; {TOGETHER_S + 1.0} poison > a; {TOGETHER_S + 1.1} a dies
        {TOGETHER_S + 1.1} poison > b; {TOGETHER_S + 1.2} b dies of poison""",
}


def play(told: str) -> None:
    """Steps with their times: requests are sent, one is served, a backend ends in some way."""
    story = Story()
    for step in told.strip().replace("\n", ";").split(";"):
        at_s, *what = step.split()
        if ">" in what:
            for request in what[:-2]:
                story.send(request, what[-1], float(at_s))
        elif what[1] == "served":
            story.finish(what[0], float(at_s))
        elif what[1] == "restarted":
            story.backends[what[0]].restarted()
        else:
            expected, tells = what[1] == "drained", what[1] == "tells"
            blamed = story.kill(what[0], float(at_s), expected=expected, told=tells)
            assert blamed == what[3:], step


@pytest.mark.parametrize("told", STORIES.values(), ids=STORIES)
def test_whom_a_death_is_blamed_on(told: str) -> None:
    play(told)


@pytest.mark.parametrize("plain", [1, 6])
@pytest.mark.parametrize("age_s", [1.0, 4.0, 60.0])
@pytest.mark.parametrize("between_s", [2.5, 4.5, 6.0, 9.0, 15.0])
def test_a_rolling_restart_blames_nobody(plain: int, age_s: float, between_s: float) -> None:
    """Without a word to the proxy, and each server is back before the next one goes."""
    story = Story()
    for number in range(plain):
        story.send(f"{number}", "a", 0.0)
    for step, (backend, following) in enumerate(pairwise("abcab")):
        now_s = age_s + between_s * step
        assert story.kill(backend, now_s) == []
        for number in range(plain):
            story.send(f"{number}", following, now_s)


@pytest.mark.parametrize("after_s", [0.1, 5.0, 9.9])
def test_an_engine_that_tells_of_its_death_may_take_longer(after_s: float) -> None:
    play(f"0 x > a; {after_s} a tells; {after_s} x > b; {2 * after_s} b tells of x")


def test_deaths_of_no_interest_are_not_kept() -> None:
    story = Story()
    for number in range(100):
        story.send("x", f"{number}", 10.0 * number)
        story.kill(f"{number}", 10.0 * number + 5.0)
    assert len(story.deaths) <= KEPT_S / 10.0 + 1


def test_an_engine_dies_once_and_only_a_sound_one() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    backend.state = State.READY
    ask = Ask("/v1/completions")
    leases = [Lease(backend, ask, 0.0) for _ in range(3)]
    for lease, now_s, died in zip(leases, (10.0, 10.9, 11.1), (True, True, False), strict=True):
        lease.fail(now_s)
        assert died_of_it(lease, now_s) is died
    whole = Lease(backend, ask, 12.0)
    whole.first_token(12.1)
    whole.complete(12.1)
    again = Lease(backend, ask, 13.0)
    again.fail(14.0)
    assert died_of_it(again, 14.0)
    backend.accusers.clear()
    backend.state = State.EJECTED
    last_resort = Lease(backend, ask, 20.0)
    last_resort.fail(20.0)
    assert not died_of_it(last_resort, 20.0)


@pytest.mark.parametrize("before_s", [3.0, 30.0, 59.0])
def test_what_one_clients_requests_fail_of_everywhere_hides_no_death(before_s: float) -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    backend.state = State.READY
    ask = Ask("/v1/completions", client="a")
    Lease(backend, ask, 0.0).fail(100.0, cause=Cause.CLIENT)
    killer = Lease(backend, ask, 100.0)
    killer.fail(100.0 + before_s, cause=Cause.CLIENT, fatal=True)
    assert died_of_it(killer, 100.0 + before_s)
    late = Lease(backend, ask, 100.0)
    late.fail(102.0 + before_s, cause=Cause.CLIENT, fatal=True)
    assert not died_of_it(late, 102.0 + before_s)


def test_whose_end_is_expected() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    backend.state = State.READY
    assert not is_leaving(backend)
    for wanted in (AdminState.DRAIN, AdminState.MAINT):
        backend.admin_state = wanted
        assert is_leaving(backend)
    backend.admin_state = AdminState.READY
    backend.reason = "draining"
    assert is_leaving(backend)


# What is refused afterwards -----------------------------------------------------------------


class Remembered:
    """Whose bytes are remembered, at a time."""

    def __init__(self) -> None:
        self.poison = Poison()

    def add(self, body: bytes, now_s: float, tenant: str = "") -> None:
        self.poison.add(tenant, mark_of(CHAT, body), now_s)

    def holds(self, body: bytes, now_s: float, tenant: str = "", path: bytes = CHAT) -> bool:
        if not self.poison.may_hold(len(body), now_s):
            return False
        return self.poison.holds(tenant, mark_of(path, body), now_s)


def test_the_same_bytes_of_a_tenant_are_known_for_ten_minutes() -> None:
    found = Remembered()
    found.add(b"kills", 100.0, "a")
    assert found.holds(b"kills", 100.0, "a")
    assert found.holds(b"kills", 100.0 + MEMORY_S - 0.1, "a")
    assert not found.holds(b"kills ", 100.0, "a")
    assert not found.holds(b"Kills", 100.0, "a")
    assert not found.holds(b"kills", 100.0, "b")
    assert not found.holds(b"kills", 100.0, "a", b"/v1/completions")
    assert not found.holds(b"kills", 100.0 + MEMORY_S, "a")


def test_what_kills_again_is_remembered_anew() -> None:
    found = Remembered()
    for body, now_s in ((b"kills", 0.0), (b"other", 300.0), (b"kills", 500.0)):
        found.add(body, now_s)
    assert found.holds(b"kills", 1_000.0)
    assert not found.holds(b"other", 1_000.0)
    found.add(b"new", 1_000.0)
    assert len(found.poison) == 2


def test_what_was_served_after_all_is_forgotten() -> None:
    found = Remembered()
    for tenant in "ab":
        found.add(b"hello", 0.0, tenant)
        found.add(b"kills", 0.0, tenant)
    found.poison.served(mark_of(CHAT, b"hello"))
    for tenant in "ab":
        assert not found.holds(b"hello", 1.0, tenant)
        assert found.holds(b"kills", 1.0, tenant)


def test_a_tenant_fills_its_own_share_and_no_others() -> None:
    found = Remembered()
    found.add(b"kills", 0.0, "victim")
    for number in range(20 * REMEMBERED_MAX):
        found.add(b"%d" % number, number / 1_000, "attacker")
    assert len(found.poison) == REMEMBERED_MAX + 1
    assert found.holds(b"kills", 2.0, "victim")
    assert not found.holds(b"0", 2.0, "attacker")
    assert found.holds(b"%d" % (20 * REMEMBERED_MAX - 1), 2.0, "attacker")
    found.add(b"new", 1_000.0, "later")
    assert len(found.poison) == 1


def test_a_body_in_pieces_has_the_mark_of_the_whole() -> None:
    body = bytes(range(256)) * 1_000
    for size in (1, 255, 100_000, len(body)):
        marking = Marking(CHAT)
        for at in range(0, len(body), size):
            marking.add(body[at : at + size])
        assert marking.mark == mark_of(CHAT, body)
    assert Marking(b"/v1/completions").mark != Marking(CHAT).mark
