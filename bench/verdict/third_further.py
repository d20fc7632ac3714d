"""Fleets of known cause, written blind: client, waiting, starting, failing, fine.

The arithmetic follows `Gpu.step_s`: 1.5 ms + max(weights, tokens) + attention + KV, all divided
by the speedup. An event of a stream has about 270 bytes. Loads are of the capacity.
"""

from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Fault, Scenario, Server, Traffic

_CALM: Final = Traffic(0.6)
_NO_ADMISSION: Final = {"admission": {"enabled": False}}
_SMALL: Final = Server("8b-1xh100", speedup=0.5)
_CHAT_70B: Final = Server("70b-4xh100")

_CLIENT: Final = (
    # 8.5 ms a token: 117 events a second, 32 KB/s for each stream; clients read 1 KB/s. The engine
    # has 17 streams, prefill 2 %, KV 4 %, and would answer in 7 s; at their speed it takes 216 s.
    Scenario(
        "client-all-read-1-kb-a-second",
        ("client",),
        (Server(),),
        (_CALM, Traffic(2.5, (200, 400), (600, 1000), read_bytes_per_s=1000.0, from_s=ONSET_S)),
    ),
    # The mobile tenant's 600 tokens come in 10 s (17 KB/s) and are read at 0.8 KB/s: 200 s. The
    # desktop tenant reads at once. Each engine: 7 streams, 16 ms a token, below 10 %.
    Scenario(
        "client-mobile-ones-beside-desktops",
        ("client",),
        (Server("70b-8xa100"), Server("70b-8xa100"), Server("70b-8xa100")),
        (
            Traffic(3.0, (200, 400), (30, 60), "desktop"),
            Traffic(2.0, (200, 400), (500, 700), "mobile", read_bytes_per_s=800.0, from_s=ONSET_S),
        ),
        config=_NO_ADMISSION,
    ),
    # 24 places for 4/s x 500 x 7.7 ms = 15 streams would do, but at 1.5 KB/s a stream of 135 KB
    # lasts 90 s: after 6 s all places are held by readers, and others wait for one.
    Scenario(
        "client-hold-all-places",
        ("client", "waiting"),
        (Server(), Server()),
        (_CALM, Traffic(4.0, (100, 300), (400, 600), read_bytes_per_s=1500.0, from_s=ONSET_S)),
        pool={"max_requests": 24},
    ),
)
_WAITING: Final = (
    # 100 x 14.8 ms + 30 = 1.5 s in 3 places: 2/s, 3.6/s come: 180 %. Four engines with less than
    # a stream each.
    Scenario(
        "waiting-three-places-for-four-servers",
        ("waiting",),
        (_SMALL, _SMALL, _SMALL, _SMALL),
        (_CALM, Traffic(3.6, (200, 400), (80, 120), from_s=ONSET_S)),
        pool={"max_requests": 3},
    ),
    # 200 x 16.2 ms = 3.2 s in 10 places: 3.1/s, 5.1/s of three tenants: 165 %. 5 streams on each
    # of two that have 256; prefill 11 %, KV below 1 %.
    Scenario(
        "waiting-three-tenants-unstreamed",
        ("waiting",),
        (Server("70b-8xa100"), Server("70b-8xa100")),
        (
            _CALM,
            *(
                Traffic(1.7, (300, 500), (150, 250), tenant, stream=False, from_s=ONSET_S)
                for tenant in ("red", "green", "blue")
            ),
        ),
        pool={"max_requests": 10},
    ),
    # The chat holds 4/s x 40 x 16 ms = 2.6 of 16 places; reports 3/s x 600 x 16.2 ms = 29 more:
    # 198 %. 5 streams on each engine, 16 ms a token. KV 2 %.
    Scenario(
        "waiting-reports-take-the-chats-places",
        ("waiting",),
        (_CHAT_70B, _CHAT_70B, _CHAT_70B),
        (
            Traffic(4.0, (200, 400), (20, 60), "chat"),
            Traffic(3.0, (400, 800), (500, 700), "reports", from_s=13.0),
        ),
        pool={"max_requests": 16},
    ),
)
_A100: Final = Server("8b-1xa100")
_LATE: Final = Server("8b-1xa100", starts_s=45.0)
_STARTING: Final = (
    # The only server is not there yet, and requests wait for it as the configuration says.
    Scenario(
        "starting-everyone-waits-for-the-first",
        ("starting",),
        (Server("70b-8xh100", starts_s=45.0),),
        (Traffic(2.0, (200, 400), (20, 60)),),
        config={"admission": {"hold_for_backend_s": 60}},
        pool={"models": ["sim-model"]},
    ),
    # 4,000 x 0.0666 + 23 = 0.29 s: 3.4/s of the one that is ready. 6.2/s: 186 %, but 62 % of three.
    Scenario(
        "starting-two-of-three-are-late",
        ("starting",),
        (_LATE, _A100, _LATE),
        (_CALM, Traffic(6.2, (3500, 4500), (20, 30), from_s=ONSET_S)),
    ),
    # 16 places x 1 / (200 x 16.2 ms): 4.9/s each. 8.5/s: 172 % of one, 86 % of two. The second may
    # have a tenth of the other's 16 in flight when it comes, and after 15 s a fifth: 5.9/s in all.
    Scenario(
        "starting-second-warms-up-slowly",
        ("starting",),
        (
            Server("70b-4xh100", max_num_seqs=16),
            Server("70b-4xh100", max_num_seqs=16, starts_s=14.0),
        ),
        (_CALM, Traffic(8.5, (200, 400), (150, 250), from_s=ONSET_S)),
        config={"health": {"slow_start_s": 120}},
    ),
)
_DEAD: Final = Server("70b-8xa100", stops_s=13.0)
_FAILING: Final = (
    # 2,000 x 0.0666 + 8 = 0.141 s: 7.1/s each. 10.5/s: 74 % of two; of the one that still answers
    # 148 %.
    Scenario(
        "failing-one-of-two-says-500",
        ("failing",),
        (_A100, _A100),
        (_CALM, Traffic(10.5, (1700, 2300), (20, 40), from_s=8.0)),
        (Fault(13.0, 1, {"kind": "internal_error"}),),
    ),
    # 6/s, 5 % of three. One takes requests and says nothing more.
    Scenario(
        "failing-one-of-three-is-silent",
        ("failing",),
        (_CHAT_70B, _CHAT_70B, _CHAT_70B),
        (
            Traffic(3.0, (200, 400), (40, 80), "a"),
            Traffic(3.0, (200, 400), (40, 80), "b", stream=False),
        ),
        (Fault(13.0, 0, {"kind": "hang_before_headers"}),),
    ),
    # Every stream stops after 15 of its 60 tokens, and stays: 60 of 2,048 places at the end, KV
    # 3 %. Probes of a token pass.
    Scenario(
        "failing-all-stall-in-mid-answer",
        ("failing",),
        (Server("default"), Server("default")),
        (Traffic(3.0, (200, 400), (40, 80)),),
        tuple(Fault(13.0, each, {"kind": "hang_mid_stream", "tokens": 15}) for each in (0, 1)),
    ),
    # Each stream is cut after 12 of 50 tokens wherever it is. 3.6/s, 3 % of three, even if each
    # is begun five times.
    Scenario(
        "failing-cuts-of-three-tenants",
        ("failing",),
        (Server(), Server(), Server()),
        tuple(Traffic(1.2, (200, 400), (40, 60), tenant) for tenant in ("ann", "bob", "cy")),
        tuple(
            Fault(13.0, each, {"kind": "cut_mid_stream", "tokens": 12, "rst": each == 2})
            for each in (0, 1, 2)
        ),
    ),
    # 1,500 x 0.112 + 5 = 0.173 s: 5.8/s each. 11/s: 63 % of three; two are killed: 190 %.
    Scenario(
        "failing-two-of-three-are-killed",
        ("failing",),
        (_DEAD, Server("70b-8xa100"), _DEAD),
        (_CALM, Traffic(11.0, (1200, 1800), (20, 30), from_s=8.0)),
    ),
    # Each answer is a 500 after 3 tokens; probes of one token pass. 4/s, below 5 %.
    Scenario(
        "failing-engine-errors-unstreamed",
        ("failing",),
        (Server("70b-8xh100"), Server("70b-8xh100")),
        (
            Traffic(2.0, (300, 500), (40, 80), "sales", stream=False),
            Traffic(2.0, (300, 500), (40, 80), "support", stream=False),
        ),
        tuple(
            Fault(14.0, each, {"kind": "error_event", "tokens": 3, "status": 500})
            for each in (0, 1)
        ),
        config=_NO_ADMISSION,
    ),
)
_NOW_AND_THEN: Final = (13.0, 18.0, 23.0, 28.0)
_FINE: Final = (
    # 2,000 x 0.0216 + 3 + 1 = 47 ms / 0.5 = 94 ms: 42/s of four. 12/s: 28 %. Below 20 ms a token.
    # Of the second tenant's prompts half are in the cache, and it wants two choices.
    Scenario(
        "fine-at-30-percent-of-four",
        ("fine",),
        (_SMALL, _SMALL, _SMALL, _SMALL),
        (
            Traffic(7.0, (1500, 2500), (30, 60), "a"),
            Traffic(5.0, (1500, 2500), (30, 60), "b", prefix_tokens=992, choices=2, stream=False),
        ),
    ),
    # 1,000 x 0.0423 + 1.3 = 43.6 ms: 22.9/s. 19.5/s: 85 %, 12 ms a token; a queue at random of
    # 0.15 s. 5 streams of 256, KV below 1 %.
    Scenario(
        "fine-at-almost-90-percent",
        ("fine",),
        (Server("70b-8xh100"),),
        (_CALM, Traffic(19.5, (900, 1100), (15, 25), from_s=ONSET_S)),
    ),
    # 30 prompts x 67 ms within a second, for two: done after 1.3 s. On average 6/s: 20 %.
    Scenario(
        "fine-a-burst-each-five-seconds",
        ("fine",),
        (_CHAT_70B, _CHAT_70B),
        (
            Traffic(2.0, (200, 400), (20, 60)),
            *(
                Traffic(30.0, (900, 1100), (15, 25), "cron", from_s=each, until_s=each + 1.0)
                for each in _NOW_AND_THEN
            ),
        ),
    ),
    # Busy for 6 s, nothing for 20 s, then a little: 1/s x 108 ms = 11 % of a slow 70B, which takes
    # 53 ms a token.
    Scenario(
        "fine-after-a-long-rest",
        ("fine",),
        (Server("70b-4xa100", speedup=0.5),),
        (
            Traffic(1.5, (200, 400), (20, 40), until_s=6.0),
            Traffic(1.0, (200, 400), (20, 40), from_s=26.0),
        ),
    ),
    # The chat is 5 % of two. A book of 12,000 each 5 s: 260 + 94 = 0.35 s of one, in two steps.
    Scenario(
        "fine-a-book-now-and-then",
        ("fine",),
        (Server(), Server()),
        (
            Traffic(6.0, (200, 400), (40, 80), "chat"),
            Traffic(0.2, (10_000, 14_000), (100, 200), "books"),
        ),
    ),
)

SCENARIOS: Final[tuple[Scenario, ...]] = (*_CLIENT, *_WAITING, *_STARTING, *_FAILING, *_FINE)
