"""Which tenant is named beside a cause."""

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.verdict.cause import Finding, Kind
from penstock.balancing.verdict.words import words
from tests.unit.balancing.verdict.pools import PREFILLS, backend, found, queue

# What is found, and whose | what is lacked | waiting, served and given, by tenant. "hot": all of
# it waits for one of two backends.
CASES = """
the lack of prefill is its own | compute flood | PROMPTS
    | flood=9 app=1 | flood=5 app=2 | flood=900 app=100
the full cache is its own | memory flood | KV_CACHE
    | flood=9 app=1 | flood=5 app=2 | flood=900 app=100
the streams are its own | scheduler flood | SEQUENCES
    | flood=9 app=1 | flood=5 app=2 | flood=900 app=100
a moment without requests of others | compute flood | PROMPTS
    | flood=10 | flood=5 | flood=900 app=100
others wait, too | compute | PROMPTS
    | flood=6 app=4 | flood=5 app=2 web=1 | flood=40 app=30 web=30
no other is served | compute | PROMPTS | flood=10 | flood=5 | flood=900
no tenant | compute | PROMPTS | =10 | =5 app=1 |
it takes all places of a limit | waiting flood | REQUESTS
    | flood=9 app=1 | flood=5 app=2 | flood=900 app=100
it takes all places for choices | waiting flood | CHOICES
    | flood=9 app=1 | flood=5 app=2 | flood=900 app=100
slow readers hold 11 of 12 places, and take next to no tokens | waiting hog | REQUESTS
    | victim=10 | hog=11 victim=1 | hog=150 victim=850
bystanders were served lately, and hold none | waiting hog | REQUESTS
    | victim=10 | hog=11 victim=1 | hog=150 victim=850 a=500 b=500 c=500 d=500 e=500 f=500 g=500
it has the most elsewhere | uneven | PROMPTS hot
    | pinned=5 other=1 | pinned=10 big=30 | pinned=200 big=800
all that waits for the hot one is its own | uneven flood | PROMPTS hot
    | flood=9 app=1 | flood=5 app=2 | flood=900 app=100
it takes hardly more than the next one | memory | KV_CACHE
    | hog=5 victim=5 | hog=4 victim=4 | hog=520 victim=480
it takes more than the next one | memory hog | KV_CACHE
    | hog=5 victim=5 | hog=4 victim=4 | hog=640 victim=360
four long streams hold the cache, and another tenant waits | memory hog | KV_CACHE
    | victim=10 | hog=4 victim=1 | hog=850 victim=150
""".replace("\n    |", " |")


def counts(text: str) -> dict[str, float]:
    pairs = (word.split("=") for word in text.split())
    return {name: float(count) for name, count in pairs}


def found_of(row: str) -> tuple[Finding, str, str]:
    """What is found, and what is to be."""
    _, wanted, lack, waiting, served, given = (part.strip() for part in row.split("|"))
    reason, _, hot = lack.partition(" ")
    kind, _, tenant = wanted.partition(" ")
    backends = [backend("a", backlog_s=3.0, wanted=9), backend("b")] if hot else [backend()]
    if reason == "KV_CACHE":
        backends = [backend(kv_usage=0.97)]
    finding = found(
        *backends,
        per_s=PREFILLS if reason in ("PROMPTS", "KV_CACHE") and not hot else {},
        waiting_by_tenant=counts(waiting),
        served_by_tenant=counts(served),
        given_by_tenant=counts(given),
        **queue(WaitReason[reason]),
    )
    return finding, kind, tenant


@pytest.mark.parametrize("row", CASES.strip().splitlines(), ids=lambda row: row.partition(" |")[0])
def test_who_is_named(row: str) -> None:
    """Beside what it used up, and in what to do. Who only waits for it is not named."""
    finding, kind, tenant = found_of(row)
    assert (finding.kind, finding.tenant) == (kind, tenant)
    sentence, to_do = words(finding)
    if tenant:
        assert f"tenant {tenant}" in sentence
        assert tenant in to_do[0]
        assert "victim" not in sentence
    if kind == "uneven":
        assert finding.backend == "a"
    if tenant == "hog" and kind == "waiting":
        assert finding.role == "holds"
        assert sentence.endswith("Most of the requests under way are of tenant hog.")


@pytest.mark.parametrize(("slow", "named"), [({"radio": 8}, "radio"), ({"radio": 4, "web": 4}, "")])
def test_whose_clients_do_not_read(slow: dict[str, int], named: str) -> None:
    finding = found(backend(), clients=10, slow_clients=8, slow_by_tenant=slow)
    assert (finding.kind, finding.tenant) == (Kind.CLIENT, named)
    assert ("tenant radio" in words(finding)[0]) is bool(named)
