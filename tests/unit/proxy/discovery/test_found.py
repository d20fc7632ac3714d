"""Entries of sources: what is taken, what is left out and why, and how backends are named."""

from typing import Any

import pytest

from penstock.proxy.discovery.found import BACKENDS_MAX, Allowed, Entries, entries_of, name_of

ANY = Entries(Allowed([]))
A = "http://10.0.0.1:8000"


def test_an_entry_is_a_url_or_has_the_keys_of_a_backend() -> None:
    told = ANY.found(
        ["http://10.0.0.1:8000", {"name": "b", "url": "http://10.0.0.2:8000/", "weight": 2.0}]
    )
    assert [(each.name, each.url, each.weight) for each in told.backends] == [
        ("10.0.0.1-8000", "http://10.0.0.1:8000", 1.0),
        ("b", "http://10.0.0.2:8000", 2.0),
    ]
    assert not told.faults


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("ftp://10.0.0.1", "must begin with http://"),
        ({"name": "a"}, "must have a url"),
        ({"url": "http://10.0.0.1", "weight": 1e9}, "weight must be at most 1000"),
        ({"url": "http://10.0.0.1", "api_key": "sk-secret"}, "not 'api_key'"),
        ({"url": "http://10.0.0.1", "name": "a b"}, "name must be 1 to 63 letters"),
        (7, "must be a mapping with a url, or a URL"),
        ({"url": 7}, "must have a url, which is text"),
        (None, "must be a mapping with a url, or a URL"),
    ],
)
def test_nonsense_loses_its_own_entry(entry: Any, why: str) -> None:
    told = ANY.found([entry, "http://10.0.0.9:8000"])
    assert [each.name for each in told.backends] == ["10.0.0.9-8000"]
    (fault,) = told.faults
    assert fault.startswith("entry 1 is left out: ")
    assert why in fault
    assert "sk-secret" not in fault


def test_an_address_that_is_told_twice_counts_once() -> None:
    told = ANY.found(["http://10.0.0.1:80", {"url": "http://10.0.0.1:80", "name": "again"}])
    assert [each.name for each in told.backends] == ["10.0.0.1-80"]
    assert not told.faults


def test_a_name_that_two_entries_have_goes_to_the_first() -> None:
    told = ANY.found([{"name": "a", "url": f"http://10.0.0.{n}"} for n in (1, 2)])
    assert [each.url for each in told.backends] == ["http://10.0.0.1"]
    assert "taken" in told.faults[0]


@pytest.mark.parametrize(
    ("networks", "url", "taken"),
    [
        ([], "http://10.0.0.1", True),
        ([], "http://[fd00::1]:8000", True),
        ([], "http://127.0.0.1", False),
        ([], "http://[::1]", False),
        ([], "http://0.0.0.0", False),
        ([], "http://localhost:8000", False),
        ([], "http://169.254.169.254", False),
        ([], "http://[fe80::1]", False),
        ([], "http://vllm-0.vllm", True),
        (["10.0.0.0/8"], "http://10.200.0.1", True),
        (["10.0.0.0/8"], "http://192.168.0.1", False),
        (["127.0.0.0/8"], "http://127.0.0.1", True),
        (["127.0.0.0/8"], "http://localhost", True),
        ([], "http://127.1", False),
        ([], "http://2130706433", False),
        ([], "http://0x7f000001", False),
        ([], "http://[::ffff:127.0.0.1]", False),
        ([], "http://[::ffff:169.254.169.254]", False),
        ([], "http://localhost.:8000", False),
    ],
)
def test_which_addresses_are_taken(networks: list[str], url: str, taken: bool) -> None:
    assert bool(Entries(Allowed(networks)).found([url]).backends) is taken


def test_the_url_of_an_exporter_is_judged_too() -> None:
    entry = {"url": "http://10.0.0.1", "gpu_metrics_url": "http://169.254.169.254/latest"}
    assert "link-local" in ANY.found([entry]).faults[0]


def test_names_that_no_person_gave_have_the_prefix_of_their_pool() -> None:
    told = Entries(Allowed([]), "chat.").found([A, {"name": "gpu-7", "url": "http://10.0.0.7"}])
    assert [each.name for each in told.backends] == ["chat.10.0.0.1-8000", "gpu-7"]


def test_names_are_bounded_and_stay_apart() -> None:
    long = [f"http://{'a' * 60}{n}.example.com:8000" for n in range(2)]
    names = [name_of(url) for url in long]
    assert len(set(names)) == 2
    assert all(len(each) <= 63 for each in names)
    assert name_of("http://[fd00::1]:8000/llama") == "fd00-1-8000-llama"


def test_there_may_be_as_many_as_a_pool_may_list() -> None:
    told = ANY.found([f"http://10.0.{n // 250}.{n % 250}:80" for n in range(BACKENDS_MAX + 2)])
    assert len(told.backends) == BACKENDS_MAX
    assert told.faults == (f"there are more than {BACKENDS_MAX:,} entries: the rest is left out",)


def test_the_form_of_prometheus() -> None:
    listed = [
        {"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": {"job": "vllm"}},
        {"targets": ["10.0.0.3:8443"], "labels": {"__scheme__": "https"}},
    ]
    assert list(entries_of(listed)) == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "https://10.0.0.3:8443",
    ]
    assert list(entries_of({"backends": ["http://10.0.0.1"]})) == ["http://10.0.0.1"]


@pytest.mark.parametrize("listed", [None, "http://10.0.0.1", {"pools": []}, 7])
def test_what_is_no_list(listed: object) -> None:
    with pytest.raises(ValueError, match="must be a list of backends"):
        list(entries_of(listed))
