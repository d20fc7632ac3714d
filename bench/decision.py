"""`penstock bench decision`: what one choice costs, from the body to the lease, and remembers.

The worst case of its kind: every backend has work, and another part of the prompt in its cache.
`read`: the body as JSON, its tokens estimated, its blocks hashed. `choose`: eligible backends,
their costs, the lease. Medians of wall time on one core.
"""

import json
import platform
import statistics
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from random import Random
from time import perf_counter
from typing import Final

from penstock.balancing import gate as compiled_or_not
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.balancing.policies import POLICIES
from penstock.balancing.prefix_cache.blocks import prompt_blocks
from penstock.balancing.prefix_cache.cache import BLOCKS_PRIOR, PrefixIndex
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import TokenEstimator
from penstock.bench.arguments import count, listed, option
from penstock.bench.report import head, row

PATH: Final = "/v1/chat/completions"
ROUNDS: Final = 500
# English prose has about four bytes a token.
BYTES_PER_TOKEN: Final = 4
WORDS: Final = 5_000


def run(options: Namespace) -> int:
    """Print the table; returns the exit status."""
    rng = Random(1)
    body = _body(options.tokens, rng)
    print(head("backends", "prompt, KB", "blocks", "read, us", "choose, us", "all, us"))
    for backends in options.backends:
        print(_row(body, backends, rng))
    print(f"\n{built()}; medians of {ROUNDS}")
    text = json.dumps(_text(220_000, rng)).encode()
    hashing_us = _median_us(lambda: prompt_blocks(b"", text))
    print(f"hashing a prompt of 220 KB: {hashing_us:.0f} us")
    print(f"a backend whose cache holds 400,000 tokens: {_index_bytes(rng) / 1024:.0f} KiB at most")
    return 0


def built() -> str:
    """How the code that decides was built, and what runs it."""
    how = "interpreted" if str(compiled_or_not.__file__).endswith(".py") else "compiled"
    return f"{how}, CPython {platform.python_version()}"


def _row(body: bytes, backends: int, rng: Random) -> str:
    reader = Reader(TokenEstimator(), outputs=OutputLength(), prefixes=True)

    def read() -> Ask:
        return reader.read(PATH, [], body, GENERATION)

    ask = read()
    fleet = _fleet(ask, backends, rng)
    gate = Gate(lambda: fleet, rng)
    steps = (read, lambda: gate.choose(ask, 1.0), lambda: gate.choose(read(), 1.0))
    shown = [f"{_median_us(step):.0f}" for step in steps]
    return row(f"{backends:,}", f"{len(body) / 1e3:.0f}", len(ask.blocks), *shown)


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


def _median_us(step: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        made = step()
        times.append(perf_counter() - began)
        if isinstance(made, Lease):
            made.end(1.0)
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


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--backends N,…", listed(count), "1,8,64,1000", "how many")
    option(parser, "--tokens N", count, 16_000, "of the prompt")
