"""Which pages of a browser may ask: our own, and no other."""

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from penstock.proxy.admin.guard import from_own_page, from_program, host_of, port_of

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
