"""Fleets of known cause, by the fourth writer: uneven, client, waiting.

The arithmetic is that of `fourth`. An event of a stream has about 245 bytes.
"""

from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Scenario, Server, Traffic

_SOME: Final = Traffic(0.5, (100, 200), (10, 20), "some")
_NO_ADMISSION: Final = {"admission": {"enabled": False}}
_ALL_IN_ENGINES: Final = {
    "admission": {"enabled": False},
    "health": {"deep": {"interval_s": 40, "timeout_s": 30}},
}
_STRICT: Final = {"affinity": {"strict": True}}
_H100: Final = Server("70b-4xh100")
_WIDE_H100: Final = Server("70b-8xh100")
_A100: Final = Server("8b-1xa100")
_SIX: Final = Server("70b-8xa100", max_num_seqs=6)

_UNEVEN: Final = (
    # 15.8 / 0.15 = 106 ms a token on one, 16 ms on three. In turn 2/s each: on the slow one 11
    # streams and 32 % of arithmetic (134 + 25 ms), on the others 2 and 5 %.
    Scenario(
        "uneven-last-of-four-in-turn",
        ("uneven",),
        (_H100, _H100, _H100, Server("70b-4xh100", speedup=0.15)),
        (
            _SOME,
            Traffic(5.0, (200, 400), (40, 60), "app", from_s=ONSET_S),
            Traffic(3.0, (200, 400), (40, 60), "jobs", stream=False, from_s=ONSET_S),
        ),
        pool={"policy": "round_robin"},
    ),
    # 9.9 / 0.1 = 99 ms a token on one, 9.9 on two. By chance 2/s each: 40 % of the slow one's
    # arithmetic (169 + 30 ms) and 13 streams of 256; 4 % of the others'.
    Scenario(
        "uneven-a-tenth-of-the-speed-by-chance",
        ("uneven",),
        (Server("70b-8xh100", speedup=0.1), _WIDE_H100, _WIDE_H100),
        (_SOME, Traffic(6.0, (300, 500), (40, 80), "app", from_s=ONSET_S)),
        pool={"policy": "weighted_random"},
    ),
    # One session: 1,600 x 0.0666 + 3.7 + 3 = 113 ms: 8.8/s of its server. 11.7/s: 132 %, and 13
    # more at once; three others have 3/s x 25 ms, 3 %. Work for 1.5 s waits at +1 s, for 3.4 s at
    # +6 s, for 7.8 s at +20 s: less than the 10 s that strictness bears. K: 390,000 hold 240.
    Scenario(
        "uneven-strict-job-on-one-of-four",
        ("uneven",),
        (_A100, _A100, _A100, _A100),
        (
            Traffic(3.0, (200, 400), (20, 40), "people"),
            Traffic(11.7, (1400, 1800), (10, 20), "cron", "job-7", from_s=ONSET_S),
            Traffic(
                13.0,
                (1400, 1800),
                (10, 20),
                "cron",
                "job-7",
                from_s=ONSET_S,
                until_s=ONSET_S + 1.0,
            ),
        ),
        config=_STRICT,
    ),
    # One session: 150 x 16 ms = 2.4 s in 6 places: 2.5/s. 4/s: 160 %; the two others have 1 of
    # 6 places. After 20 s 30 wait, the last for 12 s. Prefill 4 x 17 ms: 7 %, decodes 7 %.
    Scenario(
        "uneven-strict-session-in-six-places",
        ("uneven",),
        (_SIX, _SIX, _SIX),
        (
            Traffic(2.0, (100, 200), (20, 30), "people"),
            Traffic(4.0, (100, 200), (130, 170), "pipeline", "run-9", from_s=ONSET_S),
        ),
        config=_STRICT,
    ),
    # 600 ms each: one API server reads 1.7/s. In turn 2.5/s each: 150 %; alone its answers take
    # 0.8 s, those of its three peers 0.23 s. Prefill 9 %.
    Scenario(
        "uneven-one-slow-door-of-four",
        ("uneven",),
        (_WIDE_H100, Server("70b-8xh100", api_ms=600.0), _WIDE_H100, _WIDE_H100),
        (
            Traffic(0.5, (100, 200), (10, 20), "a"),
            Traffic(6.0, (700, 900), (15, 25), "a", from_s=ONSET_S),
            Traffic(4.0, (700, 900), (15, 25), "b", stream=False, from_s=ONSET_S),
        ),
        pool={"policy": "round_robin"},
    ),
    # No admission, in turn 2/s each: 500 + 250 tokens, 3 s. One cache of 1,800 holds 2 or 3: 0.7
    # to 1/s: 200 to 300 %; 20 wait there after 20 s. Three hold all 6 in 1 %. Prefill 7 %.
    Scenario(
        "uneven-one-wrong-cache-size",
        ("uneven",),
        (_A100, _A100, Server("8b-1xa100", kv_tokens=1800), _A100),
        (_SOME, Traffic(8.0, (450, 550), (200, 300), "app", from_s=ONSET_S)),
        config=_ALL_IN_ENGINES,
        pool={"policy": "round_robin"},
    ),
)

_CLIENT: Final = (
    # 130 events, 32 KB a second for each stream, read at 0.7 KB/s. Engines: 7 streams of 256 each,
    # 7.8 ms a token, prefill 1 %, K 1 %; they end after 6 s, the clients after 280 s. At +6 s 13
    # are open, all but the last 3 behind by 30 KB and more.
    Scenario(
        "client-three-kinds-of-phones",
        ("client",),
        (Server(), Server()),
        (
            _SOME,
            *(
                Traffic(0.7, (200, 400), (700, 900), each, read_bytes_per_s=700.0, from_s=ONSET_S)
                for each in ("ios", "android", "other")
            ),
        ),
    ),
    # 1,000 tokens come in 10 s, 25 KB/s, and are read at 2 KB/s: 122 s. The web: 8/s x 0.26 s, 2
    # open. At +6 s 9 of 12 are slow. Engines: 4 streams each, 10 ms a token, prefill 3 %.
    Scenario(
        "client-television-sets-among-browsers",
        ("client",),
        (_WIDE_H100, _WIDE_H100, _WIDE_H100, _WIDE_H100),
        (
            Traffic(8.0, (200, 400), (20, 30), "web"),
            Traffic(1.6, (200, 400), (900, 1100), "tv", read_bytes_per_s=2000.0, from_s=ONSET_S),
        ),
        pool={"policy": "least_requests"},
    ),
    # Four choices: 100 KB/s for each client, 290 KB in 3 s, read at 2 KB/s. 1.2/s: 14 streams of
    # 256, 10 ms a token; prefill 2 %.
    Scenario(
        "client-four-choices-down-a-thin-line",
        ("client",),
        (_WIDE_H100,),
        (
            _SOME,
            Traffic(
                1.2,
                (200, 400),
                (250, 350),
                "drafts",
                choices=4,
                read_bytes_per_s=2000.0,
                from_s=ONSET_S,
            ),
        ),
    ),
    # No admission. 800 tokens come in 9.2 s, 21 KB/s, and are read at 1 KB/s. Engines: 7 streams
    # each, 11.5 ms a token; prefill 6 %. The desk has 2 open, of 2.2/s x 20 s slow ones.
    Scenario(
        "client-kiosks-without-admission",
        ("client",),
        (_A100, _A100, _A100),
        (
            Traffic(5.0, (200, 400), (20, 40), "desk"),
            Traffic(1.1, (100, 200), (700, 900), "kiosk", read_bytes_per_s=1000.0, from_s=ONSET_S),
            Traffic(1.1, (100, 200), (700, 900), "signs", read_bytes_per_s=1000.0, from_s=ONSET_S),
        ),
        config=_NO_ADMISSION,
    ),
    # The cache is small, but 12 streams of 5.4 s are 30 % of it (44 % whole). 700 tokens are 170
    # KB, 32 KB/s, read at 0.8 KB/s: 44 are open after 20 s. Who counts them until they have read
    # all finds 48,000 of 30,000. Prefill 2 %, 12 of 256 places.
    Scenario(
        "client-readers-seem-to-fill-the-cache",
        ("client",),
        (Server(kv_tokens=30_000),),
        (
            _SOME,
            Traffic(1.1, (300, 500), (600, 800), "east", read_bytes_per_s=800.0, from_s=ONSET_S),
            Traffic(1.1, (300, 500), (600, 800), "west", read_bytes_per_s=800.0, from_s=ONSET_S),
        ),
    ),
)
_CALM_H100: Final = Server(speedup=0.7)
_OLD: Final = Server("70b-4xa100")
_SMALL_H100: Final = Server(kv_tokens=6400)
_SMALL_KV: Final = Server("small-kv", speedup=2.0)

_WAITING: Final = (
    # 120 x 10.6 + 30 ms = 1.3 s in 5 places: 3.8/s. 6.2/s: 161 %. Six engines have less than a
    # stream each, arithmetic 1 %.
    Scenario(
        "waiting-five-places-for-six-servers",
        ("waiting",),
        (_CALM_H100, _CALM_H100, _CALM_H100, _CALM_H100, _CALM_H100, _CALM_H100),
        (_SOME, Traffic(6.2, (200, 400), (100, 140), "app", from_s=ONSET_S)),
        pool={"max_requests": 5},
    ),
    # 150 x 26.6 ms + 0.1 = 4.1 s in 20 places: 4.9/s. 8/s: 163 %. 7 streams of 256 on each engine;
    # offered 11 and 10 % of prefill, 8 % of decodes. 28 ms a token.
    Scenario(
        "waiting-twenty-places-half-unstreamed",
        ("waiting",),
        (_OLD, _OLD, _OLD),
        (
            _SOME,
            Traffic(4.0, (100, 300), (120, 180), "live", from_s=ONSET_S),
            Traffic(4.0, (100, 300), (120, 180), "files", stream=False, from_s=ONSET_S),
        ),
        pool={"max_requests": 20, "policy": "least_tokens"},
    ),
    # 150 x 16 + 30 ms = 2.4 s in 8 places, less one for others: 2.9 to 3.3/s. The scraper sends
    # 5.2/s: 158 to 179 %. The assistant has 1/s x 0.25 s. 4 streams on each; prefill 8 %.
    Scenario(
        "waiting-scraper-takes-all-eight",
        ("waiting",),
        (Server("70b-8xa100"), Server("70b-8xa100")),
        (
            Traffic(1.0, (100, 200), (10, 20), "assistant"),
            Traffic(5.2, (200, 300), (130, 170), "scraper", from_s=ONSET_S),
        ),
        pool={"max_requests": 8},
        tenant="scraper",
    ),
    # 12 choices x 420 to 480 are 79 to 90 % of a cache and may fill it, and one of five servers may
    # have one. 450 x 7.7 ms = 3.5 s: 0.29/s. 1/s: 350 %. All five could do 1.4/s; four of them have
    # nothing but 2/s x 0.3 s of chat: 1 %.
    Scenario(
        "waiting-choices-one-at-a-time",
        ("waiting",),
        (_SMALL_H100, _SMALL_H100, _SMALL_H100, _SMALL_H100, _SMALL_H100),
        (
            Traffic(2.0, (100, 200), (20, 40), "chat"),
            Traffic(1.0, (60, 100), (420, 480), "study", choices=12, from_s=ONSET_S),
        ),
    ),
    # 8 choices x 800 to 850 are 78 to 83 % of 8,192, and at most 8 x 60 of prompts. 825 x 5.2 ms =
    # 4.3 s, one at a time: 0.23/s. 0.8/s: 344 %; six servers could do 1.4/s. 8 of 128 streams.
    Scenario(
        "waiting-choices-unstreamed-on-six",
        ("waiting",),
        (_SMALL_KV, _SMALL_KV, _SMALL_KV, _SMALL_KV, _SMALL_KV, _SMALL_KV),
        (
            Traffic(3.0, (100, 200), (20, 40), "chat"),
            Traffic(0.8, (30, 60), (800, 850), "panel", choices=8, stream=False, from_s=ONSET_S),
        ),
    ),
)

SCENARIOS: Final[tuple[Scenario, ...]] = (*_UNEVEN, *_CLIENT, *_WAITING)
