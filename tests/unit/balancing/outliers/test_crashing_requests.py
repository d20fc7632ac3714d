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


def test_two_engines_in_a_row_are_one_requests_doing() -> None:
    story = Story()
    story.send("poison", "a", 0.0)
    assert story.kill("a", 0.1) == []
    story.send("poison", "b", 0.1)
    assert story.kill("b", 0.2) == ["poison"]


def test_the_next_one_is_found_too_as_what_the_first_did_is_known() -> None:
    story = Story()
    chains = (("p", "a", "b"), ("q", "c", "d"), ("r", "e", "f"))
    for start_s, (poison, first, second) in enumerate(chains):
        story.send(poison, first, start_s)
        assert story.kill(first, start_s + 0.1) == []
        story.send(poison, second, start_s + 0.1)
        assert story.kill(second, start_s + 0.2) == [poison]


def test_two_at_once_are_found_where_the_servers_tell_of_the_deaths() -> None:
    """A restart is silent, so what an engine tells of itself excuses nobody."""
    story = Story()
    for poison, first in (("p", "a"), ("q", "b")):
        story.send(poison, first, 0.0)
        assert story.kill(first, 0.1, told=True) == []
    for poison, second in (("p", "c"), ("q", "d")):
        story.send(poison, second, 0.1)
        assert story.kill(second, 0.2, told=True) == [poison]


def test_in_company_the_third_death_tells() -> None:
    story = Story()
    for request in ("poison", "x", "y"):
        story.send(request, "a", 0.0)
    assert story.kill("a", 0.1) == []
    for request, backend in (("poison", "b"), ("x", "b"), ("y", "d")):
        story.send(request, backend, 0.1)
    assert story.kill("b", 0.2) == []
    story.send("poison", "c", 0.2)
    story.send("x", "d", 0.2)
    story.send("z", "c", 0.2)
    assert story.kill("c", 0.3) == ["poison"]


def test_of_two_that_died_three_times_together_none_is_blamed() -> None:
    story = Story()
    for at_s, backend in enumerate("abc"):
        story.send("x", backend, at_s)
        story.send("y", backend, at_s)
        assert story.kill(backend, at_s + 0.1) == []


def test_copies_do_not_hide_each_other() -> None:
    story = Story()
    copies = ["poison", "poison'", "poison''"]
    blamed: list[str] = []
    for at_s, backend in enumerate("abc"):
        assert blamed == []
        for copy in copies:
            story.send(copy, backend, at_s)
        blamed = story.kill(backend, at_s + 0.1)
    assert blamed == copies


def test_who_was_served_beside_it_hides_nothing() -> None:
    story = Story()
    for at_s, backend in enumerate("ab"):
        for request in ("poison", "x"):
            story.send(request, backend, at_s)
        assert story.kill(backend, at_s + 0.1) == []
    for request in ("poison", "x"):
        story.send(request, "c", 2.0)
    story.finish("x", 2.1)
    assert story.kill("c", 2.2) == ["poison"]


@pytest.mark.parametrize("plain", [1, 6])
@pytest.mark.parametrize("age_s", [1.0, 4.0, 60.0])
@pytest.mark.parametrize("between_s", [2.5, 4.5, 9.0, 15.0])
def test_a_rolling_restart_blames_nobody(plain: int, age_s: float, between_s: float) -> None:
    """Without a word to the proxy, and each server is back before the next one goes."""
    story = Story()
    for number in range(plain):
        story.send(f"{number}", "a", 0.0)
    order = "abcab"
    for step, (backend, following) in enumerate(pairwise(order)):
        now_s = age_s + between_s * step
        assert story.kill(backend, now_s) == []
        for number in range(plain):
            story.send(f"{number}", following, now_s)


def test_a_restart_that_servers_tell_of_blames_nobody_who_is_old() -> None:
    story = Story()
    story.send("x", "a", 0.0)
    for step, (backend, following) in enumerate(pairwise("abcd")):
        now_s = 12.0 + 6.0 * step
        assert story.kill(backend, now_s, told=True) == []
        story.send("x", following, now_s)


@pytest.mark.parametrize("after_s", [0.1, 5.0, 9.9])
def test_an_engine_that_tells_of_its_death_may_take_longer(after_s: float) -> None:
    story = Story()
    story.send("slow", "a", 0.0)
    assert story.kill("a", after_s, told=True) == []
    story.send("slow", "b", after_s)
    assert story.kill("b", 2.0 * after_s, told=True) == ["slow"]


def test_it_takes_two_engines() -> None:
    story = Story()
    for now_s in (0.0, 2.0, 4.0):
        story.send("x", "a", now_s)
        assert story.kill("a", now_s + 0.5) == []


def test_an_engine_that_probes_found_dead_without_it_excuses_it() -> None:
    story = Story()
    story.send("z", "c", 0.0)
    story.finish("z", 0.1)
    story.send("x", "a", 1.0)
    assert story.kill("a", 1.5) == []
    story.send("x", "b", 1.5)
    story.backends["a"].restarted()  # its own death
    story.backends["c"].restarted()
    assert story.kill("b", 2.0) == []


@pytest.mark.parametrize("plain", [1, 6])
def test_a_restart_of_one_after_the_other_blames_nobody(plain: int) -> None:
    """Without a word to the proxy: SIGKILL every six seconds, whoever waits moves on."""
    story = Story()
    for number in range(plain):
        story.send(f"{number}", "a", 0.0)
    for at_s, backend, following in ((4.0, "a", "b"), (10.0, "b", "c")):
        assert story.kill(backend, at_s) == []
        for number in range(plain):
            story.send(f"{number}", following, at_s)


def test_deaths_of_no_interest_are_not_kept() -> None:
    story = Story()
    for number in range(100):
        story.send("x", f"{number}", 10.0 * number)
        story.kill(f"{number}", 10.0 * number + 5.0)
    assert len(story.deaths) <= KEPT_S / 10.0 + 1


def test_a_backend_that_is_taken_out_dies_of_that() -> None:
    story = Story()
    story.send("x", "a", 0.0)
    assert story.kill("a", 6.0, expected=True) == []
    story.send("x", "b", 6.0)
    assert story.kill("b", 6.1) == []
    story.send("x", "c", 6.1)
    # The restart beside it may have ended both.
    assert story.kill("c", 6.2) == []


def test_three_engines_at_once_blame_nobody() -> None:
    story = Story()
    for number, backend in enumerate("aabbcc"):
        story.send(f"{number}", backend, 0.0)
    blamed: list[str] = []
    for backend, following in (("a", "b"), ("b", "c"), ("c", "d")):
        blamed += story.kill(backend, 1.0)
        for request in story.suspects:
            if request not in story.leases:
                story.send(request, following, 1.0)
    assert blamed == []
    assert len(story.leases) == 6


def test_an_old_death_of_others_says_nothing() -> None:
    story = Story()
    story.send("x", "z", 0.0)
    story.kill("z", 0.1)
    late_s = TOGETHER_S + 1.0
    story.send("poison", "a", late_s)
    story.kill("a", late_s + 0.1)
    story.send("poison", "b", late_s + 0.1)
    assert story.kill("b", late_s + 0.2) == ["poison"]


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


def holds(poison: Poison, tenant: str, path: bytes, body: bytes, now_s: float) -> bool:
    if not poison.may_hold(len(body), now_s):
        return False
    return poison.holds(tenant, mark_of(path, body), now_s)


def test_the_same_bytes_are_known_for_ten_minutes() -> None:
    poison = Poison()
    poison.add("", mark_of(CHAT, b"kills"), 100.0)
    assert holds(poison, "", CHAT, b"kills", 100.0)
    assert holds(poison, "", CHAT, b"kills", 100.0 + MEMORY_S - 0.1)
    assert not holds(poison, "", CHAT, b"kills ", 100.0)
    assert not holds(poison, "", CHAT, b"Kills", 100.0)
    assert not holds(poison, "", b"/v1/completions", b"kills", 100.0)
    assert not holds(poison, "", CHAT, b"kills", 100.0 + MEMORY_S)


def test_what_kills_again_is_remembered_anew() -> None:
    poison = Poison()
    poison.add("", mark_of(CHAT, b"kills"), 0.0)
    poison.add("", mark_of(CHAT, b"other"), 300.0)
    poison.add("", mark_of(CHAT, b"kills"), 500.0)
    assert holds(poison, "", CHAT, b"kills", 1_000.0)
    assert not holds(poison, "", CHAT, b"other", 1_000.0)
    poison.add("", mark_of(CHAT, b"new"), 1_000.0)
    assert len(poison) == 2


def test_what_is_one_tenants_is_not_anothers() -> None:
    poison = Poison()
    poison.add("a", mark_of(CHAT, b"kills"), 0.0)
    assert holds(poison, "a", CHAT, b"kills", 1.0)
    assert not holds(poison, "b", CHAT, b"kills", 1.0)


def test_what_was_served_after_all_is_forgotten() -> None:
    poison = Poison()
    for tenant in "ab":
        poison.add(tenant, mark_of(CHAT, b"hello"), 0.0)
        poison.add(tenant, mark_of(CHAT, b"kills"), 0.0)
    poison.served(mark_of(CHAT, b"hello"))
    for tenant in "ab":
        assert not holds(poison, tenant, CHAT, b"hello", 1.0)
        assert holds(poison, tenant, CHAT, b"kills", 1.0)


def test_a_tenant_fills_its_own_share_and_no_others() -> None:
    poison = Poison()
    poison.add("victim", mark_of(CHAT, b"kills"), 0.0)
    for number in range(20 * REMEMBERED_MAX):
        poison.add("attacker", mark_of(CHAT, b"%d" % number), number / 1_000)
    assert len(poison) == REMEMBERED_MAX + 1
    assert holds(poison, "victim", CHAT, b"kills", 2.0)
    assert not holds(poison, "attacker", CHAT, b"0", 2.0)
    assert holds(poison, "attacker", CHAT, b"%d" % (20 * REMEMBERED_MAX - 1), 2.0)
    poison.add("later", mark_of(CHAT, b"new"), 1_000.0)
    assert len(poison) == 1


def test_a_body_in_pieces_has_the_mark_of_the_whole() -> None:
    body = bytes(range(256)) * 1_000
    for size in (1, 255, 100_000, len(body)):
        marking = Marking(CHAT)
        for at in range(0, len(body), size):
            marking.add(body[at : at + size])
        assert marking.mark == mark_of(CHAT, body)
    assert Marking(b"/v1/completions").mark != Marking(CHAT).mark
