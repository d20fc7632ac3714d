"""Mutated requests through the real classes, judged by the referees: `make fuzz`."""

import argparse
import time
from collections import Counter

from tests.http.agreement import Agreement, Disagreement
from tests.http.mutator import Mutator
from tests.http.rig import Rig


def run(requests: int, seed: int) -> Counter[str]:
    """Play so many mutated requests. Raises Disagreement with the first that is read twice."""
    mutator = Mutator(seed)
    agreement = Agreement()
    rig = Rig()
    try:
        for number in range(requests):
            data = mutator.next()
            client, upstream = rig.play(mutator.pieces(data))
            try:
                agreement.check(data, client, upstream)
            except Disagreement as error:
                raise Disagreement(f"seed {seed}, request {number}: {data!r}: {error}") from None
    finally:
        rig.close()
    return agreement.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    for name, count in run(asked.requests, asked.seed).items():
        print(f"{count:8} {name}")
    print("       0 read differently by penstock and a referee")


if __name__ == "__main__":
    main()
