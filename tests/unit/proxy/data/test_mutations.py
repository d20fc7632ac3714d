"""Mutated requests, read by penstock's classes and by two referees: a short run of `make fuzz`."""

from tests.http.fuzz import run
from tests.http.mutator import SEEDS
from tests.http.rig import Rig

REQUESTS = 2_000


def test_penstock_and_the_referees_read_the_same() -> None:
    counts = run(REQUESTS, seed=20)
    assert counts["sent"] == REQUESTS
    assert counts["requests forwarded"] > REQUESTS / 10  # else it proves nothing
    # It knows methods by name, of the request ahead too.
    assert counts["of these refused by llhttp alone"] < counts["with a request forwarded"] / 50
    assert not counts["of these refused by h11 alone"]


def test_every_seed_is_forwarded_as_it_is() -> None:
    """Also in single bytes; only what follows chunks in the same read is not."""
    rig = Rig()
    for seed in SEEDS:
        _, upstream = rig.play([seed])
        singly = [bytes([byte]) for byte in seed]
        _, as_bytes = rig.play(singly)
        assert upstream
        assert len(as_bytes) >= len(upstream)
