"""What ends answers early attracts little, and equal backends never accuse each other."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from penstock.balancing.answer_lengths import COMPARED_EACH, HALF_S, NAMES_MAX, REST, AnswerLengths
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.brief_answers import is_brief_for, is_brief_for_all
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.balancing.policies import POLICIES

STEP_S = 0.02
WRONG = "b3"
# The client, the model and the leading blocks of a request.
Kind = tuple[str, str, tuple[int, ...]]


class Played:
    """Twenty requests a second before four backends with a clock of its own."""

    def __init__(self) -> None:
        self.backends = tuple(Backend(f"b{n}", "http://127.0.0.1:1") for n in range(4))
        for backend in self.backends:
            backend.state = State.READY
        pool = Pool("default", self.backends, POLICIES["token_cost"](self.backends))
        self.gate = Gate(lambda: Fleet((pool,)), Random(3))
        self.lengths = OutputLength()
        self.found: Counter[str] = Counter()  # how often answers were found to be brief
        self.now_s = 0.0

    def run(
        self, requests: int, kind: Callable[[int], Kind], tokens: Callable[[Ask, Backend], int]
    ) -> Counter[str]:
        """Where the requests went, by backend and client."""
        went: Counter[str] = Counter()
        running: list[tuple[float, int, Lease, int]] = []
        order = count()
        for number in range(requests):
            self.now_s += 0.05
            while running and running[0][0] <= self.now_s:
                done_s, _, lease, told = heappop(running)
                self.answer(lease, told, done_s)
            client, model, blocks = kind(number)
            ask = Ask(
                "/",
                model,
                prompt_tokens=160,
                blocks=blocks,
                block_tokens=16.0,
                stream=True,
                client=client,
                output_tokens=self.lengths.expect(client, model, "/", None),
            )
            lease = self.gate.choose(ask, self.now_s)
            went[lease.backend.name] += 1
            told = tokens(ask, lease.backend)
            heappush(running, (self.now_s + 0.05 + STEP_S * told, next(order), lease, told))
        return went

    def answer(self, lease: Lease, tokens: int, now_s: float) -> None:
        ask = lease.ask
        lease.first_token(now_s - STEP_S * tokens)
        lease.tokens(tokens)
        times = self.lengths.observe(ask.client, ask.model, "/", None, tokens)
        if times is not None:
            self.found[lease.backend.name] += self.gate.answered(lease, times, now_s)
        lease.complete(now_s, tokens)


def plain(number: int) -> Kind:
    return "client", "m", ()


def of_five(number: int) -> Kind:
    return f"client-{number % 5}", "m", ()


def cut_short(ask: Ask, backend: Backend) -> int:
    return 1 if backend.name == WRONG else 150


@pytest.mark.parametrize("kind", [plain, of_five])
def test_a_backend_that_ends_answers_early_gets_few(kind: Callable[[int], Kind]) -> None:
    played = Played()
    played.run(600, kind, cut_short)
    assert set(+played.found) == {WRONG}
    went = played.run(600, kind, cut_short)
    assert went[WRONG] < 600 / 10
    assert played.found[WRONG] == 1  # told once, not again and again


def test_when_it_is_mended_it_gets_its_part_again() -> None:
    played = Played()
    played.run(600, plain, cut_short)
    went = played.run(int(3 * HALF_S / 0.05), plain, lambda ask, backend: 150)
    assert went[WRONG] > went.total() / 6
    assert not played.backends[3].lengths.brief_in_row


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_equal_backends_do_not_accuse_each_other(share: float) -> None:
    """Nearly all answers have one token, some have hundreds."""
    rng = Random(5)
    played = Played()
    for kind in (plain, of_five):
        played.run(6_000, kind, lambda ask, backend: 400 if rng.random() < share else 1)
    assert not +played.found


def test_who_has_short_answers_everywhere_hides_nothing() -> None:
    """Half of all requests are one client's, and ask for one token."""
    played, rng = Played(), Random(7)

    def kind(number: int) -> Kind:
        return ("classifier" if number % 2 else f"client-{rng.randrange(4)}"), "m", ()

    def tokens(ask: Ask, backend: Backend) -> int:
        return 1 if ask.client == "classifier" or backend.name == WRONG else 150

    played.run(2_000, kind, tokens)
    assert set(+played.found) == {WRONG}
    wrong = played.backends[3]
    wrong.penalty.forgive()
    assert is_brief_for_all(wrong, played.backends[:3], played.now_s)


def test_a_model_with_short_answers_that_few_serve_accuses_nobody() -> None:
    played = Played()
    for backend in played.backends[:3]:
        backend.models = {"m": b"{}"}
    played.backends[3].models = {"m": b"{}", "adapter": b"{}"}
    played.run(
        3_000,
        lambda number: ("client", "adapter" if number % 2 else "m", ()),
        lambda ask, backend: 2 if ask.model == "adapter" else 150,
    )
    assert not +played.found


def test_shares_of_one_model_are_not_those_of_another() -> None:
    """Two clients of an adapter send little at first, then ever more: at the two that serve it."""
    played, rng = Played(), Random(7)
    for number in range(8_000):
        now_s = 0.05 * number
        backend = rng.choice(played.backends)
        client, times = f"client-{rng.randrange(4)}", 1.0
        if number % 2 and backend.name in ("b0", "b1"):
            client, times = f"attacker-{rng.randrange(2)}", 5.0
        lease = Lease(backend, Ask("/", client=client), now_s)
        assert not played.gate.answered(lease, times, now_s)
        lease.complete(now_s)


def test_short_answers_to_a_prompt_that_one_cache_holds_accuse_nobody() -> None:
    """Cached blocks keep each of two templates at its backends; one asks for short answers."""
    played = Played()
    short = tuple(range(1, 11))

    def kind(number: int) -> Kind:
        return "client", "m", short if number % 2 else tuple(range(100 * number, 100 * number + 10))

    played.run(4_000, kind, lambda ask, backend: 2 if ask.blocks == short else 150)
    assert not +played.found


@pytest.mark.parametrize("kind", [plain, of_five])
def test_a_restart_while_the_work_changes_accuses_nobody(kind: Callable[[int], Kind]) -> None:
    """Only its samples begin anew. Those of its peers are of another time."""
    played = Played()
    played.run(2_000, kind, lambda ask, backend: 1_000)
    played.backends[3].restarted()
    played.run(6_000, kind, lambda ask, backend: 20)
    assert not +played.found


def test_what_one_client_meets_is_told_once() -> None:
    played, rng = Played(), Random(7)
    told = 0
    for number in range(6_000):
        backend = rng.choice(played.backends)
        client = f"client-{rng.randrange(5)}"
        times = 0.01 if client == "client-1" and backend.name == WRONG else 1.0
        lease = Lease(backend, Ask("/", client=client), 0.05 * number)
        told += played.gate.answered(lease, times, 0.05 * number)
        lease.complete(0.05 * number)
    assert told == 1
    wrong = played.backends[3]
    assert wrong.penalty.read(300.0, "client-1") > 0.0
    assert wrong.penalty.read(300.0, "client-2") == 0.0


def test_one_client_decides_for_itself_alone() -> None:
    """Its own answers are short only at one backend, however it does that."""
    played = Played()

    def kind(number: int) -> Kind:
        return ("client" if number % 2 else "other"), "m", ()

    def tokens(ask: Ask, backend: Backend) -> int:
        return 1 if ask.client == "client" and backend.name == WRONG else 150

    played.run(2_000, kind, tokens)
    wrong = played.backends[3]
    wrong.penalty.forgive()
    assert is_brief_for(wrong, played.backends[:3], "client", played.now_s)
    assert not is_brief_for_all(wrong, played.backends[:3], played.now_s)
    assert played.run(600, lambda number: ("other", "m", ()), tokens)[WRONG] > 600 / 6


def test_the_broken_ones_may_be_half_of_the_peers() -> None:
    played = Played()
    wrong = {"b2", "b3"}
    played.run(1_500, plain, lambda ask, backend: 1 if backend.name in wrong else 150)
    assert set(+played.found) == wrong


def test_samples_fade_and_few_clients_are_known_by_name() -> None:
    lengths = AnswerLengths()
    for number in range(4 * NAMES_MAX):
        lengths.add(f"client-{number}", 1.0, 0.0)
    assert lengths.of("client-0").samples == 1.0
    assert lengths.of(f"client-{NAMES_MAX}").samples == 0.0
    assert lengths.of(REST).samples == 3 * NAMES_MAX
    lengths.add("client-0", 1.0, HALF_S + 1.0)
    assert lengths.of("client-0").samples == 1.0
    assert lengths.of(REST).samples == 1.5 * NAMES_MAX


def test_peers_are_looked_at_once_in_many_answers() -> None:
    lengths = AnswerLengths()
    due = []
    for _ in range(2 * COMPARED_EACH):
        lengths.add("client", 1.0, 0.0)
        due.append(lengths.is_due("client"))
    assert sum(due) == 2
    lengths.brief_in_row = 1
    assert lengths.is_due("client")
    lengths.brief_for = "client"
    assert not lengths.is_due("another")
