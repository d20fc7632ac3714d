"""Traces on the data path: what backends are told, and what is given to the exporter at the end."""

from random import Random
from typing import Any

import pytest

from penstock.conf.tracing import TracingSettings
from penstock.proxy.tracing.exporter import encoded
from penstock.proxy.tracing.span import Finished
from penstock.proxy.tracing.trace import Tracer
from tests.unit.proxy.data.playbook import Play, chat, plain
from tests.unit.proxy.tracing.spans import spans

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"
HEAD = f"traceparent: {PARENT}\r\n".encode()


class Traced(Play):
    """A play with a tracer. `offered`: what it has for the exporter."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.offered: list[Finished] = []
        asked = {"ratio": 1.0, "forced_ratio": 1.0} | settings
        self.plane.tracer = Tracer(
            TracingSettings.model_validate(asked), Random(1), self.metrics, self.offered.append
        )


@pytest.fixture
def traced() -> Traced:
    return Traced()


def sent_to(play: Play, name: str) -> dict[str, str]:
    """The headers of the last request there, without those that come twice."""
    lines = [line.partition(": ") for line in play[name].head.decode().split("\r\n")[1:-2]]
    assert len({key for key, _, _ in lines}) == len(lines)
    return {key: value for key, _, value in lines}


def test_without_a_tracer_the_headers_pass_and_only_the_id_is_read(play: Play) -> None:
    play.client.sends(chat(head=HEAD + b"tracestate: A,=\r\n"))
    exchange = play.client.exchange
    assert exchange.request.record.trace_id == TRACE
    assert exchange.request.trace is None
    told = sent_to(play, "b1")
    assert (told["traceparent"], told["tracestate"]) == (PARENT, "A,=")


def test_each_attempt_is_a_child_with_an_id_of_its_own(traced: Traced) -> None:
    traced.client.sends(chat(head=HEAD + b"tracestate: a=1\r\nTraceState: b=2\r\n"))
    first = sent_to(traced, "b1")
    traced.passes(1)
    traced["b1"].resets()
    second = sent_to(traced, "b2")
    traced.answers("b2", "a")
    (request,) = traced.offered
    server, failed, served = spans(request)
    assert (server["traceId"], server["parentSpanId"]) == (TRACE, CALLER)
    for head, span in ((first, failed), (second, served)):
        assert head["traceparent"] == f"00-{TRACE}-{span['spanId']}-01"
        assert head["tracestate"] == "a=1,b=2"
        assert span["parentSpanId"] == server["spanId"]
    assert failed["attributes"]["error.type"] == "reset"


def test_what_is_sent_again_on_another_connection_is_the_same_attempt(traced: Traced) -> None:
    traced.client.sends(chat())
    traced.answers("b1", "a")
    traced.client.sends(chat())
    traced.answers("b2", "a")
    traced.passes(1)
    traced.client.sends(chat())
    before = sent_to(traced, "b1")["traceparent"]
    traced["b1"].resets()
    assert sent_to(traced, "b1")["traceparent"] == before
    traced.answers("b1", "a")
    assert len(spans(traced.offered[-1])) == 2


def test_an_invalid_parent_begins_a_trace_and_its_state_is_dropped(traced: Traced) -> None:
    for head in (HEAD + HEAD, b"traceparent: no\r\n", b""):
        traced.client.sends(chat(head=head + b"tracestate: a=1\r\n"))
        name = "b1" if "b1 got POST" in traced.lines else "b2"
        told = sent_to(traced, name)
        assert TRACE not in told["traceparent"]
        assert "tracestate" not in told
        traced[name].sends(plain("200 OK"))
        traced.happened()
        traced.passes(1)
    assert ["parentSpanId" in spans(each)[0] for each in traced.offered] == [False] * 3


def test_what_the_client_does_not_sample_is_not(traced: Traced) -> None:
    traced.client.sends(chat(head=HEAD.replace(b"-01\r", b"-00\r")))
    assert sent_to(traced, "b1")["traceparent"].endswith("-00")
    traced["b1"].sends(plain("200 OK"))
    assert not traced.offered
    assert traced.metrics.traces_capped == 0


def test_a_client_beyond_its_share_is_told_on_as_unsampled() -> None:
    play = Traced(forced_ratio=0.0)
    play.client.sends(chat(head=HEAD))
    told = sent_to(play, "b1")["traceparent"]
    assert told.startswith(f"00-{TRACE}-")
    assert told.endswith("-00")
    assert CALLER not in told
    play["b1"].sends(plain("200 OK"))
    assert not play.offered
    assert play.metrics.traces_capped == 1


def test_a_reload_that_ends_tracing_loses_what_runs(traced: Traced) -> None:
    traced.client.sends(chat())
    traced.plane.tracer = None
    traced["b1"].sends(plain("200 OK"))
    assert not traced.offered


def test_no_text_of_the_client_is_in_the_spans(traced: Traced) -> None:
    head = b"authorization: Bearer sk-canary\r\ncookie: canary=1\r\n"
    traced.client.sends(chat('"user":"canary"', head=head, content="canary"))
    traced.answers("b1", "canary")
    (request,) = traced.offered
    assert b"canary" not in b"".join(encoded(request))
    assert b"10.0.0" not in b"".join(encoded(request))


def test_a_refused_path_is_not_told(traced: Traced) -> None:
    traced.client.sends(b"GET /canary?x=1 HTTP/1.1\r\nhost: x\r\n\r\n")
    (request,) = traced.offered
    (span,) = spans(request)
    assert (span["name"], span["attributes"]["penstock.error"]) == ("GET", "unknown_path")
    assert b"canary" not in b"".join(encoded(request))


def test_health_checks_have_no_spans(traced: Traced) -> None:
    traced.client.sends(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert not traced.offered
