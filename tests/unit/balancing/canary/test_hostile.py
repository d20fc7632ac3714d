"""Nobody forces a roll-back, and nobody forces a promotion."""

from random import Random

import pytest

from penstock.balancing.canary.groups import BITS, GROUPS, FreshKeys, Groups
from penstock.balancing.canary.metrics import Ended, Ending
from penstock.balancing.canary.steps import Canary, Stage
from tests.unit.balancing.canary.play import ONLY_ERRORS, PERIOD_S, Play, failing, settings

ONLY_REFUSALS = ONLY_ERRORS.model_copy(update={"errors": None, "refused": 0.02})
ONLY_TTFT = ONLY_ERRORS.model_copy(update={"errors": None, "ttft": 0.15})
HOSTILE = "client 3"


@pytest.mark.parametrize("seed", range(2))
def test_one_client_cannot_force_a_roll_back(seed: int) -> None:
    """A quarter of the requests are its own, and fail on the canary alone."""

    def makes(rng: Random, canary: bool, client: str) -> Ending:
        return Ending.ERROR if canary and client == HOSTILE else Ending.SERVED

    play = Play(Canary(settings(10, 50, 100), 0.0), clients=4, seed=seed)
    assert play.requests(60_000, makes)[-1] == ("promoted", 100.0)


@pytest.mark.parametrize("seed", range(2))
def test_one_client_cannot_hide_that_a_version_is_worse(seed: int) -> None:
    """Its requests fail on the stable version alone."""

    def makes(rng: Random, canary: bool, client: str) -> Ending:
        if client == HOSTILE:
            return Ending.SERVED if canary else Ending.ERROR
        return failing(0.03)(rng, canary, client)

    play = Play(Canary(settings(10, 50, 100), 0.0), clients=5, seed=seed)
    assert ("promoted", 100.0) not in play.requests(20_000, makes)
    assert play.canary.stage is Stage.ROLLED_BACK


def test_many_names_cannot_aim_refusals_at_a_version() -> None:
    """Each new name asks once, sees its version, and sends what is refused if it is the canary."""
    canary = Canary(settings(10, 100, judge=ONLY_REFUSALS, every_s=100.0), 0.0)
    rng, now_s, aimed = Random(1), 0.0, 0
    while canary.percent not in (0.0, 100.0) and now_s < 500.0:
        client, key = f"name {rng.getrandbits(40)}", rng.getrandbits(60)
        on_canary = rng.random() < 0.1
        for ending in (Ending.SERVED, Ending.REFUSED) if on_canary else (Ending.SERVED,):
            now_s += PERIOD_S
            aimed += ending is Ending.REFUSED
            fresh = canary.began(client, key)
            ended = Ended(ending, canary=on_canary, client=client, key=key, fresh=fresh)
            canary.ended(ended, now_s)
        if rng.random() < 0.05:
            canary.look(now_s)
        assert canary.stage is not Stage.ROLLED_BACK
    assert aimed > 100


def test_refusals_that_are_not_aimed_do_count() -> None:
    def makes(rng: Random, canary: bool, client: str) -> Ending:
        return Ending.REFUSED if canary and rng.random() < 0.05 else Ending.SERVED

    play = Play(Canary(settings(10, 100, judge=ONLY_REFUSALS), 0.0))
    assert play.requests(15_000, makes)[-1] == ("rolled_back", 0.0)


def test_clients_that_leave_say_nothing_unless_they_waited_longer_than_is_usual() -> None:
    for waited_s, stage in ((0.01, Stage.HELD), (30.0, Stage.ROLLED_BACK)):
        canary = Canary(settings(10, 100, judge=ONLY_TTFT), 0.0)
        rng, now_s = Random(2), 0.0
        for _ in range(4_000):
            now_s += PERIOD_S
            on_canary = rng.random() < 0.1
            left = on_canary and rng.random() < 0.7
            ended = Ended(
                Ending.LEFT if left else Ending.SERVED,
                canary=on_canary,
                client=f"client {rng.randrange(20)}",
                ttft_s=None if left else rng.lognormvariate(-2.0, 0.5),
                waited_s=waited_s if left else 0.0,
            )
            canary.ended(ended, now_s)
            canary.look(now_s)
            if canary.percent == 0.0:
                break
        assert canary.stage is stage


def test_one_user_who_always_fails_is_one_failure() -> None:
    canary = Canary(settings(10, 100), 0.0)
    for number in range(400):
        now_s = number * PERIOD_S
        on_canary = number % 10 == 0
        # Two users of two clients fail always, by what they ask for.
        key = number % 20 // 10 if on_canary else number
        ending = Ending.ERROR if on_canary else Ending.SERVED
        client = f"client {number % 20 // 10}" if on_canary else f"client {number % 7}"
        canary.ended(Ended(ending, canary=on_canary, client=client, key=key, fresh=False), now_s)
    canary.look(30.0)
    assert canary.judge.comparisons[0].canary == [2, 2]
    assert canary.stage is Stage.RUNNING


class Aimed:
    """A route on which a client's requests fail on the canary by its own doing."""

    def __init__(self) -> None:
        self.canary = Canary(settings(50, 100), 0.0)
        self.now_s = 0.0

    def sends(self, client: str, number: int, ending: Ending, *, on_canary: bool) -> None:
        for _ in range(number):
            fresh = self.canary.began(client, None)
            ended = Ended(ending, canary=on_canary, client=client, fresh=fresh)
            self.canary.ended(ended, self.now_s)

    def waits(self, wait_s: int) -> Stage:
        """It is looked at each second."""
        for _ in range(wait_s):
            self.now_s += 1.0
            self.canary.look(self.now_s)
        return self.canary.stage

    def play(self, told: str) -> None:
        """Steps: who sends how many requests to both versions (`aims`, which fail on the canary
        alone), to the stable one or to the canary, or how long nobody does and the stage then."""
        for who, what, *more in (step.split() for step in told.split(",")):
            if who == "wait":
                assert self.waits(int(what)).value in more or not more, told
            elif who in ("begin", "sleep"):
                self.canary.begin(self.now_s) if who == "begin" else self.canary.slept()
            elif what == "aims":
                self.sends(who, int(more[0]), Ending.ERROR, on_canary=True)
                self.sends(who, int(more[0]), Ending.SERVED, on_canary=False)
            else:
                number, ending, where = more
                self.sends(who, int(number), Ending(ending), on_canary=where == "canary")


AIMED = {
    "only if no other sent anything for a minute": f"""
        {"hostile aims 20, other sends 1 served stable, wait 58 running held," * 20}
        hostile aims 20, wait 5 rolled_back""",
    "a new begin": """
        hostile aims 20, wait 50 running, begin it, hostile aims 20, wait 59 running held,
        hostile aims 20, wait 5 rolled_back""",
    "it is not known who else sent while the process slept": """
        hostile aims 20, wait 50 running, sleep it, hostile aims 20, wait 59 running held,
        hostile aims 20, wait 5 rolled_back""",
    "the stable version does not serve it": """
        other sends 50 served stable, wait 100, hostile sends 20 error canary,
        hostile sends 20 error stable, wait 5 held, hostile sends 19 served stable, wait 5 held,
        hostile sends 1 served stable, wait 5 rolled_back""",
    # Neither alone, nor with what another one sees.
    "who is there no longer decides nothing": """
        other sends 1 served stable, wait 50, other sends 1 served stable, hostile aims 20, wait 50,
        other sends 40 served stable, wait 30 held, other sends 1 error canary, wait 100 held""",
    "who is there no longer is no witness for another": """
        gone sends 1 error canary, wait 50, other sends 1 served stable, hostile aims 40,
        wait 55 held""",
    "one request that the canary serves takes that from it": """
        other sends 1 served canary, wait 100, hostile aims 40, wait 200 held""",
}


@pytest.mark.parametrize("told", AIMED.values(), ids=AIMED)
def test_when_one_client_decides(told: str) -> None:
    Aimed().play(told)


@pytest.mark.parametrize("clients", [1, 100])
def test_the_only_client_decides_also_where_others_before_it_took_all_groups(clients: int) -> None:
    play = Aimed()
    for number in range(clients):
        play.sends(f"other {number}", 1, Ending.SERVED, on_canary=False)
    play.play("wait 61, only aims 20, wait 2 rolled_back")
    assert play.canary.why == "worse: none of its 20 requests was served"


def test_a_key_is_fresh_once_and_stays_so_over_a_restart() -> None:
    keys = FreshKeys()
    assert keys.use(0, 5)
    assert not keys.use(0, 5)
    assert keys.use(1, 5)
    assert keys.use(0, None)
    assert keys.use(0, None)
    again = FreshKeys.from_text(keys.to_text())
    assert not again.use(0, 5)
    assert again.use(0, 6)


def test_a_client_that_makes_up_keys_uses_up_those_of_its_group_alone() -> None:
    keys = FreshKeys()
    for key in range(2 * BITS):
        keys.use(3, key)
    assert True not in {keys.use(3, Random(key).getrandbits(60)) for key in range(100)}
    assert keys.use(4, 77)


def test_clients_have_groups_of_their_own_while_there_are_some() -> None:
    groups = Groups()
    first = [groups.of(f"client {i}") for i in range(GROUPS)]
    assert first == list(range(GROUPS))
    later = [groups.of(f"later {i}") for i in range(1_000)]
    assert set(later) == set(first)
    assert [groups.of(f"client {i}") for i in range(GROUPS)] == first
    assert groups.of("later 5") == later[5]
