"""What `bench engine` sends: requests in tokens, spelt for a real and for a simulated server."""

from dataclasses import dataclass
from random import Random
from typing import Final

# Numbers of requests are their text: no two loads have one in common.
BURST: Final = 10_000
OPEN: Final = 20_000


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Prompts of the same `group` begin with the same `shared_tokens`."""

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    group: int = -1
    shared_tokens: int = 0

    def words(self) -> list[int]:
        """Its tokens, as numbers below 2**12 that say which are the same."""
        shared, own = Random(f"group {self.group}"), Random(f"request {self.number}")
        head = [shared.randrange(16, 4_000) for _ in range(self.shared_tokens)]
        return head + [own.randrange(16, 4_000) for _ in range(self.prompt_tokens - len(head))]


def ids_of(request: Request) -> list[int]:
    """The prompt for a real server: token ids, so that no tokenizer decides how many."""
    return request.words()


def text_of(request: Request) -> str:
    """The prompt for a simulated one, which counts four bytes a token."""
    return "".join(f"{word:04d}" for word in request.words())


def burst(rng: Random) -> list[Request]:
    return [
        Request(BURST + n, n * 0.002, rng.randint(64, 1_400), rng.randint(16, 400))
        for n in range(64)
    ]


def prefixes(rng: Random) -> list[Request]:
    weights = [1.0 / rank for rank in range(1, 97)]
    groups = rng.choices(range(96), weights, k=240)
    return [
        Request(n, 0.0, 512 + rng.randint(20, 120), 4, group, 512) for n, group in enumerate(groups)
    ]


def poisson(rng: Random, per_s: float, length_s: float) -> list[Request]:
    requests: list[Request] = []
    at_s = rng.expovariate(per_s)
    while at_s < length_s:
        sizes = rng.randint(50, 800), rng.randint(10, 100)
        requests.append(Request(OPEN + len(requests), at_s, *sizes))
        at_s += rng.expovariate(per_s)
    return requests
