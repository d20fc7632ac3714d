"""The client of the admin port: which URLs it takes, and that it shows no password."""

import pytest

from penstock.proxy.commands.admin_client import AdminClient, AdminError


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("h:1", "http://h:1"),
        ("https://h", "https://h"),
        ("http://user:pa@h:1", "http://h:1"),
        ("http://user:12/34@h:1", "http://h:1"),
        ("http://user:12?a//b@h:1/", "http://h:1"),
    ],
)
def test_a_password_in_the_url_is_left_out(url: str, asked: str) -> None:
    assert AdminClient(url, None).url == asked


def test_an_error_shows_no_password() -> None:
    with pytest.raises(AdminError) as refused:
        AdminClient("http://user:pa/ss@h:x", None)
    assert "ss" not in str(refused.value)
