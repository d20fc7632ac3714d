"""Fleets of known cause, written without sight of the rules: compute, memory, scheduler, uneven.

The arithmetic follows `Gpu.step_s`: 1.5 ms + max(weights, tokens) + attention + KV, all divided
by the speedup. Loads are of the capacity; "within" is how much the other resources are used at
the rate that is offered. K: KV tokens, of which admission leaves 10 % free.
"""

from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Scenario, Server, Traffic

_CALM: Final = Traffic(0.6)
_SPARSE: Final = Traffic(0.5, (30, 60), (5, 15))
# The engine's own queue is longer than a deep probe's 4 s.
_QUEUE_IN_ENGINE: Final = {"admission": {"enabled": False}, "health": {"deep": {"timeout_s": 9}}}

_COMPUTE: Final = (
    # 4,000 x 0.0216 + 10.5 (attention) = 97 ms, / 0.3 = 0.32 s: 9.2/s of three. 14.5/s: 160 %.
    # A bare step takes 25 ms, 8,192 tokens 0.7 s. KV: 390,000 hold 97 prompts, four steps 8.
    Scenario(
        "compute-three-throttled-read-mails",
        ("compute",),
        (Server(speedup=0.3), Server(speedup=0.3), Server(speedup=0.3)),
        (_CALM, Traffic(14.5, (3000, 5000), (10, 20), stream=False, from_s=ONSET_S)),
    ),
    # A contract: 12,000 x 0.0423 + 59 (attention) = 567 ms, and 5.3 + 4 chats x 15 ms a second:
    # 3.07 s of GPU time a second for two: 153 %. KV of 1,150,000: 95 contracts; 5 at a time do.
    Scenario(
        "compute-contracts-among-chats",
        ("compute",),
        (Server("70b-8xh100"), Server("70b-8xh100")),
        (
            Traffic(4.0, (200, 400), (20, 60), "chat"),
            Traffic(5.3, (11_000, 13_000), (20, 40), "legal", from_s=ONSET_S),
        ),
    ),
    # 2,000 of 6,000 are in the cache. The rest: 4,000 x 0.0668 + 26 + 2 = 295 ms: 3.4/s, 5.3/s
    # come: 156 %. Counted whole they would be 240 %. KV: 18 prompts are a quarter.
    Scenario(
        "compute-only-a-third-is-cached",
        ("compute",),
        (Server("70b-4xh100"),),
        (
            Traffic(0.3, (2100, 2200), (10, 20), prefix_tokens=2000),
            Traffic(5.3, (5500, 6500), (20, 40), prefix_tokens=2000, from_s=ONSET_S),
        ),
    ),
    # 4,000 tokens at 10,000/s: 0.4 s, so 5/s of two. The crawler alone sends 8.5/s: 170 %; the
    # app 1/s x 15 ms. KV: 400,000 hold 98 prompts. Both have 1,024 places.
    Scenario(
        "compute-crawler-floods",
        ("compute",),
        (Server("default"), Server("default")),
        (
            Traffic(1.0, (100, 200), (15, 25)),
            Traffic(8.5, (3000, 5000), (5, 10), "crawler", stream=False, from_s=ONSET_S),
        ),
        tenant="crawler",
    ),
    # Both alike: (1.5 + 14.3) / 0.12 = 132 ms a token for one stream or ten. 0.75/s x 65 x 0.132
    # = 6.5 streams each; a step's 21 tokens cost 2.4 of the weights' 14.3 ms: no prompt waits.
    Scenario(
        "compute-both-decode-at-a-crawl",
        ("compute",),
        (Server("70b-8xa100", speedup=0.12), Server("70b-8xa100", speedup=0.12)),
        (Traffic(0.3, (20, 40), (3, 6)), Traffic(1.5, (100, 200), (50, 80), from_s=ONSET_S)),
    ),
    # The book is in the cache, so prompts cost 8 ms, but each stream reads 7,100 tokens of KV a
    # step: 0.18 ms. 6.8/s x 80 tokens: 76 streams, a step (1.5 + 14.6 + 1 + 14) / 0.22 = 140 ms;
    # alone 72 ms. 124 ms after 10 s. KV: 76 x 150 + 7,008, and if nothing were shared 47 %.
    Scenario(
        "compute-many-readers-of-one-book",
        ("compute",),
        (Server("70b-8xa100", speedup=0.22),),
        (
            Traffic(0.4, (7040, 7096), (5, 10), prefix_tokens=7008),
            Traffic(6.8, (7040, 7096), (70, 90), prefix_tokens=7008, from_s=ONSET_S),
        ),
    ),
)
_MEMORY: Final = (
    # 400 + 800 tokens: 18 whole requests of 21,600. 800 x 12.5 ms = 10 s each: 1.8/s; counted by
    # what they hold on average (800) 2.8/s. 4/s: 142 to 222 %. Arithmetic within 54 %, 14 ms a
    # token; 46 of 256 places would do. The 18 are taken after 5 s.
    Scenario(
        "memory-essays-on-a-small-cache",
        ("memory",),
        (Server("8b-1xa100", kv_tokens=24_000),),
        (_CALM, Traffic(4.0, (300, 500), (700, 900), from_s=ONSET_S)),
    ),
    # 3,000 + 400: 5 or 6 of 20,000, 4.2 s + prefill 0.13 s (alone 29 % of the GPU): 1.25 to
    # 1.5/s, 2.2/s come: 147 to 175 %. Without this limit 9 streams, 10.5 ms a token, within 37 %.
    Scenario(
        "memory-papers-and-reviews",
        ("memory",),
        (Server("70b-8xh100", kv_tokens=20_000),),
        (_CALM, Traffic(2.2, (2500, 3500), (350, 450), from_s=ONSET_S)),
    ),
    # No admission: streams hold 550 on average: 29 in 16,000, then preemptions. 29 / (700 x 11.6
    # ms) = 3.6/s, less what starts over; 5.5/s: 155 % or more. Prefill 11 %, 1,024 places.
    Scenario(
        "memory-preempts-in-the-engine",
        ("memory",),
        (Server("default", kv_tokens=16_000),),
        (
            _CALM,
            Traffic(3.0, (150, 250), (600, 800), from_s=ONSET_S),
            Traffic(2.5, (150, 250), (600, 800), stream=False, from_s=ONSET_S),
        ),
        config=_QUEUE_IN_ENGINE,
    ),
    # 1,000 + 400 tokens: 15 to 18 of 24,000 on each, 6.7 s: 4.6 to 5.9/s of both. 9/s of one
    # tenant: 152 to 195 %; the other sends little. 4.5 prompts a second each: within 51 %.
    Scenario(
        "memory-reports-flood-two",
        ("memory",),
        (Server("70b-4xh100", kv_tokens=24_000), Server("70b-4xh100", kv_tokens=24_000)),
        (
            Traffic(0.8, (200, 400), (20, 60), "people"),
            Traffic(9.0, (800, 1200), (350, 450), "reports", from_s=ONSET_S),
        ),
        tenant="reports",
    ),
    # 600 + 120: 10 of 7,370 tokens, 120 x 26 ms + 0.3 s = 3.6 s: 5.4 to 6.1/s of both, 9/s come:
    # 147 to 166 %. Prefill at half speed: 0.12 s a prompt, 54 % of both; 128 places.
    Scenario(
        "memory-two-tiny-slow-ones",
        ("memory",),
        (Server("small-kv", speedup=0.5), Server("small-kv", speedup=0.5)),
        (_SPARSE, Traffic(9.0, (500, 700), (100, 140), from_s=ONSET_S)),
    ),
    # 10,000 + 400: 2 fit 27,000 (3 fit 30,000), 9 ms x 400 + 0.5 = 4.1 s: 1.5 to 2.2/s of three;
    # 3/s: 137 to 205 %. Prefill 0.28 s: 28 % of each, within 51 %; 5 streams of 256.
    Scenario(
        "memory-archives-come-into-a-chat",
        ("memory",),
        (Server(kv_tokens=30_000), Server(kv_tokens=30_000), Server(kv_tokens=30_000)),
        (
            Traffic(3.0, (200, 400), (20, 60), "chat"),
            Traffic(3.0, (8000, 12_000), (300, 500), "archive", stream=False, from_s=13.0),
        ),
    ),
)
_SIX: Final = Server("70b-8xh100", max_num_seqs=6)
_SLOW_DOOR: Final = Server("70b-8xh100", speedup=4.0, api_ms=1000.0)
_SCHEDULER: Final = (
    # 500 x 10.1 ms = 5.1 s: 6 places give 1.2/s, four servers 4.8/s. 7.5/s: 156 %. 10 streams on
    # each would do: 10 ms a token all the same, 8 % of arithmetic, KV below 1 %.
    Scenario(
        "scheduler-six-places-on-four-big-ones",
        ("scheduler",),
        (_SIX, _SIX, _SIX, _SIX),
        (_CALM, Traffic(7.5, (200, 400), (400, 600), stream=False, from_s=ONSET_S)),
    ),
    # 150 x 16 ms = 2.4 s: 10 places 4.15/s, both 8.3/s. One tenant sends 13/s: 156 %. 16 streams
    # would do; arithmetic 14 %, KV 4,700 of 400,000.
    Scenario(
        "scheduler-evals-flood-ten-places",
        ("scheduler",),
        (Server("70b-4xh100", max_num_seqs=10), Server("70b-4xh100", max_num_seqs=10)),
        (
            Traffic(0.8, (100, 200), (20, 40), "product"),
            Traffic(13.0, (100, 200), (130, 170), "evals", from_s=ONSET_S),
        ),
        tenant="evals",
    ),
    # Four choices of each: 4 requests fill 16 places for 100 x 11.7 ms: 3.3/s, 5.5/s: 165 %.
    # 28 sequences would do at 12.3 ms. Arithmetic 39 %, KV 13,700 of 390,000.
    Scenario(
        "scheduler-four-drafts-each",
        ("scheduler",),
        (Server("8b-1xa100", max_num_seqs=16),),
        (_CALM, Traffic(5.5, (300, 500), (80, 120), choices=4, from_s=ONSET_S)),
    ),
    # 128 tokens a step of 7.6 ms (2.8 ms of arithmetic behind 5.9 ms of weights): 16,840/s, or
    # 6.9 requests of 2,420. 11.2/s: 162 %. With 8,192 a step: 66 %. 4 of 64 places, KV 2 %.
    Scenario(
        "scheduler-budget-of-128",
        ("scheduler",),
        (Server(max_num_seqs=64, max_num_batched_tokens=128),),
        (_CALM, Traffic(11.2, (2000, 2800), (15, 25), from_s=ONSET_S)),
    ),
    # 48 tokens a step of 26.5 ms: 1,810/s, 2.87 requests of 630 each, 5.75/s. 9.2/s: 160 %. In
    # full steps 53 %. The queue is in the engines. 5 of 32 places, KV 1 %.
    Scenario(
        "scheduler-budget-of-48-without-admission",
        ("scheduler",),
        (
            Server("70b-4xa100", max_num_seqs=32, max_num_batched_tokens=48),
            Server("70b-4xa100", max_num_seqs=32, max_num_batched_tokens=48),
        ),
        (_SPARSE, Traffic(9.2, (500, 700), (20, 40), from_s=ONSET_S)),
        config=_QUEUE_IN_ENGINE,
    ),
    # The API server reads 6.7/s, 10.5/s come: 157 %. The engine does 20 tokens in 0.15 s: 1.6
    # streams, 5 %.
    Scenario(
        "scheduler-api-server-of-150-ms",
        ("scheduler",),
        (Server(api_ms=150.0),),
        (_SPARSE, Traffic(10.5, (80, 120), (15, 25), from_s=ONSET_S)),
    ),
    # 1,000 ms at speed 4: 4/s each, 8/s; 13/s in all: 162 %. Engines 5 %, less than a stream.
    Scenario(
        "scheduler-two-slow-doors-of-fast-engines",
        ("scheduler",),
        (_SLOW_DOOR, _SLOW_DOOR),
        (
            Traffic(0.5, tenant="a"),
            Traffic(6.5, (200, 400), (30, 50), "a", from_s=ONSET_S),
            Traffic(6.5, (200, 400), (30, 50), "b", stream=False, from_s=ONSET_S),
        ),
    ),
)
_UNEVEN: Final = (
    # (1.5 + 24.9) / 0.15 = 176 ms a token on one, 44 ms on its peers. Chosen at random, 0.8/s
    # each: 33 % of the slow one's arithmetic, 8 streams; 8 % of the others', 2 streams.
    Scenario(
        "uneven-one-of-three-at-a-quarter",
        ("uneven",),
        (
            Server("70b-4xa100", speedup=0.6),
            Server("70b-4xa100", speedup=0.15),
            Server("70b-4xa100", speedup=0.6),
        ),
        (_SPARSE, Traffic(2.4, (200, 400), (50, 70), from_s=ONSET_S)),
        pool={"policy": "random"},
    ),
    # 7.4 / 0.065 = 114 to 123 ms a token against 7.5. Turn by turn 2/s each: 52 % of the slow one
    # (15 streams), 3 % of the fast one (1).
    Scenario(
        "uneven-fifteen-times-slower-in-turn",
        ("uneven",),
        (Server(speedup=0.065), Server()),
        (
            Traffic(0.5, (30, 60), (5, 10)),
            Traffic(2.0, (500, 700), (50, 70), "x", from_s=ONSET_S),
            Traffic(2.0, (500, 700), (50, 70), "y", stream=False, from_s=ONSET_S),
        ),
        pool={"policy": "round_robin"},
    ),
    # One session: 1,200 at 10,000/s + 2 = 0.122 s: 8.2/s of its server, 11.5/s: 140 %; the other
    # two have 2/s of chat, 3 %. 3.3/s more than it can: 8 s of cost after 20 s, less than the 10
    # that strictness bears. KV: 80 prompts are a quarter.
    Scenario(
        "uneven-strict-agent",
        ("uneven",),
        (Server("default"), Server("default"), Server("default")),
        (
            Traffic(2.0, (200, 400), (20, 40), "chat"),
            Traffic(11.5, (1000, 1400), (20, 40), "agent", "run-1", from_s=ONSET_S),
        ),
        config={"affinity": {"strict": True}},
    ),
    # One session with 5,008 tokens in the cache and 2,000 of its own: 134 + 20 (attention) + 2 =
    # 156 ms: 6.4/s, 9.6/s: 150 %. Two others rest, with 1.5/s x 22 ms.
    Scenario(
        "uneven-hot-prefix-of-a-session",
        ("uneven",),
        (Server("70b-4xh100"), Server("70b-4xh100"), Server("70b-4xh100")),
        (
            Traffic(1.5, (200, 400), (20, 40)),
            Traffic(
                9.6, (6500, 7500), (20, 30), session="wiki", prefix_tokens=5008, from_s=ONSET_S
            ),
        ),
        pool={"policy": "session"},
    ),
    # In turn 4/s each. One API server reads 2/s: 200 %; its peers have answered after 0.35 s,
    # with 12 % of arithmetic.
    Scenario(
        "uneven-one-slow-door-of-three",
        ("uneven",),
        (Server("8b-1xa100"), Server("8b-1xa100"), Server("8b-1xa100", api_ms=500.0)),
        (_CALM, Traffic(12.0, (100, 300), (20, 40), from_s=ONSET_S)),
        pool={"policy": "round_robin"},
    ),
)

SCENARIOS: Final[tuple[Scenario, ...]] = (*_COMPUTE, *_MEMORY, *_SCHEDULER, *_UNEVEN)
