"""Who may ask the admin port: the cookie of our own page, and who sees names in the metrics."""

from types import SimpleNamespace

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict, CIMultiDictProxy

from penstock.conf.settings import AdminSettings
from penstock.proxy.admin.guard import (
    Guard,
    cookie_of,
    from_own_page,
    from_program,
    host_of,
    port_of,
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("penstock_9321=abc", "abc"),
        ('other=1; penstock_9321="abc"; more=2', "abc"),
        ("penstock_9321=abc;penstock_9322=def", "abc"),
        ("xpenstock_9321=abc", ""),
        ("penstock_932=abc", ""),
        (";" * 4_000, ""),
        ("", ""),
    ],
)
def test_the_cookie_is_found_by_its_name(line: str, found: str) -> None:
    request = make_mocked_request("GET", "/", headers={"Host": "localhost:9321", "Cookie": line})
    assert cookie_of(request) == found


def sees_names(admin: dict[str, str], headers: dict[str, str]) -> bool:
    settings = SimpleNamespace(admin=AdminSettings.model_validate(admin))
    guard = Guard(SimpleNamespace(settings=settings, now=lambda: 0.0))  # type: ignore[arg-type]
    return guard.sees_names(make_mocked_request("GET", "/metrics", headers=headers))


@pytest.mark.parametrize("host", ["localhost:9321", "127.0.0.1", "127.8.8.8:1", "[::1]:9321"])
def test_without_a_token_programs_of_this_machine_see_names(host: str) -> None:
    assert sees_names({}, {"Host": host})
    assert sees_names({"metrics_token": "m" * 16}, {"Host": host, "Authorization": "Bearer x"})


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example:9321"},
        {"Host": "127.0.0.1.rebound.example"},
        {"Host": "localhost:9321", "Sec-Fetch-Site": "cross-site"},
        {"Host": "localhost:9321", "Sec-Fetch-Site": "same-site"},
        {"Host": "localhost:9321", "Origin": "http://rebound.example"},
        {},
    ],
)
def test_without_a_token_other_web_pages_do_not(headers: dict[str, str]) -> None:
    assert not sees_names({}, headers)


def test_where_there_is_a_token_it_is_needed_on_loopback_too() -> None:
    admin = {"token": "a" * 16, "view_token": "v" * 16, "metrics_token": "m" * 16}
    local = {"Host": "localhost"}
    assert not sees_names(admin, local)
    assert not sees_names(admin, local | {"Authorization": "Bearer wrong"})
    for token in admin.values():
        assert sees_names(admin, {"Host": "elsewhere", "Authorization": f"Bearer {token}"})


HOST = "127.0.0.1:9321"
OWN = f"http://{HOST}"


def headers(*fields: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict([("Host", HOST), *fields]))


PAGE = ("X-Penstock-Page", "1")


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ([("Origin", OWN), PAGE], True),
        ([("Origin", OWN), PAGE, ("Sec-Fetch-Site", "same-origin")], True),
        ([("Origin", f"https://{HOST}"), PAGE], True),  # TLS ends before us
        ([("Origin", OWN)], False),  # a form: it can send no header
        ([PAGE], False),
        ([("Origin", OWN), PAGE, ("Sec-Fetch-Site", "same-site")], False),
        ([("Origin", OWN), PAGE, ("Sec-Fetch-Site", "cross-site")], False),
        ([("Origin", "http://127.0.0.1:8888"), PAGE], False),  # another page on this machine
        ([("Origin", "http://localhost:9321"), PAGE], False),
        ([("Origin", "http://127.0.0.1"), PAGE], False),
        ([("Origin", "https://evil.example"), PAGE], False),
        ([("Origin", "null"), PAGE], False),
        ([("Origin", ""), PAGE], False),
        ([("Origin", OWN), ("Origin", "https://evil.example"), PAGE], False),
        ([("Origin", f"{OWN}.evil.example"), PAGE], False),
        ([("Origin", OWN), ("X-Penstock-Page", "0")], False),
    ],
)
def test_a_change_is_our_pages_or_nobodys(fields: list[tuple[str, str]], own: bool) -> None:
    assert from_own_page("POST", headers(*fields)) is own
    assert from_own_page("DELETE", headers(*fields)) is own


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ([], True),
        ([("Sec-Fetch-Site", "same-origin")], True),
        ([("Sec-Fetch-Site", "none")], True),  # the user typed the address
        ([("Sec-Fetch-Site", "cross-site")], False),  # <img> of another page
        ([("Sec-Fetch-Site", "same-site")], False),
        ([("Origin", "https://evil.example")], False),
        ([("Origin", OWN), PAGE], False),
    ],
)
def test_a_read_has_no_origin(fields: list[tuple[str, str]], own: bool) -> None:
    assert from_own_page("GET", headers(*fields)) is own


def test_programs_send_nothing_of_it() -> None:
    assert from_program(headers())
    assert from_program(headers(PAGE))
    assert not from_program(headers(("Origin", OWN)))
    assert not from_program(headers(("Sec-Fetch-Site", "cross-site")))


@pytest.mark.parametrize(
    ("host", "name", "port"),
    [
        ("127.0.0.1:9321", "127.0.0.1", "9321"),
        ("localhost", "localhost", ""),
        ("[::1]:9321", "::1", "9321"),
        ("[::1]", "::1", ""),
        ("evil.example:80x", "evil.example", ""),
        ("", "", ""),
    ],
)
def test_the_parts_of_a_host(host: str, name: str, port: str) -> None:
    assert host_of({"host": host}) == name
    assert port_of({"host": host}) == port
