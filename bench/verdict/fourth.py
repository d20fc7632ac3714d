"""Fleets of known cause, by a fourth writer without sight of the rules: compute, memory, scheduler.

A step of an engine takes 1.5 ms + max(weights, tokens) + attention + KV, all over its speed; of
`default` and `small-kv` 10 ms + 0.1 ms a token. "Alone" is without a queue, "offered" what is used
if all that comes were served at once. K: KV tokens.
"""

from typing import Final

from penstock.bench.verdict.play import key_of
from penstock.bench.verdict.scenario import ONSET_S, Scenario, Server, Traffic

_SOME: Final = Traffic(0.5, (100, 200), (10, 20), "some")
# Requests wait in the engines for longer than a deep probe may usually take.
_ALL_IN_ENGINES: Final = {
    "admission": {"enabled": False},
    "health": {"deep": {"interval_s": 40, "timeout_s": 30}},
}
_HALF_A100: Final = Server("8b-1xa100", speedup=0.5)
_RAG: Final = Server("70b-8xh100", speedup=0.35)
_QUARTER_70B: Final = Server("70b-4xh100", speedup=0.25, max_num_batched_tokens=2048)

_COMPUTE: Final = (
    # 3,000 x 0.0666 + 13 (attention) + 3 = 216 ms, / 0.5: 2.3/s each, 11.6/s of five. 17/s: 147 %.
    # K: 390,000 hold 130 chapters; 4 steps of 2,048 are 3 of them.
    Scenario(
        "compute-five-translators",
        ("compute",),
        (_HALF_A100, _HALF_A100, _HALF_A100, _HALF_A100, _HALF_A100),
        (
            _SOME,
            Traffic(9.0, (2600, 3400), (12, 24), "english", from_s=ONSET_S),
            Traffic(8.0, (2600, 3400), (12, 24), "french", stream=False, from_s=ONSET_S),
        ),
    ),
    # 6,000 x 0.0423 + 15 + 2 = 271 ms, / 0.35 = 0.77 s: 2.6/s of two. 4.1/s: 158 %. The chat goes
    # first: 1.5/s x 43 ms, 3 % of two. Its class changes who waits, and not for what.
    # K: 1,150,000 hold 190 such prompts, of which some 6 are there.
    Scenario(
        "compute-passages-behind-an-urgent-chat",
        ("compute",),
        (_RAG, _RAG),
        (
            Traffic(1.5, (200, 400), (30, 60), "chat"),
            Traffic(4.1, (5000, 7000), (20, 40), "passages", from_s=ONSET_S),
        ),
        config={
            "tenants": [
                {"name": "chat", "class": "interactive", "keys": [{"key": key_of("chat")}]},
                {"name": "passages", "keys": [{"key": key_of("passages")}]},
            ]
        },
    ),
    # 26.4 / 0.18 = 147 ms a token, 15.8 / 0.11 = 144 ms: two makes, alike slow. 1.6/s x 60 tokens
    # x 0.145 = 14 streams in all; 7 + 0.8 x 60 / 7 = 14 tokens a step of 139 and 214 that the
    # weights' time has room for. No prompt waits for more than a step.
    Scenario(
        "compute-two-makes-decode-slowly",
        ("compute",),
        (Server("70b-4xa100", speedup=0.18), Server("70b-4xh100", speedup=0.11)),
        (
            Traffic(0.3, (20, 40), (3, 6), "some"),
            Traffic(1.6, (40, 80), (50, 70), "writers", from_s=ONSET_S),
        ),
        pool={"policy": "least_requests"},
    ),
    # 2,000 x 0.0668 + 3.3 + 2 = 139 ms, / 0.25 = 0.56 s: 3.6/s of two. 5.8/s: 161 %. The queue is
    # in the engines: 44 after 20 s. A step of 2,048 takes 0.56 s, an answer 4 s: 8 streams x 2,000
    # of 400,000 each.
    Scenario(
        "compute-summaries-queue-in-the-engines",
        ("compute",),
        (_QUARTER_70B, _QUARTER_70B),
        (
            Traffic(0.3, (50, 100), (3, 6), "some"),
            Traffic(5.8, (1700, 2300), (6, 10), "summaries", from_s=ONSET_S),
        ),
        config=_ALL_IN_ENGINES,
        pool={"policy": "least_requests"},
    ),
    # 800 x 0.1796 + 3 + 8 decodes x 0.19 = 148 ms: 6.7/s each, 13.5/s of two. One tenant sends
    # 20/s: 148 %; the other two 1.6/s x 54 ms, 4 %. K: some 20 x 800 of 400,000.
    Scenario(
        "compute-nightly-labels",
        ("compute",),
        (Server("70b-4xa100"), Server("70b-4xa100")),
        (
            Traffic(0.8, (200, 300), (20, 30), "sales"),
            Traffic(0.8, (200, 300), (20, 30), "care"),
            Traffic(20.0, (600, 1000), (6, 10), "labels", stream=False, from_s=ONSET_S),
        ),
        tenant="labels",
    ),
    # 2,000 x 0.0666 + 6 + 1 = 140 ms, 100 decodes x (0.0666 + 0.005 + 0.164) = 24: 6.1/s. 8.6/s:
    # 141 %. Answers take 100 steps of 0.15 s: 91 streams of 256. K: 91 x 2,100 = 64 % of 300,000
    # after 15 s, less before.
    Scenario(
        "compute-beside-a-cache-two-thirds-full",
        ("compute",),
        (Server("8b-1xa100", kv_tokens=300_000),),
        (_SOME, Traffic(8.6, (1800, 2200), (90, 110), "notes", from_s=ONSET_S)),
    ),
)
_SMALL_KV: Final = Server("small-kv")
_DESK: Final = Server("70b-8xh100", kv_tokens=50_000)
_LONG_WINDED: Final = Server("70b-4xa100", kv_tokens=10_000, max_num_seqs=64)

_MEMORY: Final = (
    # No admission: 400 are held on average, 22 streams in 9,000. 22 / (500 x 12.6 ms) = 3.5/s, less
    # what is begun again. 6/s: 171 %; full after 5 s. Offered 38 of 256 streams, arithmetic within
    # 20 %, a token each 13 ms.
    Scenario(
        "memory-dialogues-drive-each-other-out",
        ("memory",),
        (Server(speedup=0.6, kv_tokens=9000),),
        (_SOME, Traffic(6.0, (100, 200), (400, 600), "dialogues", from_s=ONSET_S)),
        config=_ALL_IN_ENGINES,
    ),
    # 1,000 + 200: 6 or 7 of 8,192. 200 x 10.4 ms, stretched by 0.1 s for each prompt: 2.2 to 2.6/s
    # each, 8.9 to 10.4/s of four. 14.5/s: 139 to 163 %. Offered: prefill 36 %, decodes 4 %, 13 of
    # 128 streams.
    Scenario(
        "memory-four-tiny-caches",
        ("memory",),
        (_SMALL_KV, _SMALL_KV, _SMALL_KV, _SMALL_KV),
        (
            Traffic(0.5, (100, 200), (10, 20), "north"),
            Traffic(7.3, (800, 1200), (160, 240), "north", from_s=ONSET_S),
            Traffic(7.2, (800, 1200), (160, 240), "south", stream=False, from_s=ONSET_S),
        ),
    ),
    # 7,000 + 300: 6 of 50,000, 300 x 10.6 ms = 3.2 s, stretched by 0.32 s for each prompt: 2.4/s of
    # two (2.5 by what is held on average). 3.8/s: 152 to 158 %. Prefill is near: offered 61 %, with
    # decodes 64 %. 10 of 256 streams.
    Scenario(
        "memory-contracts-though-prefill-is-busy",
        ("memory",),
        (_DESK, _DESK),
        (
            Traffic(1.5, (200, 400), (20, 40), "desk"),
            Traffic(3.8, (6000, 8000), (250, 350), "contracts", from_s=ONSET_S),
        ),
        tenant="contracts",
    ),
    # Three drafts: 300 + 1,200: 6 requests of 10,000 whole, 11 by what they hold on average. 400 x
    # 16 ms: 0.94 to 1.65/s. 3/s: 182 to 319 %. Offered: 60 of 256 streams, arithmetic 40 %.
    Scenario(
        "memory-three-drafts-each",
        ("memory",),
        (Server(speedup=0.5, kv_tokens=10_000),),
        (_SOME, Traffic(3.0, (200, 400), (350, 450), "drafts", choices=3, from_s=ONSET_S)),
    ),
    # 400 + 500: 11 of 10,000 whole, 15 on average. 500 x 27 ms = 13.5 s: 1.6 to 2.3/s of two. 6/s:
    # 263 to 370 %. Room for whole answers ends after 4 s, all room after 6.5 s. Offered: 41 of 64
    # places, arithmetic 22 + 32 %.
    Scenario(
        "memory-though-places-are-two-thirds-taken",
        ("memory",),
        (_LONG_WINDED, _LONG_WINDED),
        (
            _SOME,
            Traffic(3.0, (350, 450), (450, 550), "plots", from_s=ONSET_S),
            Traffic(3.0, (350, 450), (450, 550), "scenes", stream=False, from_s=ONSET_S),
        ),
        pool={"policy": "least_tokens"},
    ),
)
_BUDGET_40: Final = Server("default", max_num_seqs=32, max_num_batched_tokens=40)
_NINE: Final = Server("70b-4xa100", max_num_seqs=9)
_DOOR_220: Final = Server(api_ms=220.0)
_DOOR_400: Final = Server("8b-1xa100", speedup=0.5, api_ms=200.0)

_SCHEDULER: Final = (
    # 200 x 23 ms = 4.6 s in 24 places: 5.2/s. 8/s: 154 %; 37 streams would do. The cache is near:
    # they would be 37 x 300 of 18,000, 62 % whole and 41 % on average; the 24 are 40 %.
    # Arithmetic 13 % + 27 %.
    Scenario(
        "scheduler-24-places-and-a-small-cache",
        ("scheduler",),
        (Server("70b-8xa100", speedup=0.7, max_num_seqs=24, kv_tokens=18_000),),
        (_SOME, Traffic(8.0, (80, 120), (180, 220), "tutor", from_s=ONSET_S)),
    ),
    # 120 x 26.6 ms = 3.2 s in 9 places: 2.8/s each, 8.5/s of three. One tenant sends 13.5/s: 159 %.
    # 14 streams each would do. Arithmetic offered: 4.5 x (27 + 22) = 22 %. K: 1 %.
    Scenario(
        "scheduler-nine-places-for-a-scraper",
        ("scheduler",),
        (_NINE, _NINE, _NINE),
        (
            Traffic(0.8, (50, 100), (10, 20), "shop"),
            Traffic(13.5, (100, 200), (110, 130), "scraper", stream=False, from_s=ONSET_S),
        ),
        tenant="scraper",
    ),
    # 40 tokens a step of 14 ms: 2,860/s, or 3.5 requests of 815: 7/s of two. 11/s: 157 %. In
    # full steps 5.5/s x 83 ms: 46 %. K: 3 x 800 of 400,000; 3 of 32 places.
    Scenario(
        "scheduler-budget-of-40-for-two",
        ("scheduler",),
        (_BUDGET_40, _BUDGET_40),
        (
            _SOME,
            Traffic(6.0, (700, 900), (10, 20), "mail", from_s=ONSET_S),
            Traffic(5.0, (700, 900), (10, 20), "wiki", stream=False, from_s=ONSET_S),
        ),
    ),
    # 40 tokens a step of 15.8 ms: 2,530/s, or 4.1 requests of 620. 7.2/s: 176 %; 60 wait in the
    # engine after 20 s. In full steps 70 ms each: 50 %. K: 3 x 600 of 1,150,000; 4 of 24 places.
    Scenario(
        "scheduler-budget-of-40-queues-in-the-engine",
        ("scheduler",),
        (Server("70b-8xa100", max_num_seqs=24, max_num_batched_tokens=40),),
        (
            Traffic(0.4, (30, 60), (3, 6), "some"),
            Traffic(7.2, (500, 700), (15, 25), "forum", from_s=ONSET_S),
        ),
        config=_ALL_IN_ENGINES,
    ),
    # 220 ms each: 4.5/s, 13.6/s of three. 20/s: 147 %. The engines: 20/s x 400 tokens of 138,000/s,
    # one stream each.
    Scenario(
        "scheduler-three-doors-of-220-ms",
        ("scheduler",),
        (_DOOR_220, _DOOR_220, _DOOR_220),
        (_SOME, Traffic(20.0, (300, 500), (10, 20), "forms", from_s=ONSET_S)),
    ),
    # 200 ms at half the speed: 2.5/s each, 10/s of four. 15/s: 150 %. Engines: 3.8 x (53 + 3) ms,
    # 21 %, and a stream or two, 22 ms a token.
    Scenario(
        "scheduler-four-doors-in-turn",
        ("scheduler",),
        (_DOOR_400, _DOOR_400, _DOOR_400, _DOOR_400),
        (
            Traffic(0.5, (100, 200), (10, 20), "web"),
            Traffic(9.0, (300, 500), (10, 20), "web", from_s=ONSET_S),
            Traffic(6.0, (300, 500), (10, 20), "batch", stream=False, from_s=ONSET_S),
        ),
        pool={"policy": "round_robin"},
    ),
)

SCENARIOS: Final[tuple[Scenario, ...]] = (*_COMPUTE, *_MEMORY, *_SCHEDULER)
