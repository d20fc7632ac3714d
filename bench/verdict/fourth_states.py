"""Fleets of known cause, by the fourth writer: starting, failing, fine.

The arithmetic is that of `fourth`.
"""

from dataclasses import replace
from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Fault, Scenario, Server, Traffic

_SOME: Final = Traffic(0.5, (100, 200), (10, 20), "some")
_F: Final = "70b-8xa100"
# Servers that come after every scenario's end, or never.
_LATE: Final = 70.0
_ONE_OF_FIVE: Final = Server("8b-1xa100", speedup=0.4)

_STARTING: Final = (
    # Nobody is there, and requests wait for the first to come.
    Scenario(
        "starting-held-until-the-first-of-three",
        ("starting",),
        (Server(_F, starts_s=_LATE), Server(_F, starts_s=_LATE), Server(_F, starts_s=None)),
        (
            Traffic(1.5, (200, 400), (40, 80), "early", from_s=4.0),
            Traffic(1.0, (200, 400), (40, 80), "birds", stream=False, from_s=4.0),
        ),
        config={"admission": {"hold_for_backend_s": 45}},
        pool={"models": ["sim-model"]},
    ),
    # 1,000 x 0.0666 + 1.5 + 3 = 71 ms, / 0.4: 5.6/s each. 16/s: 143 % of the two that are there,
    # 57 % of five. K: 8 %.
    Scenario(
        "starting-three-of-five-are-late",
        ("starting",),
        (
            _ONE_OF_FIVE,
            *(replace(_ONE_OF_FIVE, starts_s=None) for _ in range(3)),
            _ONE_OF_FIVE,
        ),
        (
            _SOME,
            Traffic(8.0, (900, 1100), (10, 20), "mail", from_s=ONSET_S),
            Traffic(8.0, (900, 1100), (10, 20), "tags", stream=False, from_s=ONSET_S),
        ),
    ),
    # 150 x 16 ms + 0.1 = 2.5 s in 10 places: 4/s each, one from 5 s on. 12.5/s: 156 % of two, 78 %
    # of four. Prefill of the two 13 %, of four 7 %.
    Scenario(
        "starting-places-of-two-of-four",
        ("starting",),
        (
            Server("70b-4xh100", max_num_seqs=10),
            Server("70b-4xh100", max_num_seqs=10, starts_s=5.0),
            Server("70b-4xh100", max_num_seqs=10, starts_s=None),
            Server("70b-4xh100", max_num_seqs=10, starts_s=_LATE),
        ),
        (_SOME, Traffic(12.5, (200, 400), (130, 170), "app", stream=False, from_s=ONSET_S)),
    ),
    # 900 + 300: 12 of 15,000 whole, 14 on average; 300 x 10.2 ms, stretched by 13 %: 3.4 to 3.8/s.
    # 5.8/s: 153 to 171 % of one, 76 to 85 % of two. Prefill 23 % of one.
    Scenario(
        "starting-half-of-the-cache-is-late",
        ("starting",),
        (
            Server("70b-8xh100", kv_tokens=15_000, starts_s=None),
            Server("70b-8xh100", kv_tokens=15_000),
        ),
        (
            _SOME,
            Traffic(2.9, (800, 1000), (250, 350), "red", from_s=ONSET_S),
            Traffic(2.9, (800, 1000), (250, 350), "blue", from_s=ONSET_S),
        ),
    ),
    # 2,400 x 0.1796 + 10 + 3 = 445 ms: 2.25/s each. 10/s: 148 % of the three that are there, 74 %
    # of six. K: 400,000 hold 160.
    Scenario(
        "starting-three-of-six-old-ones",
        ("starting",),
        tuple(Server("70b-4xa100", starts_s=None if number % 2 else 0.0) for number in range(6)),
        (_SOME, Traffic(10.0, (2000, 2800), (10, 20), "pages", from_s=ONSET_S)),
    ),
)
_THROTTLED: Final = Server("70b-4xh100", speedup=0.3, max_num_batched_tokens=2048)
_KILLED: Final = replace(_THROTTLED, stops_s=13.0)
_SLOWER: Final = Server("8b-1xa100", speedup=0.5)

_FAILING: Final = (
    # 1,200 x 0.0668 + 1 + 2.5 = 84 ms, / 0.3 = 0.28 s: 3.6/s each. 14.5/s: 81 % of five; two are
    # killed: 135 % of three.
    Scenario(
        "failing-two-of-five-are-killed",
        ("failing",),
        (_THROTTLED, _KILLED, _THROTTLED, _THROTTLED, _KILLED),
        (_SOME, Traffic(14.5, (1000, 1400), (5, 10), "mail", from_s=9.0)),
    ),
    # All three close each connection without an answer. 6/s would be 2 % of them.
    Scenario(
        "failing-no-answer-but-a-closed-line",
        ("failing",),
        (Server(), Server(), Server()),
        tuple(
            Traffic(2.0, (200, 400), (30, 60), tenant, stream=tenant != "cy", from_s=9.0)
            for tenant in ("ann", "bob", "cy")
        ),
        tuple(Fault(13.0, each, {"kind": "cut_before_headers"}) for each in range(3)),
    ),
    # One of four says 500 to all, also to probes that ask for a token, soon after its first
    # requests: in turn 2/s of four tenants. The others would do with 5 %.
    Scenario(
        "failing-one-of-four-in-turn",
        ("failing",),
        (Server("70b-8xh100"), Server("70b-8xh100"), Server("70b-8xh100"), Server("70b-8xh100")),
        tuple(
            Traffic(2.0, (200, 400), (30, 60), tenant, from_s=11.0)
            for tenant in ("ann", "bob", "cy", "dee")
        ),
        (Fault(ONSET_S, 2, {"kind": "internal_error"}),),
        pool={"policy": "round_robin"},
    ),
    # Streams of both stop after 12 of 60 tokens; after 3 s of silence they are given up. A probe's
    # one token comes. 6/s of three tenants, 4 % of arithmetic; 18 silent ones of 256 places.
    Scenario(
        "failing-streams-fall-silent-for-3-s",
        ("failing",),
        (Server("70b-4xh100"), Server("70b-4xh100")),
        tuple(
            Traffic(2.0, (100, 300), (50, 70), tenant, from_s=10.0)
            for tenant in ("ann", "bob", "cy")
        ),
        tuple(Fault(ONSET_S, each, {"kind": "hang_mid_stream", "tokens": 12}) for each in (0, 1)),
        config={"timeouts": {"idle_s": 3}},
    ),
    # Two say 503 to /health, and three such probes a second apart put them out. 1,400 x 0.0666 + 3
    # + 3 = 99 ms, / 0.5: 5/s each. 7.5/s: 50 % of three, 150 % of the one that is left.
    Scenario(
        "failing-two-of-three-fail-their-probes",
        ("failing",),
        (_SLOWER, _SLOWER, _SLOWER),
        (_SOME, Traffic(7.5, (1200, 1600), (10, 20), "mail", from_s=9.0)),
        tuple(Fault(ONSET_S, each, {"kind": "health_503"}) for each in (0, 2)),
        config={"health": {"interval_s": 1}},
    ),
)
_HALF_FULL: Final = Server("8b-1xh100", kv_tokens=40_000)

_FINE: Final = (
    # 3,000 x 0.0216 + 6 + 2.5 = 73 ms, / 0.8: 22/s of two. 13.2/s: 60 %. 9 ms a token alone, 23 ms
    # beside so much prefill; a mean queue below 0.1 s. K: 4 %.
    Scenario(
        "fine-three-tenants-at-60-percent",
        ("fine",),
        (Server(speedup=0.8), Server(speedup=0.8)),
        tuple(
            Traffic(4.4, (2600, 3400), (15, 25), tenant, stream=tenant != "files")
            for tenant in ("chat", "mail", "files")
        ),
    ),
    # 200 x 16.2 ms + 0.1 = 3.3 s in 24 places: 7.2/s each. 9.4/s for two: 65 %, 31 streams of 48
    # (by chance 43, 4 less than a queue). Arithmetic 20 %, K below 1 %.
    Scenario(
        "fine-two-thirds-of-the-places",
        ("fine",),
        (Server(_F, max_num_seqs=24), Server(_F, max_num_seqs=24)),
        (
            Traffic(4.7, (100, 200), (180, 220), "tutor", from_s=4.0),
            Traffic(4.7, (100, 200), (180, 220), "coach", from_s=4.0),
        ),
    ),
    # 40 prompts of 1,200 within half a second: 53 ms each, 0.7 s of work for three. Between the
    # bursts 3/s of chat: 2 %.
    Scenario(
        "fine-three-bursts-of-forty",
        ("fine",),
        (Server("70b-8xh100"), Server("70b-8xh100"), Server("70b-8xh100")),
        (
            Traffic(3.0, (200, 400), (30, 60), "chat"),
            *(
                Traffic(80.0, (1100, 1300), (10, 20), "news", from_s=at_s, until_s=at_s + 0.5)
                for at_s in (13.0, 20.0, 27.0)
            ),
        ),
    ),
    # Clients read 20 KB/s, and 17 events a second are 4 KB/s. 26.4 / 0.45 = 59 ms a token, 70
    # beside 12 % of prefill. 1.4/s x 5.5 s = 8 streams.
    Scenario(
        "fine-slow-engine-and-slow-lines",
        ("fine",),
        (Server("70b-4xa100", speedup=0.45),),
        (
            Traffic(0.7, (100, 200), (60, 100), "bus", read_bytes_per_s=20_000.0),
            Traffic(0.7, (100, 200), (60, 100), "train", read_bytes_per_s=20_000.0),
        ),
    ),
    # One has half its peers' speed, another comes at 5 s, and one request of 100 gets a 500 and is
    # sent elsewhere. 900 + 300: 5/s x 2.7 s = 14 x 1,200 of 120,000. Prefill 5/s x 21 ms: 4 %.
    Scenario(
        "fine-half-as-fast-late-and-one-error",
        ("fine",),
        (
            Server("8b-1xh100", speedup=0.5, kv_tokens=40_000),
            _HALF_FULL,
            Server("8b-1xh100", kv_tokens=40_000, starts_s=5.0),
        ),
        (Traffic(5.0, (800, 1000), (250, 350), "notes", from_s=9.0),),
        (Fault(14.0, 1, {"kind": "internal_error", "times": 1}),),
    ),
)

SCENARIOS: Final[tuple[Scenario, ...]] = (*_STARTING, *_FAILING, *_FINE)
