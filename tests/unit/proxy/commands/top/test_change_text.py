"""What a question says before a backend is changed."""

import pytest

from penstock.proxy.commands.top.dialogs import outcome, question
from tests.browser.figures import backend

pytestmark = pytest.mark.once


def test_it_says_where_requests_will_go() -> None:
    one, other = backend(1), backend(2)
    assert question(one, "drain", [one, other, backend(3)]) == [
        "Now: wanted ready, state ready, 1 in flight, pool chat.",
        "It gets no new requests. The 1 request there may finish.",
        "1 of 1 other backend of chat can serve: requests go there.",
    ]


def test_it_warns_when_nothing_else_can_serve() -> None:
    one = backend(1, requests_in_flight=0)
    lines = question(one, "maint", [one, backend(2, can_serve=False), backend(3)])
    assert lines[1:] == [
        "It gets no new requests and no probes. None runs there.",
        "! No other backend of chat can serve: new requests will get 503.",
    ]


def test_ready_says_what_comes_before_requests() -> None:
    one = backend(1, admin_state="drain")
    assert question(one, "ready", [one])[2] == "Requests come at once."
    one = backend(1, admin_state="maint", state="starting", reason="unprobed")
    assert question(one, "ready", [one])[2] == "Its probes must pass before requests come."


def test_the_answer_says_if_nothing_can_serve_now() -> None:
    told = {"name": "gpu-1", "pool": "chat", "admin_state": "drain", "requests_in_flight": 2}
    assert outcome(told | {"pool_can_serve": True}) == "gpu-1: wanted drain, 2 in flight."
    assert "No backend of chat can serve now" in outcome(told | {"pool_can_serve": False})
