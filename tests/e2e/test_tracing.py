"""Traces through the real process: what backends and receivers get, and broken receivers."""

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer
from penstock.proxy.tracing.exporter import ANSWER_S, BATCH_S
from tests.certificates import Files, server_context
from tests.e2e.forked import run
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, until
from tests.e2e.request import CHAT, ask
from tests.e2e.span_receiver import Span, SpanReceiver
from tests.e2e.told import told, until_told
from tests.e2e.traffic import Traffic

PATH = "/v1/chat/completions"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
KEY, SECRET = "sk-canary-0123456789abcdef", "canary prompt 91c2"
BODY = CHAT | {"messages": [{"role": "user", "content": SECRET}]}
SERVER, CLIENT = 2, 3


def tracing(receiver: SpanReceiver, **settings: Any) -> dict[str, Any]:
    return {"otlp_endpoint": receiver.url, "ratio": 1.0, "forced_ratio": 1.0} | settings


def lines_of(server: SimServer, name: bytes) -> list[list[bytes]]:
    """Of each request of a client its values of a header."""
    asked = [each for each in server.seen if each.header("x-request-id")]
    return [[value for key, value in each.headers if key.lower() == name] for each in asked]


async def counted(penstock: Penstock, result: str) -> float:
    return (await told(penstock)).get(count_of(result), 0.0)


def count_of(result: str) -> str:
    return f"penstock_trace_spans_total{{result={result}}}"


ROUNDS, AT_ONCE = 20, 10


async def test_spans_of_many_requests_arrive_whole(fleet: Fleet, receiver: SpanReceiver) -> None:
    servers, penstock = await fleet(
        3,
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
    await receiver.until(ROUNDS * AT_ONCE + sum(told_attempts.values()))
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    assert len(traces) == ROUNDS * AT_ONCE
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


async def test_strangers_cannot_force_spans(fleet: Fleet, receiver: SpanReceiver) -> None:
    _, penstock = await fleet(
        tenants=[{"name": "research", "keys": [{"key": KEY}]}], tracing=tracing(receiver)
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


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that accepts connections, and never reads."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize("how", ["refused", "silent", "deaf"])
async def test_a_dead_receiver_costs_only_spans(
    fleet: Fleet, receiver: SpanReceiver, deaf: str, how: str
) -> None:
    receiver.silent = True
    if how == "refused":
        await receiver.stop()
    endpoint = deaf if how == "deaf" else receiver.url
    _, penstock = await fleet(tracing=tracing(receiver, otlp_endpoint=endpoint))
    async with Traffic(penstock.url, clients=16) as traffic:
        await traffic.until(1_500)
        before_bytes = penstock.resident_bytes
        await traffic.until(3_000)
    assert not traffic.failed
    assert traffic.slowest_s < ANSWER_S  # who waited for it would take longer
    found = await until_told(penstock, lambda found: found.get(count_of("dropped"), 0) > 1_000, 10)
    assert found.get(count_of("sent"), 0) == 0
    assert penstock.resident_bytes - before_bytes < 8e6
    assert b"".join(penstock.log).count(b"spans are not delivered") <= 1
    await penstock.until_at_rest()
    began_s = time.monotonic()
    assert await penstock.stop() == 0
    assert time.monotonic() - began_s < BATCH_S / 3
    assert b"spans were not delivered spans=" in b"".join(penstock.log)


async def test_a_receiver_that_recovers_gets_its_spans(
    fleet: Fleet, receiver: SpanReceiver
) -> None:
    receiver.statuses = [503, 429]
    _, penstock = await fleet(tracing=tracing(receiver))
    await ask(penstock, PATH, BODY)
    await receiver.until(2, within_s=15)
    assert len(receiver.heads) == 3
    assert await counted(penstock, "sent") == 2
    log = b"".join(penstock.log)
    assert log.count(b"spans are not delivered reason=status_503") == 1
    assert b"spans are delivered again" in log


async def test_remaining_spans_are_sent_at_the_end(fleet: Fleet, receiver: SpanReceiver) -> None:
    _, penstock = await fleet(tracing=tracing(receiver))
    await ask(penstock, PATH, BODY)
    await penstock.until_at_rest()
    assert await penstock.stop() == 0
    assert len(receiver.spans) == 2


async def test_headers_from_a_file_go_to_the_receiver_only(
    fleet: Fleet, receiver: SpanReceiver, tmp_path: Path
) -> None:
    file = tmp_path / "headers"
    file.write_text("authorization: Bearer sk-receiver-7f3a91c2\nx-scope: a b\n")
    file.chmod(0o600)
    (server,), penstock = await fleet(tracing=tracing(receiver, headers_file=str(file)))
    await ask(penstock, PATH, BODY)
    await receiver.until(2)
    (head,) = receiver.heads
    assert (head["authorization"], head["x-scope"]) == ("Bearer sk-receiver-7f3a91c2", "a b")
    assert (head["content-type"], head["content-encoding"]) == ("application/json", "gzip")
    _, shown, _ = await run("config", "show", str(penstock.config))
    said = shown + str(penstock.access_lines) + b"".join(penstock.log).decode()
    assert "sk-receiver" not in said
    assert "sk-receiver" not in str([each.headers for each in server.seen])


async def test_a_reload_turns_tracing_on_and_off(fleet: Fleet, receiver: SpanReceiver) -> None:
    (server,), penstock = await fleet()
    await ask(penstock, PATH, BODY)
    on = tracing(receiver, service_name="gate")
    assert (await penstock.reload(tracing=on))[0] == 200
    await ask(penstock, PATH, BODY)
    await receiver.until(2)
    assert {span.service for span in receiver.spans} == {"gate"}
    assert (await penstock.reload(tracing={}))[0] == 200
    await ask(penstock, PATH, BODY, traceparent=SAMPLED)
    assert lines_of(server, b"traceparent")[0] == []
    assert lines_of(server, b"traceparent")[2] == [SAMPLED.encode()]
    await asyncio.sleep(1.2)
    assert len(receiver.spans) == 2


async def test_a_receiver_with_https_is_verified(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver, files: Files
) -> None:
    await receiver.stop()
    await receiver.start(server_context())
    (server,) = await simulate()
    endpoint = receiver.url.replace("http:", "https:")
    trusting = {"SSL_CERT_FILE": str(files.ca)}
    settings = tracing(receiver, otlp_endpoint=endpoint)
    stranger = await serve([server], tracing=settings)
    await ask(stranger, PATH, BODY)
    await until(lambda: b"spans are not delivered reason=untrusted" in b"".join(stranger.log), 10)
    assert not receiver.heads
    penstock = await serve([server], tracing=settings, environment=trusting)
    await ask(penstock, PATH, BODY)
    await receiver.until(2)
