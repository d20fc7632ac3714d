"""How fast a backend prefills and decodes, learnt from its answers.

Each has two costs that are fitted to the last two hundred or so samples of each client
(`FairFit`), and the pace of the last few answers (`RecentPace`), which tells at once when the
speed changes. Answers far slower than usual teach nothing.
"""

from math import exp
from typing import Final

from penstock.balancing.speed.least_squares import FairFit, LeastSquares, Pair

# For a backend that gets one request in four, about as many as come until it is seen to be slow.
KEPT: Final = 8
# Fewer may all come from one bad moment: the connects of a start, a burst.
ENOUGH: Final = 4
# Before anything is known of it. The slowest known engines are three times as slow as the prior.
SLOW: Final = 4.0
# What is kept after a long time: two more answers then tell whether it is still true.
PACE_LONG_AGO: Final = 2
# No engine is faster than this share of the prior; the fastest of bench/sim/profiles.py has 0.35.
# So an incredibly fast answer makes no other backend look slower than this allows.
QUICKEST: Final = 0.2
# An answer counts at most as this slow: its client may have caused it.
SLOWEST: Final = 20.0
# An answer this many times slower than usual says something about its request or its client, not
# about the backend.
ODD: Final = 4.0
# Below ODD times this, nothing is odd: a lower median may come from prompts that engines skip.
ODD_MIN: Final = 0.5
# A client's answers displace others' up to this many: fewer than the faster quarter leaves out.
OWN_MAX: Final = 4


class RecentPace:
    """The last few answers: seconds, divided by those of an engine as fast as the prior.

    The fitted speeds need dozens of samples, and meanwhile a backend that restarted slow makes its
    clients wait. The faster ones of the last few answers tell enough. A request may be slow for
    reasons of its own (a grammar to compile, an image to fetch). But if even the fast ones take
    several times what they take elsewhere, the backend is slow.

    No client decides alone. Its answers displace those of other clients only up to a limit, and it
    has no more answers in a median than all others together.
    """

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._clients: list[str] = []  # the clients, in the same order

    def observe(self, ratio: float, client: str = "") -> None:
        """An answer for `client` took `ratio` times as long as the prior."""
        ratios, clients = self._ratios, self._clients
        if len(ratios) >= KEPT:
            oldest = clients.index(client) if clients.count(client) >= OWN_MAX else 0
            del ratios[oldest]
            del clients[oldest]
        ratios.append(min(SLOWEST, max(QUICKEST, ratio)))
        clients.append(client)

    def is_news(self, ratio: float) -> bool:
        """Whether it is news that an answer took at least this long."""
        return min(SLOWEST, ratio) >= (self.usual if self._ratios else SLOW)

    def is_odd(self, ratio: float) -> bool:
        """Whether an answer took longer than a backend of the usual speed explains."""
        if ratio <= ODD * ODD_MIN or len(self._ratios) < ENOUGH:
            return False  # as nearly always
        return ratio > ODD * self.usual

    def is_odd_to_all(self, ratio: float) -> bool:
        """Whether it is odd also beside the slower half of the answers: one client may have the
        quicker half."""
        if ratio <= ODD * ODD_MIN or len(self._ratios) < ENOUGH:
            return False
        ratios = sorted(self._fair())
        return ratio > ODD * ratios[len(ratios) // 2]

    @property
    def only_client(self) -> str | None:
        """The client of all these answers. None: there are several, or none."""
        return self._clients[0] if len(set(self._clients)) == 1 else None

    @property
    def usual_by_client(self) -> dict[str, float]:
        """The lower median of each client's answers."""
        found: dict[str, list[float]] = {}
        for client, ratio in zip(self._clients, self._ratios, strict=True):
            found.setdefault(client, []).append(ratio)
        return {each: sorted(ratios)[(len(ratios) - 1) // 2] for each, ratios in found.items()}

    @property
    def count(self) -> int:
        """How many answers there are."""
        return len(self._ratios)

    @property
    def enough(self) -> bool:
        """Whether there are enough answers for a guess."""
        return len(self._ratios) >= ENOUGH

    @property
    def usual(self) -> float:
        """The median, the lower one of two."""
        ratios = sorted(self._fair())
        return ratios[(len(ratios) - 1) // 2]

    @property
    def quick(self) -> float:
        """The ratio below which a quarter of them are."""
        ratios = sorted(self._fair())
        return ratios[len(ratios) // 4]

    def forget(self) -> None:
        """The answers are old: keep only a few."""
        del self._ratios[:-PACE_LONG_AGO]
        del self._clients[:-PACE_LONG_AGO]

    def _fair(self) -> list[float]:
        """The ratios, with no more of any client than of all others, if there are others."""
        ratios, clients = self._ratios, self._clients
        if not clients:
            return ratios
        most = sorted(clients)[len(clients) // 2]  # the client with more than half, if any
        size, own = len(clients), clients.count(most)
        over = 2 * own - size
        if over <= 0 or own == size:
            return ratios
        fair = []
        for place in range(size):  # drop the oldest of that client
            if over > 0 and clients[place] == most:
                over -= 1
            else:
                fair.append(ratios[place])
        return fair


# Attention to this many tokens costs as much as all other work for a token: 40,700 for a 70B model
# on four H100, 16,500 for an 8B on one, 22,900 and 43,000 on A100 (bench/sim/profiles.py).
ATTENDED_TOKENS: Final = 32_000.0
# Before anything is known: 15,000 tokens/s and a step of 20 ms, worth a third of a sample. (A 70B
# on four H100 has 15,000 tokens/s, an 8B on one 46,000, a 70B on four A100 5,600.) A held token
# adds 0.036 us to a step, the geometric mean of the profiles' 0.015 to 0.080.
PRIOR_WORK_PER_S: Final = 15_000.0
PRIOR_STEP_S: Final = 0.020
PRIOR_HELD_TOKEN_S: Final = 0.036e-6
TRUST: Final = 0.3
# Each sample fades the earlier ones: about the last two hundred count.
FADE: Final = 0.995
# The share to forget: of two hundred samples ten are left.
LONG_AGO: Final = 0.95
PREFILL_SURPRISE_MAX: Final = 3.0
DECODE_SURPRISE_MAX: Final = 2.0
# No engine is faster than a hundred times the prior.
WORK_PER_S_MAX: Final = 100 * PRIOR_WORK_PER_S
# The slope is the weaker signal: it stays within twice the spread of the profiles.
HELD_TOKEN_S_MAX: Final = 4 * PRIOR_HELD_TOKEN_S
# If more than this share of the time was other prompts' prefill, the rest is too uncertain.
OTHERS_MAX: Final = 0.5
# Estimated prefill may exceed the real one: a step keeps at least a tenth of the time.
PREFILL_MAX: Final = 0.9
# In shorter streams the uncertain ends of the steps are too large a share.
STEPS_MIN: Final = 16
# Finagle's Peak EWMA decays over 10 s: about the time a burst takes to pass.
LATENCY_TAU_S: Final = 10.0


def work_of(tokens: float, context: float, prompts: int = 1) -> float:
    """The prefill work of the last `tokens` tokens of `prompts` prompts of `context` tokens each.

    Work is tokens weighed by what they attend to: a token after n others costs 1 + n /
    ATTENDED_TOKENS.
    """
    return tokens * (1.0 + (context - tokens / (2 * prompts)) / ATTENDED_TOKENS)


def prior_prefill_s(work: float) -> float:
    """The time for this work before anything is known."""
    return work / PRIOR_WORK_PER_S + PRIOR_STEP_S


def prior_decode_s(held_tokens: float) -> float:
    """The time of a decode step before anything is known."""
    return PRIOR_STEP_S + PRIOR_HELD_TOKEN_S * held_tokens


class _Speed:
    """The fit of two costs, and the pace of the last few answers."""

    def __init__(self, prior: Pair, surprise_max: float) -> None:
        self.recent = RecentPace()
        trust = TRUST / (prior[0] * prior[0]), TRUST / (prior[1] * prior[1])
        self._fit = FairFit(
            prior,
            FADE,
            lambda: LeastSquares(
                prior, trust, fade=FADE, surprise_max=surprise_max, least=1e-6, keep=FADE
            ),
        )

    @property
    def samples(self) -> int:
        """How many requests taught it."""
        return self._fit.samples

    @property
    def weight(self) -> float:
        """The total weight of the samples. Old ones weigh less."""
        return self._fit.weight

    def forget(self) -> None:
        """The measurement is old: let the next few samples outweigh it."""
        self._fit.forget(LONG_AGO)
        self.recent.forget()


class PrefillSpeed(_Speed):
    """Seconds for a unit of prefill work (`work_s`), and for the step that every prompt pays.

    A sample is the work in the queue before a request, with its own prompt, and the time to the
    first token. With one number only, prompts that are nearly all in the cache would make a fast
    engine look slow.
    """

    def __init__(self) -> None:
        self.work_s = 1.0 / PRIOR_WORK_PER_S
        super().__init__((self.work_s, PRIOR_STEP_S), PREFILL_SURPRISE_MAX)

    @property
    def work_per_s(self) -> float:
        """Work in a second. For short prompts these are tokens in a second."""
        return 1.0 / self.work_s

    @property
    def step_s(self) -> float:
        """Seconds that every first token takes, however short its prompt."""
        return self._fit.b

    def expect_s(self, work: float) -> float:
        """The expected time for this work."""
        return self.work_s * work + self._fit.b

    def is_odd(self, ordinary_s: float) -> bool:
        """Whether the last answers show that it is much faster than was fitted."""
        work = ordinary_s * PRIOR_WORK_PER_S
        return self.recent.is_odd(self.expect_s(work) / prior_prefill_s(work))

    def observe(self, work: float, seconds: float, client: str = "", now_s: float = 0.0) -> None:
        """A client's `work` was done `seconds` after it was sent. `recent` knows this already."""
        if not self.recent.is_odd_to_all(seconds / prior_prefill_s(work)):
            self.observe_whole(work, seconds, 0.0, client, now_s)

    def observe_whole(
        self, work: float, seconds: float, rest_s: float, client: str = "", now_s: float = 0.0
    ) -> None:
        """Learn from a client's answer of which `rest_s` should have been other than prefill."""
        self._fit.observe((work, 1.0), seconds, rest_s, client, now_s)
        self.work_s = max(1.0 / WORK_PER_S_MAX, self._fit.a)


class DecodeSpeed(_Speed):
    """Seconds between two tokens, as a function of the tokens held.

    Every decode step reads the weights and the KV cache of all its streams. So it takes t0 + k K
    for K held tokens, and longer when it also prefills prompts. A finished stream shows the sum: it
    took n steps and the prefill that was done meanwhile. The measured prefill speed tells the time
    for prefill. The rest, divided by n, is fitted to (1, K).
    """

    def __init__(self) -> None:
        super().__init__((PRIOR_STEP_S, PRIOR_HELD_TOKEN_S), DECODE_SURPRISE_MAX)

    @property
    def step_s(self) -> float:
        """The time of a step without held tokens."""
        return self._fit.a

    @property
    def held_token_s(self) -> float:
        """The time that each held token adds to a step."""
        return min(self._fit.b, HELD_TOKEN_S_MAX)

    def itl_s(self, held_tokens: float) -> float:
        """The time from one token to the next with this many held tokens."""
        return self.step_s + self.held_token_s * held_tokens

    @property
    def pace(self) -> float:
        """How many times as long as the prior a step takes."""
        held_tokens = self.usual_held_tokens
        return self.itl_s(held_tokens) / prior_decode_s(held_tokens)

    @property
    def usual_held_tokens(self) -> float:
        """The mean of held tokens while it was measured."""
        return self._fit.mean_b

    def observe(
        self,
        steps: int,
        seconds: float,
        prefill_s: float,
        held_tokens: float,
        client: str = "",
        now_s: float = 0.0,
    ) -> None:
        """Learn from a client's stream. `prefill_s` of its time was other prompts' prefill."""
        if steps < STEPS_MIN:
            return
        prefill_s = min(prefill_s, PREFILL_MAX * seconds)
        slower = self.slower(steps, seconds, prefill_s, held_tokens)
        if prefill_s <= OTHERS_MAX * seconds:
            self.recent.observe(slower, client)
        if not self.recent.is_odd(slower):
            self.observe_whole(steps, seconds, prefill_s, held_tokens, client, now_s)

    @staticmethod
    def slower(steps: int, seconds: float, prefill_s: float, held_tokens: float) -> float:
        """How many times as long as the prior each step of a stream took."""
        prefill_s = min(prefill_s, PREFILL_MAX * seconds)
        return (seconds - prefill_s) / steps / prior_decode_s(held_tokens)

    def observe_whole(
        self,
        steps: int,
        seconds: float,
        rest_s: float,
        held_tokens: float,
        client: str = "",
        now_s: float = 0.0,
    ) -> None:
        """Learn from a client's answer of which `rest_s` was not decoding."""
        if steps >= STEPS_MIN:
            step_s, rest_s = seconds / steps, rest_s / steps
            self._fit.observe((1.0, held_tokens), step_s, rest_s, client, now_s)


class PeakEwma:
    """Time to first token that rises at once and decays: Finagle's Peak EWMA."""

    def __init__(self) -> None:
        self.value_s = 0.0
        self.at_s = 0.0

    def observe(self, sample_s: float, now_s: float) -> None:
        decayed = exp(-max(0.0, now_s - self.at_s) / LATENCY_TAU_S)
        average = self.value_s * decayed + sample_s * (1.0 - decayed)
        self.value_s = max(sample_s, average)
        self.at_s = now_s

    def read(self, now_s: float) -> float:
        return self.value_s * exp(-max(0.0, now_s - self.at_s) / LATENCY_TAU_S)
