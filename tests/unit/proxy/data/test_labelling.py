"""Requests that wait for a label, line by line: b9 is the classifier."""

import ssl
from typing import Any, Final

import orjson
import pytest

from penstock.balancing.labels import AT_ONCE_OF_ONE, HELD_UP_S, IN_A_ROW
from penstock.conf.settings import Settings
from penstock.proxy.data.labelling import SILENT_S
from tests.unit.proxy.data.playbook import REFUSED, Client, Play, chat, get, plain, post, text

DEADLINE_S: Final = 0.1
ROUTES: Final[list[dict[str, Any]]] = [
    {
        "name": "streams",
        "match": {"stream": True, "needs": "tools"},
        "to": [{"pool": "p", "model": "tools"}],
    },
    {"name": "simple", "match": {"label": "simple"}, "to": [{"pool": "p", "model": "small"}]},
    {"name": "rest", "to": [{"pool": "p", "model": "large"}]},
    {"name": "late", "match": {"label": "late"}, "to": [{"pool": "p", "model": "never"}]},
]
CLASSIFIER: Final = {"url": "http://10.0.0.9:1/classify", "cache_entries": 100}


def settings(**changes: Any) -> dict[str, Any]:
    return {"routes": ROUTES, "classifier": CLASSIFIER} | changes


@pytest.fixture
def play() -> Play:
    return Play(1, **settings())


def asks(play: Play, content: str = "Hi", client: Client | None = None) -> None:
    client = client or play.client
    client.sends(chat(stream=False, content=content))


def says(play: Play, label: str) -> None:
    """The classifier answers."""
    play["b9"].sends(plain("200 OK", orjson.dumps({"label": label})))


def served(play: Play, client: Client | None = None) -> str:
    """The model that was asked, which answers."""
    model: str = orjson.loads(play["b1"].body).get("model", "")
    play["b1"].sends(text("ok"))
    play.passes(0.05)
    return model


def results(play: Play) -> dict[str, int]:
    return {labels[0]: count for labels, count in play.metrics.labels.items()}


def test_what_was_said_is_remembered_and_its_connection_kept(play: Play) -> None:
    asks(play)
    assert play.happened() == ["b9 dialed", "b9 got POST"]
    assert play["b9"].head.startswith(b"POST /classify HTTP/1.1\r\nhost: 10.0.0.9:1\r\n")
    assert play["b9"].body == b'{"text":"Hi"}'
    says(play, "simple")
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    assert served(play) == "small"
    play.happened()
    asks(play)
    assert "b9" not in " ".join(play.happened())
    assert served(play) == "small"
    asks(play, "Another")
    lines = play.happened()
    assert "b9 got POST" in lines
    assert "b9 dialed" not in lines
    says(play, "hard")
    assert served(play) == "large"
    assert results(play) == {"asked": 2, "cached": 1}


def test_a_label_that_no_route_names_is_remembered_too(play: Play) -> None:
    for _ in range(2):
        asks(play)
        if "b9 got POST" in play.happened():
            says(play, "anything")
        assert served(play) == "large"
    assert results(play) == {"asked": 1, "cached": 1}


@pytest.mark.parametrize(
    "answer",
    [
        plain("500 Internal Server Error", b'{"label":"simple"}'),
        plain("204 No Content"),
        plain("200 OK", b'{"label":7}'),
        plain("200 OK", b"garbage"),
        plain("200 OK", b'{"label":"simple"}' + b" " * 5_000),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1001\r\n" + b" " * 4_097,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\0" * 70_000,
        None,  # a dial that is refused
    ],
)
def test_garbage_is_no_label(play: Play, answer: bytes | None) -> None:
    play.down = {} if answer else {"b9": REFUSED}
    asks(play)
    if answer:
        play["b9"].sends(answer)
    assert served(play) == "large"
    assert results(play) == {"failed": 1}


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n", b"HTT"])
def test_a_hung_one_costs_its_deadline(play: Play, begun: bytes) -> None:
    asks(play)
    if begun:
        play["b9"].sends(begun)
    assert play.after(DEADLINE_S - 0.02) == ["b9 dialed", "b9 got POST"]
    play.passes(0.04)
    assert play.happened()[:2] == ["b9 dropped", "b1 dialed"]
    assert served(play) == "large"
    assert results(play) == {"failed": 1}


def test_a_late_answer_is_nobodys(play: Play) -> None:
    asks(play)
    late = play["b9"]
    play.passes(DEADLINE_S + 0.05)
    assert served(play) == "large"
    late.protocol.data_received(plain("200 OK", b'{"label":"simple"}'))
    asks(play)
    says(play, "hard")
    assert served(play) == "large"


def fails_in_a_row(play: Play) -> None:
    for number in range(IN_A_ROW):
        asks(play, f"q{number}")
        play.passes(DEADLINE_S + 0.05)
        served(play)


def test_why_it_fails_is_told_once_a_minute(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    fails_in_a_row(play)
    told = "the classifier fails, requests have no labels reason=timeout"
    assert caplog.messages == [told]
    for wait_s, times in ((HELD_UP_S, 1), (SILENT_S, 2)):
        play.passes(wait_s)
        asks(play, f"after {wait_s}")
        play.passes(DEADLINE_S + 0.05)
        served(play)
        assert caplog.messages == [told] * times


def test_a_hung_one_is_left_alone_and_then_tried_by_one(play: Play) -> None:
    fails_in_a_row(play)
    play.happened()
    asks(play, "next")
    assert "b9 dialed" not in play.happened()
    assert served(play) == "large"
    play.passes(HELD_UP_S)
    others = [play.connects() for _ in range(3)]
    asks(play, "tries")
    for number, other in enumerate(others):
        asks(play, f"other{number}", other)
    assert play.happened().count("b9 got POST") == 1
    says(play, "simple")
    play.turns()
    asks(play, "again", play.connects())
    assert play.happened().count("b9 got POST") == 1
    assert results(play) == {"failed": IN_A_ROW, "skipped": 4, "asked": 1}


def test_so_many_of_one_client_wait_and_the_rest_goes_on_at_once(play: Play) -> None:
    clients = [play.connects() for _ in range(AT_ONCE_OF_ONE + 3)]
    for number, client in enumerate(clients):
        asks(play, f"q{number}", client)
    lines = play.happened()
    assert lines.count("b9 got POST") == AT_ONCE_OF_ONE
    assert lines.count("b1 got POST") == 3
    play.passes(0.2)


def test_who_leaves_reaches_no_backend_and_the_question_goes_on(play: Play) -> None:
    asks(play)
    play.client.closes()
    assert "b9 dropped" not in play.happened()
    says(play, "simple")
    lines = play.happened()
    assert "b1 dialed" not in lines
    assert results(play) == {"asked": 1}
    asks(play, client=play.connects())
    assert results(play) == {"asked": 1, "cached": 1}


def test_it_is_asked_only_if_its_label_decides(play: Play) -> None:
    tools = '"tools":[{"type":"function"}]'
    play.client.sends(chat(tools))
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    assert play.model("b1") == "tools"
    assert results(play) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier": None, "routes": ROUTES[2:3]},
        {"routes": ROUTES[:1] + ROUTES[2:]},  # that route is never reached
        {"routes": ROUTES[2:3]},
        {"routes": []},
    ],
)
def test_without_a_use_it_is_never_asked(changes: dict[str, Any]) -> None:
    play = Play(1, **settings(**changes))
    asks(play)
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    served(play)


def test_without_a_question_it_is_not_asked(play: Play) -> None:
    play.client.sends(post("/v1/completions", b'{"prompt":[1,2,3]}'))
    play.turns()
    assert served(play) == "large"
    assert results(play) == {"skipped": 1}


def test_what_asks_for_a_stored_response_is_not_routed(play: Play) -> None:
    play.client.sends(get("/v1/responses/resp_1"))
    assert play.happened() == ["b1 dialed", "b1 got GET"]
    assert results(play) == {}
    play["b1"].sends(plain("404 Not Found"))


def test_the_clients_own_time_ends_the_wait() -> None:
    slow = CLASSIFIER | {"deadline_ms": 5_000}
    play = Play(1, **settings(classifier=slow))
    play.client.sends(chat(stream=False, head=b"x-request-timeout: 1\r\n"))
    assert play.after(0.7) == ["b9 dialed", "b9 got POST"]
    play.passes(0.6)
    assert play.happened()[0] == "client got 408, request_timeout"
    play.passes(5.0)


def test_a_reload_takes_another_classifier(play: Play) -> None:
    asks(play)
    pools = play.plane.settings.model_dump(include={"pools"})
    new = settings(classifier=CLASSIFIER | {"url": "http://10.0.0.8:1"})
    play.reloads(classifier=Settings.model_validate(pools | new).classifier)
    says(play, "simple")  # who waits has an answer still
    assert served(play) == "small"
    play.happened()
    asks(play)
    assert play.happened()[-2:] == ["b8 dialed", "b8 got POST"]
    play["b8"].sends(plain("200 OK", b'{"label":"simple"}'))
    assert served(play) == "small"


def renews_certificates(play: Play) -> None:
    """As each reload does with https, whose context is another object then."""
    tls = ssl.create_default_context()
    play.plane.labelling.use(play.plane.settings.classifier, tls, wanted=True)


def test_a_reload_with_new_certificates_keeps_what_was_said(play: Play) -> None:
    asks(play)
    says(play, "simple")
    served(play)
    play.happened()
    renews_certificates(play)
    asks(play)
    assert play.happened() == ["b9 dropped", "b1 got POST"]
    assert served(play) == "small"
    assert results(play) == {"asked": 1, "cached": 1}


def test_and_one_that_fails_is_left_alone_still(play: Play) -> None:
    fails_in_a_row(play)
    play.happened()
    renews_certificates(play)
    asks(play, "next")
    assert "b9 dialed" not in play.happened()
    assert served(play) == "large"
