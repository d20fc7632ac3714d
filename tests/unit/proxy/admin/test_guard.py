"""Who may ask the admin port: the cookie of our own page, and who sees names in the metrics."""

from types import SimpleNamespace

import pytest
from aiohttp.test_utils import make_mocked_request

from penstock.conf.settings import AdminSettings
from penstock.proxy.admin.guard import Guard, cookie_of


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
