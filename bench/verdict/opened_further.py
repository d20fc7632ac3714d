"""The same of a second writer: the kinds that `opened_engines` lacks.

The arithmetic uses the law of `Gpu.step_s`: 1.5 ms + max(weights, tokens) + attention + KV.
"""

from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Fault, Scenario, Server, Traffic

# Some light requests from the beginning on.
_CALM: Final = Traffic(0.7)
_STRICT: Final = {"affinity": {"strict": True}}
# Later than every scenario ends.
_LATER_S: Final = 90.0

_UNEVEN: Final = (
    # One of four has an eighth of the speed: 59 ms a token instead of 7.4 (70 beside prefill),
    # 100 tokens 7 s instead of 0.75. 12/s, 3/s each: prefill 3 x 52 ms: 16 % there, 2 % elsewhere.
    # KV: 3/s x 7 s x 350 = 7,400 of 390,000. Three servers alone could do it with 3 %.
    Scenario(
        "uneven-slow-gpu",
        ("uneven",),
        (Server(), Server(), Server(speedup=0.125), Server()),
        (_CALM, Traffic(12.0, (200, 400), (80, 120), from_s=ONSET_S)),
    ),
    # One strict session: 1,000 tokens x 0.0666 + 1.5 = 68 ms: its backend does 14.7/s. 22/s: 150 %.
    # The fleet: (22 x 68 + 6 x 20 ms) / 3: 54 %; the other two have 6 %. KV below 30 %.
    Scenario(
        "uneven-hot-session",
        ("uneven",),
        (Server("8b-1xa100"), Server("8b-1xa100"), Server("8b-1xa100")),
        (
            Traffic(6.0),
            Traffic(22.0, (800, 1200), (10, 20), session="hot", from_s=ONSET_S),
        ),
        config=_STRICT,
    ),
    # One strict session of long answers: 16,000 / 600 = 26 streams of 4.9 s: 5.3/s. 9/s: 170 %.
    # The other backend has some of 2/s x 0.35 s x 320 tokens: 1 % of its cache, and would do
    # the half. Prefill 9 x 6.5 ms: 6 %.
    Scenario(
        "uneven-hot-session-fills-its-cache",
        ("uneven",),
        (Server(kv_tokens=16_000), Server(kv_tokens=16_000)),
        (
            Traffic(2.0),
            Traffic(9.0, (200, 400), (500, 700), session="agent", from_s=ONSET_S),
        ),
        config=_STRICT,
    ),
    # The API server of one takes 600 ms a request: 0.76 s each without any queue, 0.16 s elsewhere
    # (150 x 0.0216 + 20 x 7.4 ms). 3/s, a third of all, would be 180 % of it; the other two do all
    # with 4.5 x 3.2 ms: 2 %.
    Scenario(
        "uneven-one-api-server",
        ("uneven",),
        (Server(), Server(api_ms=600.0), Server()),
        (_CALM, Traffic(9.0, (100, 200), (10, 30), from_s=ONSET_S)),
    ),
)

_CLIENT: Final = (
    # 2/s get 1,200 tokens of some 200 bytes at 125/s: 25 KB/s, and read 0.5 KB/s. 16 of them at
    # +8 s beside 3/s x 0.35 s = 1 other. Engine: 19 streams, 8 ms a token, prefill 3 %, KV 5 %.
    Scenario(
        "client-slow-readers",
        ("client",),
        (Server(),),
        (
            Traffic(3.0),
            Traffic(2.0, (100, 200), (1000, 1400), read_bytes_per_s=500.0, from_s=ONSET_S),
        ),
    ),
    # 1.5/s of "mobile" get 1,750 tokens at 130/s: 26 KB/s, and read 1 KB/s. 12 of them at +8 s
    # beside 4/s x 0.76 s = 3 of "app". Engines: 10 streams each, prefill 2 %, KV 3 %.
    Scenario(
        "client-mobile-tenant",
        ("client",),
        (Server(), Server()),
        (
            Traffic(4.0, answer_tokens=(80, 120)),
            Traffic(
                1.5, (100, 200), (1500, 2000), "mobile", read_bytes_per_s=1000.0, from_s=ONSET_S
            ),
        ),
    ),
)

_STARTING: Final = (
    # The only server loads its model until after the end: nobody can be served.
    Scenario(
        "starting-the-only-one",
        ("starting",),
        (Server(starts_s=_LATER_S),),
        (Traffic(5.0, from_s=ONSET_S),),
    ),
    # The same of three, with three tenants.
    Scenario(
        "starting-none-of-three",
        ("starting",),
        tuple(Server("70b-4xh100", starts_s=_LATER_S + 10 * i) for i in range(3)),
        tuple(
            Traffic(2.0, tenant=tenant, stream=False, from_s=ONSET_S)
            for tenant in ("mail", "search", "labels")
        ),
    ),
    # 366 ms a prompt (2,000 x 0.1796 + 7): 2.73/s a server. 12/s come, enough for four (110 %).
    # None is up until +4 s, then one (440 %), from +10 s two (220 %), from +16 s three (146 %):
    # there is always one that began within 7 s. What is up lacks compute: as right.
    # KV: 30 streams x 2,000 of 400,000: 15 %. Bodies 96 KB/s.
    Scenario(
        "starting-one-by-one",
        ("starting", "compute"),
        tuple(
            Server("70b-4xa100", starts_s=starts_s)
            for starts_s in (ONSET_S + 4, ONSET_S + 10, ONSET_S + 16, _LATER_S)
        ),
        (Traffic(12.0, (1800, 2200), (20, 40), from_s=ONSET_S),),
    ),
)

_FAILING: Final = (
    # Two of three die. 113 ms a prompt: 8.85/s each; 14/s are 53 % of three and 158 % of one.
    # What is left lacks compute: as right. KV 5 %.
    Scenario(
        "failing-two-of-three-die",
        ("failing", "compute"),
        (
            Server("70b-8xa100"),
            Server("70b-8xa100", stops_s=ONSET_S),
            Server("70b-8xa100", stops_s=ONSET_S),
        ),
        (Traffic(14.0, (800, 1200), (10, 30)),),
    ),
    # All die that served: nobody is served. 5/s were 2 % of what they could do.
    Scenario(
        "failing-all-die",
        ("failing",),
        (Server(stops_s=ONSET_S), Server(stops_s=ONSET_S)),
        (Traffic(5.0),),
    ),
    # Every attempt gets a 500, as of a broken CUDA context. 6/s x 6.5 ms: 2 % each.
    Scenario(
        "failing-all-answer-500",
        ("failing",),
        (Server(), Server()),
        (Traffic(6.0, stream=False),),
        faults=(
            Fault(ONSET_S, 0, {"kind": "internal_error"}),
            Fault(ONSET_S, 1, {"kind": "internal_error"}),
        ),
    ),
    # The streams of one of three break after 5 of 60 tokens. 9/s x 6.5 ms: 2 % each.
    Scenario(
        "failing-cut-streams",
        ("failing",),
        (Server(), Server(), Server()),
        (Traffic(9.0, answer_tokens=(40, 80)),),
        faults=(Fault(ONSET_S, 1, {"kind": "cut_mid_stream", "tokens": 5}),),
    ),
    # One of two hangs: it takes requests and never answers. What waits, waits for it alone:
    # "uneven" is as right until attempts are given up. The other could do all with 4 %.
    Scenario(
        "failing-one-hangs",
        ("failing", "uneven"),
        (Server(), Server()),
        (Traffic(6.0),),
        faults=(Fault(ONSET_S, 0, {"kind": "hang_before_headers"}),),
    ),
)

_FINE: Final = (
    # 450 x 0.0666 + 0.3 = 30 ms: 10/s are 30 %, their tokens 3 %. KV: 10 x 0.7 s x 490 of 390,000.
    Scenario(
        "fine-a-third",
        ("fine",),
        (Server("8b-1xa100"),),
        (_CALM, Traffic(10.0, (300, 600), (20, 60), from_s=ONSET_S)),
    ),
    # Long answers: a step takes 22 ms; 7/s x 400 x 22 ms = 62 streams. With their whole length of
    # 700 they are 43,000 of 62,000: 70 %; in truth 500 on average. 88 fit: 3.3 sigma of 62.
    # Tokens 7 x 700 x 0.085 ms: 42 %. 62 of 256 sequences.
    Scenario(
        "fine-long-answers",
        ("fine",),
        (Server("70b-8xh100", speedup=0.5, kv_tokens=62_000),),
        (_CALM, Traffic(7.0, (200, 400), (300, 500), from_s=ONSET_S)),
    ),
    # 300 x 0.112 = 33.7 ms: 40/s on two servers: 67 %, their tokens 3 %. A mean wait (M/D/1) of
    # 34 ms x 0.7 / 0.6 = 40 ms. KV: 20 x 0.6 s x 310 of 1,150,000. A step: 16 to 70 ms.
    Scenario(
        "fine-two-thirds-unstreamed",
        ("fine",),
        (Server("70b-8xa100"), Server("70b-8xa100")),
        (
            _CALM,
            Traffic(20.0, (200, 400), (10, 20), "mail", stream=False, from_s=ONSET_S),
            Traffic(20.0, (200, 400), (10, 20), "search", from_s=ONSET_S),
        ),
    ),
    # 800 x 0.0216 + 0.4 = 17.7 ms: 47/s are 83 %; tokens 1 %, the steps' overhead 5 %: 90 %.
    # M/D/1 at 0.9: a mean wait of 80 ms; longer than a second: e^-12. Bodies 150 KB/s.
    Scenario(
        "fine-nine-tenths",
        ("fine",),
        (Server(),),
        (Traffic(47.0, (700, 900), (8, 12), from_s=ONSET_S),),
    ),
    # Bursts of 30 within 0.3 s, every 3 s: 500 x 0.0216 + 0.2 = 11 ms, so 0.33 s of work for two
    # servers, less than the burst's time and nearly none left after it. 10/s in all: 6 % each.
    Scenario(
        "fine-bursts",
        ("fine",),
        (Server(), Server()),
        (
            Traffic(2.0),
            *(
                Traffic(100.0, (400, 600), (20, 40), from_s=at_s, until_s=at_s + 0.3)
                for at_s in (ONSET_S + 3.0 * i for i in range(8))
            ),
        ),
    ),
    # A cache full of what was: prompts of 800 at 6/s fill 20,000 tokens within 4 s, but only
    # 6 x 0.33 s = 2 streams x 840 are in use: 8 %. Prefill 6 x 17.7 ms: 11 %.
    Scenario(
        "fine-cache-of-old-prompts",
        ("fine",),
        (Server(kv_tokens=20_000),),
        (_CALM, Traffic(6.0, (600, 1000), (30, 50), from_s=ONSET_S)),
    ),
)

SCENARIOS: Final = _UNEVEN + _CLIENT + _STARTING + _FAILING + _FINE
