"""What a name stands for, when it is asked for again, and which failures keep the last list."""

import pytest

from penstock.proxy.discovery.dns_source import (
    LEAST_S,
    MOST_S,
    RETRY_S,
    DnsSource,
    Records,
    Unanswered,
)
from penstock.proxy.discovery.found import Allowed, Entries, Found, Unusable


class Zone:
    """A resolver with these records. An exception in place of them is raised."""

    def __init__(self, **records: Records | Unanswered) -> None:
        self.records = records
        self.asked: list[tuple[str, str]] = []

    async def ask(self, name: str, kind: str) -> Records:
        self.asked.append((name, kind))
        told = self.records.get(kind, Records())
        if isinstance(told, Unanswered):
            raise told
        return told


async def urls(source: DnsSource) -> list[str]:
    told, _ = await source.look()
    assert isinstance(told, Found), told
    return [each.url for each in told.backends]


ANY = Entries(Allowed([]))
BOTH = {"A": Records(("10.0.0.1", "10.0.0.2"), 5.0), "AAAA": Records(("fd00::1",), 7.0)}


async def test_every_address_is_a_backend() -> None:
    zone = Zone(**BOTH)
    source = DnsSource("vllm.llm:8000", ANY, zone)
    assert await urls(source) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert zone.asked == [("vllm.llm", "A")]


async def test_a_name_without_addresses_of_ipv4_has_those_of_ipv6() -> None:
    zone = Zone(AAAA=BOTH["AAAA"])
    assert await urls(DnsSource("vllm.llm:8000", ANY, zone)) == ["http://[fd00::1]:8000"]


async def test_srv_records_have_ports_of_their_own() -> None:
    zone = Zone(SRV=Records(("pod-0.vllm.llm:8000", "pod-1.vllm.llm:8001"), 5.0))
    source = DnsSource("https://_http._tcp.vllm.llm", ANY, zone)
    assert await urls(source) == ["https://pod-0.vllm.llm:8000", "https://pod-1.vllm.llm:8001"]
    assert zone.asked == [("_http._tcp.vllm.llm", "SRV")]


@pytest.mark.parametrize(("ttl_s", "rest_s"), [(0.0, LEAST_S), (5.0, 5.0), (3_600.0, MOST_S)])
async def test_a_name_is_asked_for_again_when_its_answer_is_no_longer_valid(
    ttl_s: float, rest_s: float
) -> None:
    source = DnsSource("a:1", ANY, Zone(A=Records(("10.0.0.1",), ttl_s)))
    assert (await source.look())[1] == rest_s


async def test_a_name_that_is_gone_tells_an_empty_list_which_is_not_whole() -> None:
    told, rest_s = await DnsSource("a:1", ANY, Zone()).look()
    assert isinstance(told, Found)
    assert (told.backends, told.whole, rest_s) == ((), False, LEAST_S)


async def test_a_question_that_fails_tells_why() -> None:
    told, rest_s = await DnsSource("a:1", ANY, Zone(A=Unanswered("SERVFAIL"))).look()
    assert isinstance(told, Unusable)
    assert str(told) == "a is not resolved: SERVFAIL"
    assert rest_s == RETRY_S


async def test_addresses_that_may_not_be_are_left_out() -> None:
    zone = Zone(A=Records(("10.0.0.1", "169.254.169.254"), 5.0))
    assert await urls(DnsSource("a:1", ANY, zone)) == ["http://10.0.0.1:1"]
