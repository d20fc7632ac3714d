"""The cookie of our own page, among those that a browser sends."""

import pytest
from aiohttp.test_utils import make_mocked_request

from penstock.proxy.admin.guard import cookie_of


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
