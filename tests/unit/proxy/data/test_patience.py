"""How long a client will wait, read from its headers."""

from math import inf

import pytest

from penstock.proxy.data.request import Patience, hint_of, margin_s, patience
from penstock.proxy.errors.backend import (
    ClientOutOfTime,
    OutOfTime,
    StreamOutOfClientTime,
    StreamOutOfTime,
)
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import parse_response_head


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ([], (0.0, 0.0)),
        ([(b"x-request-timeout", b"30")], (0.0, 30.0)),
        ([(b"x-request-timeout", b"0.25")], (0.0, 0.25)),
        ([(b"x-stainless-read-timeout", b"600")], (600.0, 0.0)),
        ([(b"x-stainless-timeout", b"600"), (b"x-stainless-read-timeout", b"9.5")], (9.5, 0.0)),
        ([(b"x-request-timeout", b"9"), (b"x-request-timeout", b"7")], (0.0, 7.0)),
        ([(b"x-request-timeout", b"9"), (b"x-request-timeout", b"odd")], (0.0, 9.0)),
        ([(b"x-stainless-read-timeout", b"5"), (b"x-request-timeout", b"20")], (5.0, 20.0)),
    ],
)
def test_what_clients_say(headers: Headers, wanted: tuple[float, float]) -> None:
    assert patience(headers) == wanted


@pytest.mark.parametrize(
    "value",
    b"|0|0.0|-1|+1|1e3|nan|inf|1_0|86401|9999999|1.|.5|1,5| 5|NOT_GIVEN|None|\xd9\xa1".split(b"|"),
)
def test_what_is_no_time_says_nothing(value: bytes) -> None:
    assert patience([(b"x-request-timeout", value)]) == (0.0, 0.0)
    assert patience([(b"x-stainless-timeout", value)]) == (0.0, 0.0)


def test_a_day_is_the_most() -> None:
    assert patience([(b"x-request-timeout", b"86400")]) == (0.0, 86_400.0)


@pytest.mark.parametrize(
    ("line", "hint_s"),
    [
        (b"", 0.0),
        (b"\r\nretry-after: 7", 7.0),
        (b"\r\nRetry-After: soon", 0.0),
        (b"\r\nretry-after: Fri, 31 Dec 2027 23:59:59 GMT", 0.0),
    ],
)
def test_what_a_backend_asks_for(line: bytes, hint_s: float) -> None:
    head = parse_response_head(b"HTTP/1.1 503 Busy\r\ncontent-length: 0" + line)
    assert hint_of(head) == hint_s


@pytest.mark.parametrize(("wait_s", "beyond_s"), [(0.1, 0.2), (10.0, 0.5), (600.0, 2.0)])
def test_the_clients_own_timer_comes_first(wait_s: float, beyond_s: float) -> None:
    assert margin_s(wait_s) == pytest.approx(beyond_s)
    for name in (b"x-request-timeout", b"x-stainless-read-timeout"):
        mine = Patience([(name, b"%f" % wait_s)], 100.0, None)
        assert mine.next_s(started=False) == pytest.approx(100.0 + wait_s + beyond_s)
        assert mine.over(100.0 + wait_s + beyond_s - 0.01, started=False) is None
        over = mine.over(100.0 + wait_s + beyond_s + 0.01, started=False)
        assert isinstance(over, ClientOutOfTime)
        assert over.headers == [(b"x-should-retry", b"false")]


def test_whose_time_is_over() -> None:
    clients = Patience([(b"x-request-timeout", b"10")], 0.0, None)
    assert isinstance(clients.over(11.0, started=True, committed=True), StreamOutOfClientTime)
    silence = Patience([(b"x-stainless-timeout", b"10")], 0.0, None)
    assert silence.over(11.0, started=True) is None
    assert silence.next_s(started=True) == inf
    ours = Patience([], 0.0, 10.0)
    assert type(ours.over(10.0, started=False)) is OutOfTime
    assert type(ours.over(10.0, started=True, committed=True)) is StreamOutOfTime
    assert Patience([], 0.0, None).next_s(started=False) == inf
