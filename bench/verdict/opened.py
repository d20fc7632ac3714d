"""Scenarios that were written without knowledge of the rules. Rules were mended by them since."""

from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Fault, Scenario, Server, Traffic

# Light traffic from the beginning: 1 % to 3 % of what any fleet that has it can do, 6 % with slow
# API servers.
LIGHT: Final = Traffic(1.0, prompt_tokens=(100, 200), answer_tokens=(10, 30), tenant="light")

SCENARIOS: Final = (
    # A request: 800 x 66.8 us = 53 ms, attention 0.5 ms, 120 decodes x (66.8 + 5 + 27 us) = 12 ms:
    # 66 ms, so 15/s a server, 30/s for two. 9/s come: 30 %. Steps of about 20 ms, so
    # 9 x 120 x 0.02 = 22 streams, 20,000 of 800,000 KV tokens. 1,080 tokens/s generated.
    Scenario(
        "afternoon chat on two big servers",
        ("fine",),
        (Server("70b-4xh100"), Server("70b-4xh100")),
        (
            Traffic(6.0, (600, 1000), (80, 160), tenant="desk"),
            Traffic(3.0, (600, 1000), (80, 160), tenant="shop"),
        ),
    ),
    # A request: (70 + 55) x 179.6 us = 22.5 ms, KV and sampling 0.55 ms: 23 ms, so 43/s. 38/s
    # come: 88 %; prompts 20 % off make it 78 % to 97 %. 38 x 125 x 0.027 s = 128 tokens a step,
    # below the 139 that its floor (26.4 ms) takes: 27 ms a token, no queue but chance (M/D/1:
    # 80 ms). 57 streams, 2,090 tokens/s generated, 6,000 of 400,000 KV tokens.
    Scenario(
        "busy one-liners on one old machine",
        ("fine",),
        (Server("70b-4xa100"),),
        (
            Traffic(25.0, (50, 90), (40, 70), tenant="labels"),
            Traffic(13.0, (50, 90), (40, 70), tenant="titles"),
        ),
    ),
    # A request: 3,000 x 66.6 us = 200 ms, attention 13 ms, steps 2 ms, decodes 3 ms: 218 ms, so
    # 4.6/s a server, 9.2/s for two. 13/s come: 141 % (at least 114 % if prompts are shorter).
    # Steps of 2,048 tokens take 140 ms: the arithmetic is full. KV: 20 running x 3,000 = 60,000
    # of 390,000 each. No peer has anything left, so demand is honest as well.
    Scenario(
        "document questions on two cards",
        ("compute", "demand"),
        (Server("8b-1xa100"), Server("8b-1xa100")),
        (LIGHT, Traffic(13.0, (2500, 3500), (20, 40), tenant="docs", from_s=ONSET_S)),
    ),
    # A request: 12,000 x 66.8 us = 0.80 s, attention 0.12 s: 0.93 s, so 1.08/s. 1.9/s come: 176 %
    # (at least 139 %). KV: steps of 0.6 s x 12 answers = 7.5 s, 8 running x 12,000 = 97,000 of
    # 400,000: 25 %.
    Scenario(
        "contracts to summarise in one line",
        ("compute", "demand"),
        (Server("70b-4xh100"),),
        (LIGHT, Traffic(1.9, (10_000, 14_000), (8, 16), tenant="legal", from_s=ONSET_S)),
    ),
    # A step's floor is 26.4 / 0.25 = 106 ms. 6/s x 120 tokens x 0.11 s = 79 streams, and 6 x 80
    # prompt tokens/s: 131 tokens a step of the 139 within the floor, KV read (0.55 ms) and
    # sampling (0.4 ms) add 4 ms: 110 ms a token, more by chance. 1,200 of 1,390 tokens/s.
    # Every request is taken up at once: 79 < 256 sequences, 11,000 of 400,000 KV tokens.
    Scenario(
        "crowd on an old machine",
        ("compute",),
        (Server("70b-4xa100", speedup=0.25),),
        (
            Traffic(0.5, (60, 100), (10, 30), tenant="light"),
            Traffic(6.0, (60, 100), (100, 140), tenant="crowd", from_s=ONSET_S),
        ),
    ),
    # 18/s in 6 s: 108 streams of 14,200 tokens; all but 200 tokens of a prompt are cached, so
    # prefill is 18 x 200 = 3,600 of 15,000 tokens/s. Decodes read 108 x 14,200 x 0.08 us = 123 ms
    # a step, 11 ms more for the rest: 134 ms a token (109 ms to 158 ms with prompts 20 % off).
    # Answers of 200 to 300 tokens last 27 s and more: they run at ONSET_S + 20 s. KV: the common
    # 14,000 + 108 x 400 = 57,000 of 390,000. 110 to 130 < 256 sequences: nothing waits.
    Scenario(
        "everyone asks about the same handbook",
        ("compute",),
        (Server("8b-1xa100"),),
        (
            LIGHT,
            Traffic(
                18.0,
                (14_100, 14_300),
                (200, 300),
                tenant="handbook",
                prefix_tokens=14_000,
                from_s=ONSET_S,
                until_s=ONSET_S + 6.0,
            ),
        ),
    ),
    # A stream holds 150 + 200 = 350 KV tokens on average and lasts 400 x 27.5 ms = 11 s: 10,000
    # hold 28, so 2.6/s a server, 5.2/s for two. 8/s come: 154 %, full 9 s after the onset
    # (4t x 150 + 72 t^2). GPUs: 8 x 550 = 4,400 of 11,100 tokens/s. 28 < 256 sequences.
    Scenario(
        "stories from short prompts",
        ("memory",),
        (Server("70b-4xa100", kv_tokens=10_000), Server("70b-4xa100", kv_tokens=10_000)),
        (LIGHT, Traffic(8.0, (100, 200), (350, 450), tenant="stories", from_s=ONSET_S)),
    ),
    # 60,000 KV tokens hold 7 streams of 8,000 + 300. One takes 0.2 s of prefill and 300 steps of
    # 10.3 ms, stretched by others' prefill (0.215 s each): 4.7 s, so 1.5/s a server, 4.5/s for
    # three (5.8/s with shorter prompts). 7.5/s come: 167 % (129 %). Prefill of all of them would
    # take 2.5 x 0.215 = 54 % of the GPUs' time.
    Scenario(
        "long reports with discussion on three small caches",
        ("memory",),
        tuple(Server("8b-1xh100", kv_tokens=60_000) for _ in range(3)),
        (LIGHT, Traffic(7.5, (6000, 10_000), (250, 350), tenant="reports", from_s=ONSET_S)),
    ),
    # 8 sequences x 2; one lasts 200 x 8.3 ms = 1.7 s: 9.6/s for two (10.7/s at best). 14/s come:
    # 131 % to 146 %. GPUs: 14 x 500 = 7,000 of 92,000 tokens/s. KV: 8 x 400 of 390,000.
    Scenario(
        "narrow engines under chat",
        ("scheduler",),
        (Server("8b-1xh100", max_num_seqs=8), Server("8b-1xh100", max_num_seqs=8)),
        (
            LIGHT,
            Traffic(8.0, (200, 400), (150, 250), tenant="web", from_s=ONSET_S),
            Traffic(6.0, (200, 400), (150, 250), tenant="phone", from_s=ONSET_S),
        ),
    ),
    # A step takes 64 tokens in 7.5 ms: 8,500/s, where the same step would take 273 in the same
    # time, and large steps reach 46,000/s. 6.5 x 2,030 = 13,200/s come: 155 % of the budget (125 %
    # with shorter prompts), 29 % of the GPU. KV: about 3 x 2,000 of 390,000. Of 48 sequences few
    # run, as prefill has all of the budget.
    Scenario(
        "small bites of pages",
        ("scheduler",),
        (Server("8b-1xh100", max_num_seqs=48, max_num_batched_tokens=64),),
        (LIGHT, Traffic(6.5, (1500, 2500), (20, 40), tenant="pages", from_s=ONSET_S)),
    ),
    # 96 tokens in 10 ms: 9,600/s a server, 28,800/s for three. 10.5 x 4,060 = 42,600/s come: 148 %
    # (119 %). GPUs could do 23,600/s each, 70,900/s: 60 %, 63 % with attention. A step of 96
    # tokens is below its floor of 198. KV: some 20 x 4,000 = 80,000 of 3,450,000.
    Scenario(
        "cautious settings on three large servers",
        ("scheduler",),
        tuple(Server("70b-8xh100", max_num_seqs=64, max_num_batched_tokens=96) for _ in range(3)),
        (LIGHT, Traffic(10.5, (3000, 5000), (40, 80), tenant="archive", from_s=ONSET_S)),
    ),
    # 120 ms a request, one after the other: 8.3/s a server, 16.7/s for two. 22/s come (and 1/s
    # light): 138 %. GPUs: 22 x 230 = 5,100 of 92,000 tokens/s. KV: 16.7 x 0.25 s = 4 streams.
    Scenario(
        "slow front desks",
        ("scheduler",),
        (Server("8b-1xh100", api_ms=120.0), Server("8b-1xh100", api_ms=120.0)),
        (LIGHT, Traffic(22.0, (100, 300), (20, 40), tenant="forms", from_s=ONSET_S)),
    ),
    # A request lasts 200 x 7.8 ms = 1.6 s; 6 at a time are 3.8/s. 9/s come: 240 %. The engines
    # have 3 streams each of 256, and could do 9 x 500 = 4,500 of 92,000 tokens/s.
    Scenario(
        "six at a time",
        ("waiting",),
        (Server("8b-1xh100"), Server("8b-1xh100")),
        (LIGHT, Traffic(9.0, (200, 400), (150, 250), tenant="chat", from_s=ONSET_S)),
        pool={"max_requests": 6},
    ),
    # The night job's request: 5,000 x 66.8 us = 334 ms, attention 20 ms: 357 ms, so 2.8/s a
    # server, 5.6/s for two. 8.5/s come: 152 % (121 %), all of one tenant. The other has 2/s x 150
    # tokens = 300 of 30,000 tokens/s, 1 %, far below its share: it is served. What the flood takes
    # is arithmetic, so compute is honest as well. KV: 20 x 5,000 = 100,000 of 400,000 each.
    Scenario(
        "night job in the morning",
        ("waiting", "compute"),
        (Server("70b-4xh100"), Server("70b-4xh100")),
        (
            Traffic(2.0, (80, 160), (20, 40), tenant="people"),
            Traffic(8.5, (4000, 6000), (8, 16), tenant="night", from_s=ONSET_S),
        ),
    ),
    # Two servers have 7.5 ms a token, the third 74 ms: a request lasts 0.8 s or 7.5 s. 12/s come,
    # 4/s each if evenly: 4 x 700 = 2,800 tokens/s, 6 % of a fast one, 60 % of the slow one.
    # KV: 4 x 7.5 s x 650 = 20,000 of 390,000.
    Scenario(
        "one tired card of three",
        ("uneven",),
        (Server("8b-1xh100"), Server("8b-1xh100", speedup=0.1), Server("8b-1xh100")),
        (
            Traffic(8.0, (400, 800), (80, 120), tenant="web"),
            Traffic(4.0, (400, 800), (80, 120), tenant="mail"),
        ),
    ),
    # The session's request: 2,000 x 66.8 us = 134 ms, attention 3 ms, rest 2 ms: 140 ms, so 7.1/s
    # on the one server of the session. 10.5/s come: 147 % (119 %); its peers have only 2/3 of
    # 2/s x 320 tokens = 430 of 30,000 tokens/s. KV: 39 running x 2,000 = 78,000 of 400,000.
    Scenario(
        "an agent that never changes its session",
        ("uneven",),
        tuple(Server("70b-4xh100") for _ in range(3)),
        (
            Traffic(2.0, (200, 400), (10, 30), tenant="others"),
            Traffic(10.5, (1500, 2500), (6, 14), tenant="agent", session="agent-1", from_s=ONSET_S),
        ),
    ),
    # 1,000 tokens are about 200 KB of events: 50 s at 4 KB/s, where the engine takes 1,000 x 7.6
    # ms = 8 s. Engine: 1.2/s x 8 s = 9 streams, 1,200 tokens/s, KV 9 x 800 of 390,000.
    Scenario(
        "listeners on a thin line",
        ("client",),
        (Server("8b-1xh100"),),
        (
            LIGHT,
            Traffic(
                1.2,
                (200, 400),
                (800, 1200),
                tenant="radio",
                read_bytes_per_s=4_000.0,
                from_s=ONSET_S,
            ),
        ),
    ),
    # 800 tokens are about 160 KB: 107 s at 1.5 KB/s; the engine takes 800 x 12 ms = 9.6 s. 2/s x
    # 20 s = 40 open streams at ONSET_S + 20 s. Engines: 2 x 9.6 = 19 streams on two, 1,700
    # tokens/s; the second tenant reads at once (2/s x 40 tokens). KV: 19 x 700 of 780,000.
    Scenario(
        "phones in a tunnel",
        ("client",),
        (Server("8b-1xa100"), Server("8b-1xa100")),
        (
            Traffic(2.0, (200, 400), (20, 60), tenant="office"),
            Traffic(
                2.0,
                (200, 400),
                (600, 1000),
                tenant="phones",
                read_bytes_per_s=1_500.0,
                from_s=ONSET_S,
            ),
        ),
    ),
    # No server is ready before 90 s; the scenario ends at 35 s. 2/s come: 70 in all, 800 tokens/s,
    # 3 % of what the two could do.
    Scenario(
        "monday, everything was switched off",
        ("starting",),
        (Server("70b-4xh100", starts_s=90.0), Server("70b-4xh100", starts_s=90.0)),
        (
            Traffic(1.2, (200, 400), (80, 120), tenant="early"),
            Traffic(0.8, (200, 400), (80, 120), tenant="bird"),
        ),
    ),
    # A request takes 218 ms (as in "document questions on two cards"): 4.6/s a server. 7/s come:
    # 152 % (121 %) of the one that is ready, 51 % of three. The arithmetic of the one is what they
    # wait for, so compute is honest as well.
    Scenario(
        "two of three still load their weights",
        ("starting", "compute"),
        (
            Server("8b-1xa100"),
            Server("8b-1xa100", starts_s=80.0),
            Server("8b-1xa100", starts_s=80.0),
        ),
        (LIGHT, Traffic(7.0, (2500, 3500), (20, 40), tenant="docs", from_s=ONSET_S)),
    ),
    # Three of four stop at the onset: backends are out. 6/s x 400 = 2,400 of 46,000 tokens/s: the
    # last one can do what is left.
    Scenario(
        "a tripped fuse",
        ("failing",),
        (Server("8b-1xh100"), *(Server("8b-1xh100", stops_s=ONSET_S) for _ in range(3))),
        (
            Traffic(4.0, (200, 400), (80, 120), tenant="web"),
            Traffic(2.0, (200, 400), (80, 120), tenant="mail"),
        ),
    ),
    # From the onset both answer 500 to every request. 5/s x 340 = 1,700 tokens/s would be 4 % of
    # what they can do (47,000).
    Scenario(
        "nothing but errors",
        ("failing",),
        (Server("70b-8xh100"), Server("70b-8xh100")),
        (Traffic(5.0, (200, 400), (20, 60), tenant="app"),),
        faults=(
            Fault(ONSET_S, 0, {"kind": "internal_error"}),
            Fault(ONSET_S, 1, {"kind": "internal_error"}),
        ),
    ),
)
