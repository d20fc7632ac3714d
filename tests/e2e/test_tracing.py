"""Traces through the real process: what backends are told, and what a receiver gets."""

import asyncio
from collections import defaultdict
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask
from tests.e2e.span_receiver import Span, SpanReceiver
from tests.e2e.told import told
from tests.e2e.traced import (
    BODY,
    CALLER,
    CLIENT,
    KEY,
    PATH,
    SAMPLED,
    SERVER,
    TRACE,
    UNSAMPLED,
    counted,
    lines_of,
    tracing,
)


async def line_of(penstock: Penstock, request_id: str) -> dict[str, Any]:
    """The access line of a request."""
    async with asyncio.timeout(5):
        while True:
            for line in penstock.access_lines:
                if line["request_id"] == request_id:
                    return line
            await asyncio.sleep(0.02)


# Without tracing ---------------------------------------------------------------------------------


async def test_without_tracing_the_headers_pass_as_they_are(
    simulate: Simulate, serve: Serve
) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    for value in (SAMPLED, UNSAMPLED, "nonsense", "00-0-0-0"):
        given = {"traceparent": value, "tracestate": "A=1,,", "baggage": "user=7"}
        got = await ask(penstock, PATH, BODY, x_request_id=f"id-{value[-2:]}", **given)
        assert got.status == 200
        last = dict(server.seen[-1].headers)
        assert [last[name.encode()].decode() for name in given] == [*given.values()]
    assert (await line_of(penstock, "id-01"))["trace_id"] == TRACE
    assert (await line_of(penstock, "id-se"))["trace_id"] is None
    refused = await ask(penstock, "/nowhere", BODY, x_request_id="lost", traceparent=SAMPLED)
    assert refused.status == 404
    assert (await line_of(penstock, "lost"))["trace_id"] == TRACE
    _, out, _ = await run("trace", "id-01", "--admin", penstock.admin_url)
    assert f"  trace {TRACE}\n" in out
    _, out, _ = await run("requests", "--json", "--admin", penstock.admin_url)
    assert f'"trace_id": "{TRACE}"' in out


async def test_the_text_form_of_the_access_log_has_the_id(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server], log={"format": "text"})
    await ask(penstock, PATH, BODY, traceparent=SAMPLED)
    async with asyncio.timeout(5):
        while not penstock.access_lines:
            await asyncio.sleep(0.02)
    assert f" trace_id={TRACE} " in penstock.access_lines[0]["text"]


# What backends are told --------------------------------------------------------------------------


async def test_backends_are_told_of_the_attempt(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver))
    await ask(penstock, PATH, BODY, traceparent=SAMPLED, tracestate="a=1 , b=2", baggage="user=7")
    await receiver.until(2)
    own, attempt = receiver.spans
    (parents,), (states,) = lines_of(server, b"traceparent"), lines_of(server, b"tracestate")
    assert parents == [f"00-{TRACE}-{attempt.span_id}-01".encode()]
    assert states == [b"a=1,b=2"]
    assert lines_of(server, b"baggage") == [[b"user=7"]]
    assert (own.trace_id, own.parent_id) == (TRACE, CALLER)
    assert (attempt.trace_id, attempt.parent_id) == (TRACE, own.span_id)


async def test_what_is_not_sampled_is_told_so_and_has_no_spans(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver, ratio=0.0, forced_ratio=0.0))
    for parent in (SAMPLED, UNSAMPLED, f"{SAMPLED}0", ""):
        given = {"traceparent": parent, "tracestate": "a=1"} if parent else {}
        await ask(penstock, PATH, BODY, **given)
    (first,), (second,), (third,), (fourth,) = lines_of(server, b"traceparent")
    for value in (first, second):  # the client's trace goes on, the span is ours
        assert value.decode().startswith(f"00-{TRACE}-")
        assert CALLER.encode() not in value
    for value in (third, fourth):  # a new trace
        assert len(value) == 55
        assert TRACE.encode() not in value
    assert [each[-3:] for each in (first, second, third, fourth)] == [b"-00"] * 4
    assert lines_of(server, b"tracestate") == [[b"a=1"], [b"a=1"], [], []]
    assert (await told(penstock))["penstock_traces_capped_total{}"] == 1
    await asyncio.sleep(1.2)
    assert not receiver.raw


# What a receiver gets ----------------------------------------------------------------------------

ROUNDS, AT_ONCE = 50, 20


async def test_spans_of_a_thousand_requests_with_failovers_arrive_whole(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    servers = await simulate(3)
    penstock = await serve(
        servers,
        pool={"policy": "round_robin"},
        tenants=[{"name": "research", "keys": [{"key": KEY}]}],
        tracing=tracing(receiver, forced_per_minute=600_000),
    )
    told_attempts: dict[str, int] = {}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session:
        for number in range(ROUNDS):
            server = servers[number % 3]
            server.drop_connections()  # a failure on a reused one is no attempt
            server.faults.set("cut_before_headers", times=1, path=PATH)
            asked = [_one(session, penstock, number * AT_ONCE + n) for n in range(AT_ONCE)]
            told_attempts |= dict(await asyncio.gather(*asked))
    spans = receiver.spans
    await receiver.until(1_000 + sum(told_attempts.values()))
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    assert len(traces) == 1_000
    assert len({span.span_id for span in spans}) == len(spans)
    failed = 0
    for trace_id, found in traces.items():
        (own,) = [span for span in found if span.kind == SERVER]
        attempts = sorted((span for span in found if span.kind == CLIENT), key=_began)
        request_id = own.attributes["penstock.request_id"]
        number = int(request_id[3:])
        if number % 2:
            assert (trace_id, own.parent_id) == (f"{number:032x}", CALLER)
        else:
            assert own.parent_id == ""
        assert len(attempts) == own.attributes["penstock.attempts"] == told_attempts[request_id]
        assert [span.parent_id for span in attempts] == [own.span_id] * len(attempts)
        assert [span.failed for span in attempts] == [*[True] * (len(attempts) - 1), False]
        for span in attempts:
            assert own.began_ns <= span.began_ns <= span.ended_ns <= own.ended_ns
            assert span.name == "chat sim-model"
        assert attempts[-1].attributes["gen_ai.usage.output_tokens"] == 20
        assert own.attributes["http.response.status_code"] == 200
        failed += len(attempts) - 1
    assert failed >= ROUNDS
    _backends_were_told(servers, spans)
    _nothing_secret(penstock, servers, receiver)
    assert await counted(penstock, "sent") == len(spans)
    assert await counted(penstock, "dropped") == 0


async def _one(session: aiohttp.ClientSession, to: Penstock, number: int) -> tuple[str, int]:
    request_id = f"id-{number}"
    headers = {"x-request-id": request_id}
    if number % 2:
        headers["traceparent"] = f"00-{number:032x}-{CALLER}-01"
    body = BODY | {"stream": number % 3 == 0}
    async with session.post(to.url + PATH, json=body, headers=headers) as answer:
        assert answer.status == 200
        await answer.read()
        return request_id, int(answer.headers["x-penstock-attempts"])


def _began(span: Span) -> int:
    return span.began_ns


def _backends_were_told(servers: list[SimServer], spans: list[Span]) -> None:
    """Each request that a backend has seen has the id of an attempt there."""
    attempts = {(span.trace_id, span.span_id): span for span in spans if span.kind == CLIENT}
    for number, server in enumerate(servers):
        for (value,) in lines_of(server, b"traceparent"):
            _, trace_id, span_id, flags = value.decode().split("-")
            assert attempts[trace_id, span_id].attributes["penstock.backend"] == f"b{number}"
            assert flags == "01"


def _nothing_secret(penstock: Penstock, servers: list[SimServer], receiver: SpanReceiver) -> None:
    raw = b"".join(receiver.raw)
    ports = [server.url.rpartition(":")[2] for server in servers]
    for secret in (KEY, "canary", "127.0.0.1", "Bearer", *[f":{port}" for port in ports]):
        assert secret.encode() not in raw, secret


async def test_refused_requests_have_spans_and_strangers_cannot_ask_for_them(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    (server,) = await simulate()
    penstock = await serve(
        [server],
        tenants=[{"name": "research", "keys": [{"key": KEY}]}],
        tracing=tracing(receiver),
    )
    wrong = {"authorization": "Bearer sk-canary-wrong"}
    assert (await ask(penstock, PATH, BODY, traceparent=SAMPLED, **wrong)).status == 401
    assert (await ask(penstock, PATH, BODY, x_request_id="id-2", **wrong)).status == 401
    await receiver.until(1)
    await asyncio.sleep(1.2)
    (own,) = receiver.spans
    assert own.attributes["penstock.request_id"] == "id-2"
    assert own.attributes["penstock.error"] == "unauthorized"
    assert not own.failed
    assert "penstock.tenant" not in own.attributes


async def test_a_broken_stream_and_a_client_that_leaves_are_told_apart(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server], tracing=tracing(receiver))
    server.faults.set("cut_mid_stream", times=1, tokens=2, path=PATH)
    body = BODY | {"stream": True, "max_tokens": 400}
    with pytest.raises(aiohttp.ClientPayloadError):
        await ask(penstock, PATH, body)
    await receiver.until(2)
    own, attempt = receiver.spans
    assert (own.failed, own.attributes["error.type"]) == (True, "stream_broken")
    assert (attempt.failed, attempt.attributes["error.type"]) == (True, "cut")
    assert attempt.events == ["penstock.sent", "penstock.first_byte", "penstock.first_token"]
    async with (
        aiohttp.ClientSession() as session,
        session.post(penstock.url + PATH, json=body) as answer,
    ):
        await answer.content.readany()
    await receiver.until(4)
    own, attempt = receiver.spans[2:]
    assert (own.failed, attempt.failed) == (False, False)
    assert own.attributes["penstock.error"] == "client_left"
