"""`penstock bench decision`: what one choice costs, from the body to the lease, and remembers.

The worst case of its kind: every backend has work, and another part of the prompt in its cache.
`read` is the peek: the body as JSON, its tokens estimated, its blocks hashed. `choose` is the gate:
eligible backends, their costs, the lease. Medians of wall time on one core.
"""

import argparse
import json
import shlex
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter
from typing import Final

from balancing import gate as compiled_or_not
from balancing.ask import Ask
from balancing.backend import Backend, State
from balancing.fleet import Fleet, Pool
from balancing.gate import Gate
from balancing.lease import Lease
from balancing.output_length import OutputLength
from balancing.peek import peek
from balancing.policies import POLICIES
from balancing.prefix_index import BLOCKS_PRIOR, PrefixIndex
from balancing.prompt_blocks import prompt_blocks
from balancing.tokens import TokenEstimator
from bench.arguments import count

PATH: Final = "/v1/chat/completions"
ROUNDS: Final = 500
# English prose has about four bytes a token.
BYTES_PER_TOKEN: Final = 4
WORDS: Final = 5_000


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    print(f"$ {shlex.join(['penstock', 'bench', 'decision', *argv])}\n")
    rng = Random(1)
    body = _body(options.tokens, rng)
    print("| backends | prompt, KB | blocks | read, us | choose, us | all, us |")
    print("|---:|---:|---:|---:|---:|---:|")
    for backends in options.backends:
        print(_row(body, backends, rng))
    built = "interpreted" if str(compiled_or_not.__file__).endswith(".py") else "compiled"
    print(f"\n{built}; medians of {ROUNDS}, CPython {sys.version.split()[0]}")
    print(f"hashing a prompt of 220 KB: {_hashing(rng):.0f} us")
    print(f"a backend whose cache holds 400,000 tokens: {_index_bytes(rng) / 1024:.0f} KiB at most")
    return 0


def _row(body: bytes, backends: int, rng: Random) -> str:
    estimator, outputs = TokenEstimator(), OutputLength()

    def read() -> Ask:
        return peek(PATH, [], body, estimator, prefixes=True, outputs=outputs)

    ask = read()
    fleet = _fleet(ask, backends, rng)
    gate = Gate(lambda: fleet, rng)
    steps: tuple[Callable[[], Lease | Ask], ...] = (
        read,
        lambda: gate.choose(ask, 1.0),
        lambda: gate.choose(read(), 1.0),
    )
    shown = " | ".join(f"{_median_us(step):.0f}" for step in steps)
    return f"| {backends:,} | {len(body) / 1e3:.0f} | {len(ask.blocks)} | {shown} |"


def _fleet(ask: Ask, count: int, rng: Random) -> Fleet:
    """Backends with two streams or prompts each and a part of the prompt in their caches."""
    backends = []
    for number in range(count):
        backend = Backend(f"b{number}", "")
        backend.state = State.READY
        for _ in range(2):
            lease = Lease(backend, Ask(PATH, prompt_tokens=rng.randint(10, 5_000)), 0.0)
            if rng.random() < 0.5:
                lease.assume_prefilled(0.0)
        backend.cache.index.use(ask.blocks[: rng.randrange(len(ask.blocks))])
        backends.append(backend)
    return Fleet((Pool("p", tuple(backends), POLICIES["token_cost"](backends)),))


def _median_us(step: Callable[[], Lease | Ask]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        made = step()
        times.append(perf_counter() - began)
        if isinstance(made, Lease):
            made.end(1.0)
    return 1e6 * statistics.median(times)


def _hashing(rng: Random) -> float:
    text = json.dumps(_text(220_000, rng)).encode()
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        prompt_blocks(b"", text)
        times.append(perf_counter() - began)
    return 1e6 * statistics.median(times)


def _index_bytes(rng: Random) -> int:
    """Memory of a full index, both generations, none of its blocks known to another one."""
    tracemalloc.start()
    index = PrefixIndex()
    for _ in range(2 * BLOCKS_PRIOR // 10):
        index.use(tuple([rng.getrandbits(64) for _ in range(10)]))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


def _body(tokens: int, rng: Random) -> bytes:
    """As the OpenAI SDK writes it: a system prompt of a quarter, then the user's."""
    size = tokens * BYTES_PER_TOKEN
    messages = [
        {"role": "system", "content": _text(size // 4, rng)},
        {"role": "user", "content": _text(size * 3 // 4, rng)},
    ]
    body = {"model": "m", "messages": messages, "stream": True}
    return json.dumps(body, separators=(",", ":")).encode()


def _text(size: int, rng: Random) -> str:
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(WORDS)]
    return " ".join(rng.choices(words, k=size // 5))[:size]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench decision", description="What one choice of token_cost costs."
    )
    add = parser.add_argument
    add("--backends", type=_counts, default="1,8,64,1000", metavar="N,…", help="how many")
    add("--tokens", type=count, default=16_000, metavar="N", help="of the prompt (default 16000)")
    return parser


def _counts(text: str) -> list[int]:
    return [count(each) for each in text.split(",")]
