"""A canary's way from its first step to all requests, or back to none.

running ──(time over, evidence lacks)──▶ held
   │ ◀──────────(no worse: next step)──────┘
   ├──(worse)──▶ rolled back       both stay so until they are told to begin again
   ├──(told)───▶ aborted
   └──(last step)──▶ promoted      (also when told)
"""

from collections import Counter
from enum import Enum
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol

from penstock.balancing.ask import Ask
from penstock.balancing.canary.groups import GROUPS, FreshKeys
from penstock.balancing.canary.judge import Habits, Judge
from penstock.balancing.canary.metrics import Ended, Ending, metrics_of, size_of
from penstock.balancing.canary.usual import FAR_S, is_watched
from penstock.balancing.lease import Lease
from penstock.conf.canary import CanarySettings

# A version that has served none of so many requests, of several clients, is not looked at longer.
# The stable one must have served as many meanwhile. One request that it serves ends that.
UNSERVED_MAX: Final = 20
# Who leaves early, or asks for what is refused, was not failed by the version.
_FAILED: Final = frozenset({Ending.ERROR, Ending.BROKEN, Ending.HUNG})
# So many clients, unless one alone may decide: two may fail by what they ask for. Where fewer have
# sent anything lately, all of those: nobody else would ever show it. A client that makes its own
# requests fail has to wait for such a minute. `comparison.py` compares over as long where few come.
UNSERVED_CLIENTS: Final = 3
LATELY_S: Final = 60.0
# That an equal version is rolled back, over all steps and metrics.
CHANCE: Final = 0.01
# The first step has few requests and meets the worst versions, so it gets most of the chance.
FIRST_PART: Final = 0.8
STATE_VERSION: Final = 1


class Stage(Enum):
    """Where a canary stands."""

    RUNNING = "running"
    HELD = "held"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"
    PROMOTED = "promoted"


MOVES: Final = frozenset({Stage.RUNNING, Stage.HELD})


class Event(NamedTuple):
    """Something that an operator should know. `percent`: what the canary gets from now on."""

    at_s: float
    stage: Stage
    percent: float
    why: str


class Waiting(Protocol):
    """A request that was sent. `told`: its end tells nothing more."""

    told: bool
    sent_s: float  # to a backend, the last time

    @property
    def waits(self) -> bool:
        """Whether it waits for its first token, or its plain answer."""

    def waiting(self, now_s: float) -> Ended:
        """The request as a failed one: it has had no answer until now."""


class Draw:
    """How one request came to a version, and what was there then.

    `key`: the hash that drew it, None if it was drawn for it alone. `fresh`: its client could not
    know the version (`groups.py`). `queued_tokens`, `streams`: at its backend when it was sent,
    itself included. `told`: its judge knows already that it waits far too long, so its end tells
    nothing more.
    """

    __slots__ = (
        "_ask",
        "_lease",
        "_on_canary",
        "canary",
        "fresh",
        "key",
        "queued_tokens",
        "sent_s",
        "streams",
        "told",
    )

    def __init__(self, canary: "Canary", ask: Ask, key: int | None) -> None:
        self.canary = canary
        self.key = key
        self.fresh = canary.began(ask.client, key)
        self.queued_tokens = self.streams = 0
        self.told = False
        self._ask = ask
        self._lease: Lease | None = None
        self._on_canary = False
        self.sent_s = 0.0

    def sent(self, lease: Lease, *, on_canary: bool) -> None:
        """It is sent to a backend of its version, maybe after another one has failed."""
        backend = lease.backend
        self.queued_tokens, self.streams = backend.queued_prefill_tokens, backend.streams
        self._lease, self._on_canary, self.sent_s = lease, on_canary, lease.began_s
        if is_watched(self._ask):
            self.canary.sent(self)

    @property
    def waits(self) -> bool:
        lease = self._lease
        return lease is not None and not lease.ended and lease.first_token_s is None

    def waiting(self, now_s: float) -> Ended:
        ask = self._ask
        return Ended(
            Ending.HUNG,
            canary=self._on_canary,
            client=ask.client,
            key=self.key,
            fresh=self.fresh,
            prompt_tokens=ask.prompt_tokens,
            stream=ask.stream,
            queued_tokens=self.queued_tokens,
            streams=self.streams,
            waited_s=now_s - self.sent_s,
        )


class Canary:
    """The canary of one route."""

    def __init__(self, settings: CanarySettings, now_s: float) -> None:
        self.settings = settings
        self.stage: Stage
        self.since_s: float
        self.step: int
        self._fresh = FreshKeys()
        self._habits = Habits()
        # Requests of both versions without a first token, in the order in which they were sent.
        self._waiting: dict[Waiting, None] = {}
        self.why = ""
        # When each group of clients sent something last, and those that did since the last look.
        self._sent_s: dict[int, float] = {}
        self._sent_groups: set[int] = set()
        self.begin(now_s)

    def begin(self, now_s: float) -> Event:
        """Begin at the first step, also after it was rolled back or aborted."""
        self._tries = 0
        self._sent_groups.update(range(GROUPS))  # nobody knows who else did
        return self._enter(0, now_s, "begins")

    @property
    def percent(self) -> float:
        """What the canary gets of the route's requests."""
        if self.stage in MOVES:
            return self.settings.steps[self.step]
        return 100.0 if self.stage is Stage.PROMOTED else 0.0

    # Requests ----------------------------------------------------------------------------------

    def began(self, client: str, key: int | None) -> bool:
        """A request's version was drawn. Returns whether its key is fresh; keep that for `ended`.

        Its client learns the version with the first byte of the answer: so this is noted before.
        """
        group = self._habits.groups.of(client)
        self._sent_groups.add(group)
        return self._fresh.use(group, key)

    def sent(self, request: Waiting) -> None:
        """A request was sent, to either version, maybe after another attempt has failed."""
        if self.stage in MOVES and not request.told:
            self._waiting.pop(request, None)  # it is the last one now
            self._waiting[request] = None

    def slept(self) -> None:
        """The process did not run, so no wait up to now tells anything."""
        for each in self._waiting:
            each.told = True
        self._waiting.clear()
        self._sent_groups.update(range(GROUPS))  # who could not may do so now

    def ended(self, ended: Ended, now_s: float) -> None:
        """A request has ended, of either version, or waits far too long for its first token."""
        if self.stage not in MOVES:
            return
        waits, kind = self._habits.waits, size_of(ended)
        if ended.unanswered and waits.is_far(kind, ended.waited_s):
            ended.ending = Ending.HUNG
        late = ended.unanswered and waits.is_late(kind, ended.waited_s)
        self.judge.add(ended, now_s)
        group = self._habits.groups.of(ended.client)
        if ended.ending is Ending.SERVED:
            self._served += ended.canary
            self._stable_served[group] += not ended.canary
        elif ended.canary and (late or ended.ending in _FAILED):
            self._unserved[group] += 1

    # Moves -------------------------------------------------------------------------------------

    def look(self, now_s: float) -> Event | None:
        """Move if it is time to. To be called every second or so."""
        if self.stage not in MOVES:
            return None
        self._look_at_waits(now_s)
        worse = self._serves_nobody(now_s) or self.judge.worse(now_s)
        if worse:
            return self._stay(Stage.ROLLED_BACK, f"worse: {worse}", now_s)
        if now_s - self.since_s < self.settings.every_s:
            return None
        lack = self.judge.lack()
        if not lack:
            return self._enter(self.step + 1, now_s, f"no worse: {self.judge.words()}")
        self.why = lack
        if self.stage is Stage.HELD:
            return None
        self.stage = Stage.HELD
        return self._event(now_s)

    def _look_at_waits(self, now_s: float) -> None:
        """Count those that wait far too long. Their ends may come in minutes.

        The others are far more where many wait: nothing is made for them.
        """
        self._waiting = {each: None for each in self._waiting if each.waits}
        waits = self._habits.waits
        for each in list(takewhile(lambda each: now_s - each.sent_s >= FAR_S, self._waiting)):
            ended = each.waiting(now_s)
            if waits.is_far(size_of(ended), ended.waited_s):
                del self._waiting[each]
                each.told = True
                self.ended(ended, now_s)

    def promote(self, now_s: float) -> Event:
        """An operator gives it all requests."""
        return self._stay(Stage.PROMOTED, "told to", now_s)

    def stay_back(self, why: str, now_s: float) -> Event:
        """It was rolled back before, and stays so."""
        return self._stay(Stage.ROLLED_BACK, why, now_s)

    def abort(self, now_s: float) -> Event:
        """An operator takes all requests from it."""
        return self._stay(Stage.ABORTED, "told to", now_s)

    def _stay(self, stage: Stage, why: str, now_s: float) -> Event:
        self.stage, self.why, self.since_s = stage, why, now_s
        if stage not in MOVES:
            self._waiting.clear()
        return self._event(now_s)

    def _enter(self, step: int, now_s: float, why: str) -> Event:
        """Begin a step, with evidence of its own: a version may fail only under more load."""
        self.step = step
        self.stage = Stage.RUNNING
        self._judge_anew()
        if step == len(self.settings.steps) - 1:
            return self._stay(Stage.PROMOTED, why, now_s)
        return self._stay(Stage.RUNNING, why, now_s)

    def _serves_nobody(self, now_s: float) -> str:
        """Whether it has served nobody at all, in words. A split by few keys shows nothing else."""
        self._sent_s.update(dict.fromkeys(self._sent_groups, now_s))
        self._sent_groups.clear()
        unserved, stable_served = self._unserved, self._stable_served
        clients_min = 1 if self.settings.judge.clients_min == 1 else UNSERVED_CLIENTS
        if len(unserved) < clients_min:
            lately = [each for each, at_s in self._sent_s.items() if now_s - at_s < LATELY_S]
            if not unserved.keys() >= set(lately):
                return ""
            # It fails all who are there: then only their own requests count, of both versions.
            unserved = Counter({each: unserved[each] for each in lately})
            stable_served = Counter({each: stable_served[each] for each in lately})
        number = sum(unserved.values())
        if self._served or min(number, sum(stable_served.values())) < UNSERVED_MAX:
            return ""
        return f"none of its {number:,} requests was served"

    def _judge_anew(self) -> None:
        self._served = 0
        # Requests by group: what the stable one served, and what this one failed.
        self._stable_served: Counter[int] = Counter()
        self._unserved: Counter[int] = Counter()
        judge, judged = self.settings.judge, len(self.settings.steps) - 1
        part = 1.0
        if judged > 1:
            part = (1.0 - FIRST_PART) / (judged - 1) if self.step else FIRST_PART
        self.judge = Judge(
            metrics_of(judge),
            self._habits,
            CHANCE * part / 2**self._tries,
            requests_min=judge.min_requests,
            alone=judge.clients_min == 1,
        )

    def _event(self, now_s: float) -> Event:
        return Event(now_s, self.stage, self.percent, self.why)

    # Kept over a restart -----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What to keep, as JSON. The evidence of the step is not kept: it begins anew."""
        return {
            "version": STATE_VERSION,
            "pool": self.settings.pool,
            "model": self.settings.model,
            "stage": self.stage.value,
            "percent": self.percent,
            "why": self.why,
            "tries": self._tries,
            "fresh_keys": self._fresh.to_text(),
        }

    @classmethod
    def from_state(cls, settings: CanarySettings, state: object, now_s: float) -> "Canary":
        """Go on where it was. A canary of another version, or what cannot be read, begins anew.

        A step that begins again is one more test: each time with half of the chance.
        """
        canary = cls(settings, now_s)
        try:
            known = _read(settings, state)
        except (KeyError, TypeError, ValueError):
            return canary
        if known is None:
            return canary
        stage, step, tries, fresh, why = known
        canary.step, canary._tries, canary._fresh = step, tries, fresh
        canary.stage, canary.why = stage, why
        canary._judge_anew()
        return canary


def _read(settings: CanarySettings, state: Any) -> tuple[Stage, int, int, FreshKeys, str] | None:
    """The stage, step, tries, fresh keys and reason of a state. None if it is of another canary."""
    if state["version"] != STATE_VERSION:
        return None
    if (state["pool"], state["model"]) != (settings.pool, settings.model):
        return None
    stage, tries, why = Stage(state["stage"]), int(state["tries"]), str(state["why"])
    fresh = FreshKeys.from_text(state["fresh_keys"])
    # The steps may have changed: never more than it had.
    reached = [i for i, step in enumerate(settings.steps[:-1]) if step <= float(state["percent"])]
    step = reached[-1] if reached else 0
    if stage in MOVES:
        stage, tries = Stage.RUNNING, min(64, max(0, tries) + 1)
    return stage, step, tries, fresh, why
