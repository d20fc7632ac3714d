"""The same of a second writer: compute, memory, scheduler, waiting.

The arithmetic uses the law of `Gpu.step_s`: 1.5 ms + max(weights, tokens) + attention + KV.
Work of a prompt is its tokens times `token_s` plus attention; "prefill 30 %" is of GPU time.
"""

from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Scenario, Server, Traffic

# Some light requests from the beginning on.
_CALM: Final = Traffic(0.7)
_TINY: Final = Traffic(0.5, (20, 40), (5, 10))
_NO_ADMISSION: Final = {"admission": {"enabled": False}}

_COMPUTE: Final = (
    # 2,000 tokens x 0.1796 ms + 7 ms = 366 ms: 2.73/s. 4.5/s come: 165 %.
    # KV: at most 30 streams (30 tokens, 0.37 s a step) x 2,000 = 60,000 of 400,000. 30 of 256 seqs.
    Scenario(
        "prefill-70b-chat-history",
        ("compute",),
        (Server("70b-4xa100"),),
        (_CALM, Traffic(4.5, (1500, 2500), (20, 40), from_s=ONSET_S)),
    ),
    # 1,000 x 0.112 + 0.9 = 113 ms: 8.85/s a server, 17.7/s both. 27/s of three tenants: 152 %.
    # KV: 61 streams x 1,000 of 1,150,000: 5 %. 61 of 256 seqs. Bodies: 108 KB/s.
    Scenario(
        "prefill-three-tenants-unstreamed",
        ("compute",),
        (Server("70b-8xa100"), Server("70b-8xa100")),
        (
            _CALM,
            *(
                Traffic(9.0, (800, 1200), (20, 40), tenant, stream=False, from_s=ONSET_S)
                for tenant in ("mail", "search", "labels")
            ),
        ),
    ),
    # 8,000 x 0.0666 + 93 (attention) = 626 ms: 1.6/s. 2.6/s come: 163 %.
    # KV: a step with a chunk of 2,048 takes 0.15 s, so 7 streams x 8,000 = 56,000 of 390,000.
    Scenario(
        "prefill-documents",
        ("compute",),
        (Server("8b-1xa100"),),
        (_CALM, Traffic(2.6, (7000, 9000), (20, 40), from_s=ONSET_S)),
    ),
    # Admission off: the queue is in the engine. 800 tokens at 10,000/s: 80 ms, 12.5/s. 20/s: 160 %.
    # A full step (8,192 tokens) takes 0.83 s: 150 streams x 800 = 120,000 of 400,000; 1,024 seqs.
    Scenario(
        "prefill-without-admission",
        ("compute",),
        (Server("default"),),
        (_CALM, Traffic(20.0, (700, 900), (10, 20), from_s=ONSET_S)),
        config=_NO_ADMISSION,
    ),
    # A throttled GPU: a step takes (1.5 + 24.9) / 0.2 = 132 ms even for one stream.
    # 3/s x 60 tokens x 0.132 = 24 streams; with a prompt of 75 a step has 99 tokens, 18 ms < 24.9:
    # within the weights' time, so no prompt waits beyond two steps. KV: 3,000 of 400,000.
    Scenario(
        "decode-throttled-gpu",
        ("compute",),
        (Server("70b-4xa100", speedup=0.2),),
        (_TINY, Traffic(3.0, (50, 100), (40, 80), from_s=ONSET_S)),
    ),
    # A step takes 50 ms + 0.25 ms a stream; prompts of 24 tokens x 0.5 ms x 30/s: prefill 36 %.
    # 30/s x 250 tokens never end in time: 150 streams at +5 s: 87 / 0.64 = 137 ms a token,
    # 240 at +8 s: 172 ms, 690 at +23 s: 350 ms. KV: 690 x 150 = 104,000 of 400,000; 690 of 1,024.
    Scenario(
        "decode-too-many-streams",
        ("compute",),
        (Server("default", speedup=0.2),),
        (_TINY, Traffic(30.0, (16, 32), (200, 300), from_s=ONSET_S)),
    ),
    # One tenant floods: 366 ms each (as the first), 2.73/s; "batch" sends 5/s: 183 %.
    # The others: 2 x 0.5/s x 54 ms: 5 %. KV as above 15 %.
    Scenario(
        "flood-of-prompts",
        ("compute",),
        (Server("70b-4xa100"),),
        (
            Traffic(0.5, tenant="chat"),
            Traffic(0.5, tenant="search"),
            Traffic(5.0, (1500, 2500), (20, 40), "batch", from_s=ONSET_S),
        ),
        tenant="batch",
    ),
)

_MEMORY: Final = (
    # A stream holds 300 + 300 tokens on average: 16,000 / 600 = 26. A step takes 8.2 ms,
    # 600 tokens 4.9 s: 5.3/s at the most. 9/s: 170 %. Prefill 9 x 6.5 ms: 6 %. 26 of 256 seqs.
    Scenario(
        "memory-long-answers",
        ("memory",),
        (Server(kv_tokens=16_000),),
        (_CALM, Traffic(9.0, (200, 400), (500, 700), from_s=ONSET_S)),
    ),
    # A server: 45,000 / (4,000 + 225) = 10.6 streams. A step takes 9.6 ms, beside 19 % of prefill
    # 11.9; 450 tokens 5.4 s: 1.94/s. 3.5/s come to each: 180 %. A prompt: 86 + 10 = 97 ms: 34 %.
    # Full after 3 s. Bodies 112 KB/s. 11 of 256 seqs.
    Scenario(
        "memory-long-prompts",
        ("memory",),
        (Server(kv_tokens=45_000), Server(kv_tokens=45_000)),
        (_CALM, Traffic(7.0, (3000, 5000), (400, 500), from_s=ONSET_S)),
    ),
    # 4,000 of 5,500 tokens are shared: held once. (40,000 - 4,000) / (1,500 + 150) = 21.8 streams.
    # A step: 7.4 + 0.049 us x 120,000 = 13 ms, beside prefill 16 to 18; 300 tokens 5.4 s: 4/s.
    # 6.5/s: 160 %. Own part of a prompt: 32 + 9 = 42 ms: 27 %. Bodies 143 KB/s. 22 of 256 seqs.
    Scenario(
        "memory-shared-beginnings",
        ("memory",),
        (Server(kv_tokens=40_000),),
        (_CALM, Traffic(6.5, (5400, 5600), (250, 350), prefix_tokens=4000, from_s=ONSET_S)),
    ),
    # Admission off: the engine takes what fits now, and preempts as answers grow.
    # 12,000 / (100 + 375) = 25 streams; a step 12.2 ms, 750 tokens 9.1 s: 2.75/s. 7/s: 250 %.
    # Full when 7 x (100 t + 41 t^2) = 12,000: after 5.4 s. Prefill 7 x 6.7 ms: 5 %, and what is
    # computed again (30 ms a preemption). 25 of 256 seqs.
    Scenario(
        "memory-preemptions",
        ("memory",),
        (Server("8b-1xa100", kv_tokens=12_000),),
        (_TINY, Traffic(7.0, (80, 120), (600, 900), from_s=ONSET_S)),
        config=_NO_ADMISSION,
    ),
    # A server: 20,000 / (1,000 + 150) = 17 streams; a step 16.4 ms, beside 18 % of prefill 20;
    # 300 tokens 6 s: 2.8/s. 4.5/s come to each: 160 %. A prompt 68 ms: 31 %. 17 of 256 seqs.
    Scenario(
        "memory-three-tenants-unstreamed",
        ("memory",),
        (Server("70b-4xh100", kv_tokens=20_000), Server("70b-4xh100", kv_tokens=20_000)),
        (
            _CALM,
            *(
                Traffic(3.0, (800, 1200), (250, 350), tenant, stream=False, from_s=ONSET_S)
                for tenant in ("mail", "search", "labels")
            ),
        ),
    ),
    # One tenant floods the cache: as memory-long-answers, 5.3/s at the most, 9/s come: 170 %.
    # The others hold 1.4/s x 0.3 s x 230: 100 tokens.
    Scenario(
        "flood-of-long-answers",
        ("memory",),
        (Server(kv_tokens=16_000),),
        (
            Traffic(0.7, (150, 250), (15, 30), "chat"),
            Traffic(0.7, (150, 250), (15, 30), "search"),
            Traffic(9.0, (200, 400), (500, 700), "reports", from_s=ONSET_S),
        ),
        tenant="reports",
    ),
)

_SCHEDULER: Final = (
    # 8 sequences; 100 tokens x 7.4 ms = 0.75 s: 10.6/s. 18/s: 170 %.
    # Prefill 18 x 6.5 ms: 12 %. KV 8 x 350 of 390,000.
    Scenario(
        "scheduler-eight-sequences",
        ("scheduler",),
        (Server(max_num_seqs=8),),
        (_CALM, Traffic(18.0, (200, 400), (80, 120), from_s=ONSET_S)),
    ),
    # 16 sequences; 250 tokens x 16 ms = 4 s: 4/s a server, 8/s both. 13/s: 163 %.
    # Prefill 6.5 x 20 ms: 13 %. KV 16 x 425 of 400,000. All places taken after 2.5 s.
    Scenario(
        "scheduler-sequences-unstreamed",
        ("scheduler",),
        (Server("70b-4xh100", max_num_seqs=16), Server("70b-4xh100", max_num_seqs=16)),
        (_CALM, Traffic(13.0, (200, 400), (200, 300), stream=False, from_s=ONSET_S)),
    ),
    # A step of 64 tokens takes 7.4 ms (weights; the tokens alone 1.4): 8,650 tokens/s.
    # 14 x 1,000 = 14,000/s: 163 %. With full steps the GPU needed 14 x 22 ms: 31 %.
    # KV: some prompts x 1,000 of 390,000. Streams: 14 x 15 x 7.4 ms = 2 of 32.
    Scenario(
        "scheduler-token-budget",
        ("scheduler",),
        (Server(max_num_seqs=32, max_num_batched_tokens=64),),
        (_CALM, Traffic(14.0, (800, 1200), (10, 20), from_s=ONSET_S)),
    ),
    # A step of 64 tokens takes 9.9 ms: 6,460 tokens/s. 5/s x 2,000 come to each: 155 %.
    # The GPU needed 5 x 86 ms: 43 %. KV: 1 % of 1,150,000. Streams: 3.2 x 0.4 s = 1.3 of 48.
    Scenario(
        "scheduler-token-budget-two-tenants",
        ("scheduler",),
        tuple(Server("70b-8xh100", max_num_seqs=48, max_num_batched_tokens=64) for _ in range(2)),
        (
            _CALM,
            Traffic(5.0, (1800, 2200), (30, 50), "mail", from_s=ONSET_S),
            Traffic(5.0, (1800, 2200), (30, 50), "search", from_s=ONSET_S),
        ),
    ),
    # The API server takes 80 ms a request, one after the other: 12.5/s. 20/s: 160 %.
    # Prefill 20 x 3.2 ms: 7 %. KV and sequences: 12.5 x 0.15 s = 2 streams.
    Scenario(
        "scheduler-api-server",
        ("scheduler",),
        (Server(api_ms=80.0),),
        (_CALM, Traffic(20.0, (100, 200), (10, 30), from_s=ONSET_S)),
    ),
    # 150 ms: 6.7/s a server, 13.3/s both. 22/s: 165 %. Prefill 11 x 20 ms: 22 %.
    # KV: 6.7 x 0.5 s x 330 = 1,100 of 390,000.
    Scenario(
        "scheduler-api-servers-unstreamed",
        ("scheduler",),
        (Server("8b-1xa100", api_ms=150.0), Server("8b-1xa100", api_ms=150.0)),
        (
            _TINY,
            Traffic(11.0, (200, 400), (20, 50), "mail", stream=False, from_s=ONSET_S),
            Traffic(11.0, (200, 400), (20, 50), "search", stream=False, from_s=ONSET_S),
        ),
    ),
    # One tenant takes all places: 8 x 1 / 0.75 s = 10.6/s; "crawler" sends 18/s: 170 %.
    # The others: 1/s x 20 tokens: 0.15 places. Prefill 12 %, KV 1 %.
    Scenario(
        "flood-of-sequences",
        ("scheduler",),
        (Server(max_num_seqs=8),),
        (
            Traffic(0.5, (100, 200), (10, 30), "chat"),
            Traffic(0.5, (100, 200), (10, 30), "search"),
            Traffic(18.0, (200, 400), (80, 120), "crawler", from_s=ONSET_S),
        ),
        tenant="crawler",
    ),
)

_WAITING: Final = (
    # 8 requests at once; 125 tokens x 7.5 ms = 0.94 s: 8.5/s. 15/s: 176 %.
    # A server: prefill 7.5 x 6.5 ms: 5 %; 4 of 256 sequences; KV 1,500 of 390,000.
    Scenario(
        "waiting-for-eight",
        ("waiting",),
        (Server(), Server()),
        (_CALM, Traffic(15.0, (200, 400), (100, 150), from_s=ONSET_S)),
        pool={"max_requests": 8},
    ),
    # 4 requests at once; 200 tokens x 9.95 ms = 2 s: 2/s. 4/s: 200 %. Prefill 4 x 12.7 ms: 5 %.
    Scenario(
        "waiting-two-tenants-unstreamed",
        ("waiting",),
        (Server("70b-8xh100"),),
        (
            _TINY,
            Traffic(2.0, (200, 400), (150, 250), "mail", stream=False, from_s=ONSET_S),
            Traffic(2.0, (200, 400), (150, 250), "search", stream=False, from_s=ONSET_S),
        ),
        pool={"max_requests": 4},
    ),
    # 48 choices of 64 sequences: one request at once, whose 30 tokens x 26.4 ms take 0.8 s: 1.25/s.
    # 2.5/s: 200 %. Prefill, if every choice computes its 24 tokens: 1.25 x 0.2 s: 26 %.
    # KV: 64 x 60 of 400,000. The places are used up too: "scheduler" is as right.
    Scenario(
        "waiting-many-choices",
        ("waiting", "scheduler"),
        (Server("70b-4xa100", max_num_seqs=64),),
        (_TINY, Traffic(2.5, (16, 32), (25, 35), choices=48, from_s=ONSET_S)),
    ),
)

SCENARIOS: Final = _COMPUTE + _MEMORY + _SCHEDULER + _WAITING
