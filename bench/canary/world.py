"""One canary from its first step to its end, and one new backend beside its peers.

Of their clients one may be hostile.

Clients come with sessions, and a session stays on its version while weights move. A client that
picks its version begins sessions until one is where it wants it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi, sin
from random import Random
from typing import Final

from penstock.balancing.canary.judge import Newcomer
from penstock.balancing.canary.judge import Outcome as Became
from penstock.balancing.canary.metrics import Ended, Ending
from penstock.balancing.canary.steps import Canary, Event, Stage
from penstock.bench.canary.records import LOADS, Seen
from penstock.conf.canary import CanarySettings

RATE_PER_S: Final = 20.0
CLIENTS: Final = 40
SESSIONS: Final = 120  # at the same time
SESSION_REQUESTS: Final = 4.0
LOOK_S: Final = 2.0
LONGEST_S: Final = 6 * 3_600.0
HOSTILE: Final = "hostile"
HOSTILE_SHARE: Final = 0.3
LOAD: Final = 0.5
SWING_S: Final = 180.0
# How long the client of a request that hangs waits, and how long a long plain answer takes.
PATIENCE_S: Final = 600.0
LONG_S: Final = 60.0
# Of every version. A session whose requests are refused is refused always: it asks for too much.
ERRORS, BROKEN, EMPTY, REFUSED = 0.001, 0.000_2, 0.001, 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong with the canary, with the load, or with one client.

    `hostile`: how its requests end on the canary, or not. None: as others' do. `hangs`: the share
    of the canary's requests that get no answer. `long`: all answers are plain, and this share of
    both versions' takes `LONG_S`.
    """

    name: str
    errors: float = ERRORS
    broken: float = BROKEN
    empty: float = EMPTY
    ttft: float = 1.0
    itl: float = 1.0
    hangs: float = 0.0
    long: float = 0.0
    swings: bool = False
    hostile: Mapping[bool, Ending] | None = None

    @property
    def worse(self) -> bool:
        """Whether the canary is to go back."""
        changed = (self.errors, self.broken, self.empty, self.ttft, self.itl, self.hangs)
        return changed != (ERRORS, BROKEN, EMPTY, 1.0, 1.0, 0.0)

    @property
    def harmed(self) -> float:
        """The share of the canary's requests that the stable version would have served better."""
        more = self.errors - ERRORS + self.broken - BROKEN + self.empty - EMPTY
        more += self.hangs
        return 1.0 if self.ttft > 1.0 or self.itl > 1.0 else more


CASES: Final = (
    Case("2 % errors", errors=0.02),
    Case("1 % of the answers cut", broken=0.01),
    Case("2 % empty answers", empty=0.02),
    Case("20 % slower first tokens", ttft=1.2),
    Case("20 % slower further tokens", itl=1.2),
    Case("90 % hang", hangs=0.9),
    Case("5 % hang", hangs=0.05),
    Case("2 % errors, 5 % of all plain answers take a minute", errors=0.02, long=0.05),
    Case("equal"),
    Case("equal, 5 % of all plain answers take a minute", long=0.05),
    Case("equal, the stable version's load swings", swings=True),
    Case(
        "equal, a hostile client's requests fail on the canary",
        hostile={True: Ending.ERROR, False: Ending.SERVED},
    ),
    Case(
        "2 % errors, a hostile client's requests fail on the stable version",
        errors=0.02,
        hostile={True: Ending.SERVED, False: Ending.ERROR},
    ),
)


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for a plain answer, or in vain, until `until_s`.

    `ended`: how it will end. `told`: its end tells nothing more.
    """

    ended: Ended
    sent_s: float
    until_s: float
    told: bool = False
    over: bool = False

    @property
    def waits(self) -> bool:
        return not self.over

    def waiting(self, now_s: float) -> Ended:
        """The request as a failed one: it has had no answer until now."""
        ended = self.ended
        return Ended(
            Ending.HUNG,
            canary=ended.canary,
            client=ended.client,
            key=ended.key,
            fresh=ended.fresh,
            prompt_tokens=ended.prompt_tokens,
            stream=ended.stream,
            queued_tokens=ended.queued_tokens,
            streams=ended.streams,
            waited_s=now_s - self.sent_s,
        )


@dataclass(slots=True)
class Session:
    """A sticky key: where it stands among all of them, and whose it is."""

    client: str
    key: int
    place: float
    refused: bool


@dataclass(slots=True)
class Outcome:
    """How a run ended, after how many requests, and how many of these were the canary's."""

    stage: Stage
    requests: int
    to_canary: int
    took_s: float
    events: list[Event]


class World:
    def __init__(
        self, case: Case, settings: CanarySettings, seen: Mapping[float, Sequence[Seen]], seed: int
    ) -> None:
        self._case = case
        self._rng = Random(f"{case.name} {seed}")
        self._seen = seen
        self.canary = Canary(settings, 0.0)
        self._waiting: list[Waiting] = []
        self._sessions: list[Session] = []
        self._hostile = self._session(HOSTILE)
        self._sessions += [self._session(self._client()) for _ in range(SESSIONS)]

    def run(self) -> Outcome:
        """Play until the canary is at its end."""
        rng, canary = self._rng, self.canary
        events: list[Event] = []
        now_s, looked_s, requests, to_canary = 0.0, 0.0, 0, 0
        while canary.percent not in (0.0, 100.0) and now_s < LONGEST_S:
            now_s += rng.expovariate(RATE_PER_S)
            ended = self._request(now_s)
            requests += 1
            to_canary += ended.canary
            if not self._waits(ended, now_s):
                canary.ended(ended, now_s)
            if now_s - looked_s >= LOOK_S:
                looked_s = now_s
                self._end_waits(now_s)
                event = canary.look(now_s)
                if event is not None:
                    events.append(event)
        return Outcome(canary.stage, requests, to_canary, now_s, events)

    def _waits(self, ended: Ended, now_s: float) -> bool:
        """Whether it ends later."""
        if ended.ending is Ending.LEFT:
            until_s = now_s + PATIENCE_S
        elif not ended.stream and ended.first_s is not None:
            until_s = now_s + ended.first_s
        else:
            return False
        request = Waiting(ended, now_s, until_s)
        self._waiting.append(request)
        self.canary.sent(request)
        return True

    def _end_waits(self, now_s: float) -> None:
        over = [each for each in self._waiting if each.until_s <= now_s]
        self._waiting = [each for each in self._waiting if each.until_s > now_s]
        for each in over:
            each.over = True
            if not each.told:
                self.canary.ended(each.ended, now_s)

    def _client(self) -> str:
        """The first clients have more requests than the last."""
        return f"client {int(CLIENTS * self._rng.random() ** 2)}"

    def _session(self, client: str) -> Session:
        rng = self._rng
        return Session(client, rng.getrandbits(63), rng.random(), rng.random() < REFUSED)

    def _request(self, now_s: float) -> Ended:
        rng, case = self._rng, self._case
        if case.hostile is not None and rng.random() < HOSTILE_SHARE:
            # It tries one more key with each request, and keeps one that is on the canary.
            if self._hostile.place >= self.canary.percent / 100 or rng.random() < 0.5:
                self._hostile = self._session(HOSTILE)
            session = self._hostile
        else:
            number = rng.randrange(SESSIONS)
            if rng.random() < 1 / SESSION_REQUESTS:
                self._sessions[number] = self._session(self._client())
            session = self._sessions[number]
        on_canary = session.place < self.canary.percent / 100
        fresh = self.canary.began(session.client, session.key)
        return self._ended(session, now_s, on_canary=on_canary, fresh=fresh)

    def _ended(self, session: Session, now_s: float, *, on_canary: bool, fresh: bool) -> Ended:
        rng, case = self._rng, self._case
        load = LOAD
        if case.swings and not on_canary:
            load = 0.5 + 0.3 * sin(2 * pi * now_s / SWING_S)
        seen = rng.choice(self._seen[min(LOADS, key=lambda each: abs(each - load))])
        ending = self._ending(session, on_canary=on_canary)
        served, stream = ending is Ending.SERVED, not case.long
        ttft_s = seen.ttft_s * (case.ttft if on_canary else 1.0)
        itl_s = seen.itl_s * (case.itl if on_canary else 1.0)
        first_s = ttft_s if stream else ttft_s + itl_s * seen.answer_tokens
        if case.long and rng.random() < case.long:
            first_s = LONG_S
        return Ended(
            ending,
            canary=on_canary,
            client=session.client,
            key=session.key,
            fresh=fresh,
            prompt_tokens=seen.prompt_tokens,
            stream=stream,
            queued_tokens=seen.queued_tokens,
            streams=seen.streams,
            ttft_s=ttft_s if served and stream else None,
            first_s=first_s if served else None,
            waited_s=PATIENCE_S if ending is Ending.LEFT else 0.0,
            itl_s=itl_s if served and stream else None,
            completion_tokens=seen.answer_tokens if served else None,
        )

    def _ending(self, session: Session, *, on_canary: bool) -> Ending:
        case, draw = self._case, self._rng.random()
        if session.client == HOSTILE and case.hostile is not None:
            return case.hostile[on_canary]
        if session.refused:
            return Ending.REFUSED
        if case.hangs and on_canary and self._rng.random() < case.hangs:
            return Ending.LEFT
        rates = (
            (Ending.ERROR, case.errors if on_canary else ERRORS),
            (Ending.BROKEN, case.broken if on_canary else BROKEN),
            (Ending.EMPTY, case.empty if on_canary else EMPTY),
        )
        for ending, rate in rates:
            if draw < rate:
                return ending
            draw -= rate
        return Ending.SERVED


# One new backend beside its peers, until it is known. The hostile client looks for sessions that
# the pool keeps there: half of what it sends gets there.

# Of eight backends one is new.
SHARE: Final = 1 / 8
# Of the new backend, or how a hostile client's requests end on it, or not.
NEWCOMERS: Final = (
    Case("30 % errors", errors=0.3),
    Case("5 % errors", errors=0.05),
    Case("2 % errors", errors=0.02),
    Case("2 % of the answers cut", broken=0.02),
    Case("equal"),
    Case(
        "equal, a hostile client's requests fail there",
        hostile={True: Ending.ERROR, False: Ending.SERVED},
    ),
    Case(
        "5 % errors, a hostile client's requests fail on its peers",
        errors=0.05,
        hostile={True: Ending.SERVED, False: Ending.ERROR},
    ),
)


def play_newcomer(case: Case, seed: int) -> tuple[Became, int, float]:
    """What became of it, after how many requests of its own and how many seconds."""
    rng, newcomer = Random(f"{case.name} {seed}"), Newcomer()
    now_s = looked_s = 0.0
    while True:
        now_s += rng.expovariate(RATE_PER_S)
        newcomer.add(_newcomers_request(case, rng), now_s)
        if now_s - looked_s >= LOOK_S:
            looked_s = now_s
            found = newcomer.look(now_s)
            if found is not None:
                return found.outcome, newcomer.requests, now_s


def _newcomers_request(case: Case, rng: Random) -> Ended:
    if case.hostile is not None and rng.random() < HOSTILE_SHARE:
        new = rng.random() < 0.5
        return Ended(case.hostile[new], canary=new, client=HOSTILE, fresh=False)
    new, draw, ending = rng.random() < SHARE, rng.random(), Ending.SERVED
    errors, broken = (case.errors, case.broken) if new else (ERRORS, BROKEN)
    if draw < errors:
        ending = Ending.ERROR
    elif draw < errors + broken:
        ending = Ending.BROKEN
    client = f"client {int(CLIENTS * rng.random() ** 2)}"
    return Ended(ending, canary=new, client=client, fresh=False)
