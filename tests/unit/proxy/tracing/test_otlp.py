"""The spans of a request: their ids, names, times and attributes, and what an answer says."""

import orjson
import pytest

from penstock.proxy.telemetry.record import TRIES_MAX, Record
from penstock.proxy.tracing.exporter import export_of, rejected, resource_of
from tests.unit.proxy.tracing.spans import ENDED_NS, SPAN, TRACE, finished, plain, served, spans

SECOND_NS = 1_000_000_000


def test_a_request_and_its_attempts() -> None:
    request = finished(served(failures=1), parent_id=b"a" * 16, state=b"x=1", max_tokens=64)
    server, failed, last = spans(request)
    assert {each["traceId"] for each in (server, failed, last)} == {TRACE.decode()}
    assert {each["traceState"] for each in (server, failed, last)} == {"x=1"}
    assert (server["spanId"], server["parentSpanId"]) == (SPAN.decode(), "a" * 16)
    assert (failed["spanId"], failed["parentSpanId"]) == ("0000000000000001", SPAN.decode())
    assert (last["spanId"], last["parentSpanId"]) == ("0000000000000002", SPAN.decode())
    assert [each["kind"] for each in (server, failed, last)] == [2, 3, 3]
    assert [each["flags"] for each in (server, failed, last)] == [0x301, 0x101, 0x101]
    assert [each["name"] for each in (server, failed, last)] == [
        "POST /v1/chat/completions",
        "chat llama",
        "chat llama",
    ]
    assert server["attributes"] == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/v1/chat/completions",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "penstock.request_id": "id-1",
        "penstock.tenant": "research",
        "penstock.class": "standard",
        "penstock.pool": "chat",
        "penstock.attempts": 2,
    }
    asked = {
        "http.request.method": "POST",
        "penstock.reason": "cost",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "llama",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 64,
    }
    assert failed["attributes"] == asked | {
        "error.type": "reset",
        "server.address": "gpu-0",
        "penstock.backend": "gpu-0",
    }
    assert last["attributes"] == asked | {
        "server.address": "gpu-1",
        "penstock.backend": "gpu-1",
        "http.request.resend_count": 1,
        "gen_ai.usage.input_tokens": 812,
        "gen_ai.usage.output_tokens": 64,
        "gen_ai.usage.cache_read.input_tokens": 640,
        "gen_ai.response.time_to_first_chunk": 2.85,
    }
    assert [each.get("status") for each in (server, failed, last)] == [None, {"code": 2}, None]


def test_times_are_those_of_the_receivers_clock() -> None:
    server, attempt = spans(finished(served()))
    assert int(server["endTimeUnixNano"]) == ENDED_NS
    assert int(server["startTimeUnixNano"]) == ENDED_NS - 10 * SECOND_NS
    assert int(attempt["startTimeUnixNano"]) == ENDED_NS - 8 * SECOND_NS
    assert int(attempt["endTimeUnixNano"]) == ENDED_NS
    events = [(each["name"], int(each["timeUnixNano"])) for each in attempt["events"]]
    assert events == [
        ("penstock.sent", ENDED_NS - 7_950_000_000),
        ("penstock.first_byte", ENDED_NS - 6 * SECOND_NS),
        ("penstock.first_token", ENDED_NS - 5 * SECOND_NS),
    ]


def test_a_wait_is_told_with_what_it_was_for() -> None:
    record = served()
    record.waits("kv_cache", 101.0)
    record.waited("kv_cache", 102.0)
    server, _ = spans(finished(record))
    entered, left = server["events"][-2:]
    assert (entered["name"], left["name"]) == ("penstock.queue_entered", "penstock.queue_left")
    assert int(left["timeUnixNano"]) - int(entered["timeUnixNano"]) == SECOND_NS
    assert entered["attributes"] == {"penstock.waits_for": "kv_cache"}


@pytest.mark.parametrize(
    ("status", "error", "whole", "kind", "told"),
    [
        (200, None, True, None, None),
        (200, "stream_broken", False, "stream_broken", "stream_broken"),
        (200, None, False, None, "client_left"),
        (499, None, False, None, "client_left"),
        (429, "overloaded", True, None, "overloaded"),
        (404, None, True, None, None),
        (500, None, True, "500", None),
        (502, "backend_error", True, "backend_error", "backend_error"),
    ],
)
def test_only_a_failure_of_the_server_is_an_error(
    status: int, error: str | None, whole: bool, kind: str | None, told: str | None
) -> None:
    record = served()
    record.status, record.error, record.whole = status, error, whole
    server, _ = spans(finished(record))
    assert server["attributes"].get("error.type") == kind
    assert server["attributes"].get("penstock.error") == told
    assert server.get("status") == ({"code": 2} if kind else None)
    seen = server["attributes"].get("http.response.status_code")
    assert seen == (None if status == 499 else status)


def test_a_request_that_reached_no_backend() -> None:
    record = Record(100.0, 100.0, 100.0)
    record.status, record.error, record.whole, record.ended_s = 401, "unauthorized", True, 100.0
    (server,) = spans(finished(record, owner="", route="", model=None))
    assert server["name"] == "POST"
    assert "parentSpanId" not in server
    assert "url.path" not in server["attributes"]
    assert "penstock.attempts" not in server["attributes"]


def test_paths_without_a_convention_are_http_only() -> None:
    _, attempt = spans(finished(served(), route="/tokenize"))
    assert attempt["name"] == "POST"
    assert not [key for key in attempt["attributes"] if key.startswith("gen_ai.")]


def test_an_attempt_that_never_left_has_an_id_of_its_own() -> None:
    record = served(failures=2)
    for each in record.tries:
        each.span_id = b""
    found = [each["spanId"] for each in spans(finished(record, span_id=b"f" * 16))]
    assert len(set(found)) == 4
    assert all(len(each) == 16 and each.strip("0") for each in found)


def test_of_many_attempts_the_first_and_the_last_are_told() -> None:
    server, *attempts = spans(finished(served(failures=99)))
    assert len(attempts) == TRIES_MAX
    assert server["attributes"]["penstock.attempts"] == 100
    backends = [each["attributes"]["penstock.backend"] for each in attempts]
    assert (backends[0], backends[15], backends[16], backends[-1]) == (
        *("gpu-0", "gpu-15"),
        *("gpu-84", "gpu-99"),
    )


def test_a_models_odd_name_is_printable() -> None:
    _, attempt = spans(finished(served(), model="a\x1b[31m\ud800b"))
    assert attempt["attributes"]["gen_ai.request.model"].isprintable()


def test_an_export_is_one_document() -> None:
    body = orjson.loads(export_of(resource_of("gate", "1.2", "abc"), [b'{"a":1}', b'{"b":2}']))
    (resource,) = body["resourceSpans"]
    assert plain(resource["resource"]["attributes"]) == {
        "service.name": "gate",
        "service.version": "1.2",
        "service.instance.id": "abc",
    }
    (scope,) = resource["scopeSpans"]
    assert scope == {"scope": {"name": "penstock", "version": "1.2"}, "spans": [{"a": 1}, {"b": 2}]}


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (b"", 0),
        (b"{}", 0),
        (b'{"partialSuccess":null}', 0),
        (b'{"partialSuccess":{}}', 0),
        (b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}}', 3),
        (b'{"partialSuccess":{"rejectedSpans":4}}', 4),
        (b'{"partialSuccess":{"rejectedSpans":-4}}', 0),
        (b'{"partialSuccess":{"rejectedSpans":"many"}}', 0),
        (b'{"partialSuccess":7}', 0),
        (b"\x0a\x00", 0),
        (b"[" * 60_000, 0),
    ],
)
def test_what_an_answer_says_was_rejected(answer: bytes, count: int) -> None:
    assert rejected(answer) == count
