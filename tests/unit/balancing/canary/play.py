"""Requests for a canary's tests, and a canary that is played by them."""

from collections.abc import Callable
from random import Random

from penstock.balancing.canary.metrics import Ended, Ending
from penstock.balancing.canary.steps import Canary, Event
from penstock.conf.canary import CanarySettings, JudgeSettings

Makes = Callable[[Random, bool, str], Ending]
PERIOD_S = 0.05


def settings(
    *steps: float, judge: JudgeSettings | None = None, every_s: float = 60.0
) -> CanarySettings:
    return CanarySettings(
        pool="next", steps=steps or (10.0, 100.0), every_s=every_s, judge=judge or ONLY_ERRORS
    )


ONLY_ERRORS = JudgeSettings(
    hung=None, broken=None, empty=None, refused=None, ttft=None, itl=None, length=None
)


def served(rng: Random, canary: bool, client: str) -> Ending:
    return Ending.SERVED


def failing(share: float) -> Makes:
    """The canary fails this share of its requests."""

    def makes(rng: Random, canary: bool, client: str) -> Ending:
        return Ending.ERROR if canary and rng.random() < share else Ending.SERVED

    return makes


class Play:
    """Requests of some clients, one each 0.05 s, each with a key of its own."""

    def __init__(self, canary: Canary, clients: int = 20, seed: int = 1) -> None:
        self.canary = canary
        self.rng = Random(seed)
        self.clients = clients
        self.now_s = 0.0
        self.to_canary = 0
        self.events: list[Event] = []

    def requests(self, number: int, makes: Makes = served) -> list[tuple[str, float]]:
        """Play so many. Returns the stages and weights that were told of meanwhile."""
        before = len(self.events)
        for each in range(number):
            if self.canary.percent in (0.0, 100.0):
                break
            self.now_s += PERIOD_S
            self._request(makes)
            if each % 20 == 19:
                event = self.canary.look(self.now_s)
                if event is not None:
                    self.events.append(event)
        return [(each.stage.value, each.percent) for each in self.events[before:]]

    def _request(self, makes: Makes) -> None:
        rng = self.rng
        canary = 100 * rng.random() < self.canary.percent
        client = f"client {rng.randrange(self.clients)}"
        self.to_canary += canary
        ending = makes(rng, canary, client)
        fresh = self.canary.began(client, rng.getrandbits(60))
        ended = Ended(ending, canary=canary, client=client, fresh=fresh, prompt_tokens=500)
        self.canary.ended(ended, self.now_s)
