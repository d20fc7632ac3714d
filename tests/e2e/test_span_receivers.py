"""Receivers of spans that are dead, slow, new or refuse: clients see nothing of it."""

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from penstock.proxy.tracing.exporter import ANSWER_S, BATCH_S
from tests.certificates import issue
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask
from tests.e2e.span_receiver import SpanReceiver
from tests.e2e.told import until
from tests.e2e.traced import (
    BODY,
    PATH,
    SAMPLED,
    count_of,
    counted,
    lines_of,
    tracing,
)


async def traffic(penstock: Penstock, requests: int, at_once: int = 16) -> float:
    """Send so many requests, and return the longest time of one. Each must be answered."""
    slowest_s, left = 0.0, iter(range(requests))
    body = {"prompt": "x", "max_tokens": 1}

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal slowest_s
        for _ in left:
            began_s = time.monotonic()
            async with session.post(f"{penstock.url}/v1/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()
            slowest_s = max(slowest_s, time.monotonic() - began_s)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(at_once)))
    return slowest_s


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that accepts connections, and never reads."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize("how", ["refused", "silent", "deaf"])
async def test_a_dead_receiver_costs_dropped_spans_and_nothing_else(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver, deaf: str, how: str
) -> None:
    receiver.silent = True
    if how == "refused":
        await receiver.stop()
    endpoint = deaf if how == "deaf" else receiver.url
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver, otlp_endpoint=endpoint))
    await traffic(penstock, 1_500)
    before_bytes = penstock.resident_bytes
    assert await traffic(penstock, 1_500) < ANSWER_S  # who waited for it would take longer
    found = await until(penstock, lambda found: found.get(count_of("dropped"), 0) > 1_000, 10)
    assert found.get(count_of("sent"), 0) == 0
    assert penstock.resident_bytes - before_bytes < 8e6
    assert b"".join(penstock.log).count(b"spans are not delivered") <= 1
    await penstock.until_at_rest()
    began_s = time.monotonic()
    assert await penstock.stop() == 0
    assert time.monotonic() - began_s < BATCH_S / 3
    assert b"spans were not delivered spans=" in b"".join(penstock.log)


async def test_a_receiver_that_recovers_gets_what_waits(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    receiver.statuses = [503, 429]
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver))
    await ask(penstock, PATH, BODY)
    await receiver.until(2, within_s=15)
    assert len(receiver.heads) == 3
    assert await counted(penstock, "sent") == 2
    log = b"".join(penstock.log)
    assert log.count(b"spans are not delivered reason=status_503") == 1
    assert b"spans are delivered again" in log


async def test_a_receiver_that_refuses_is_not_asked_again(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    receiver.statuses = [401]
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver))
    await ask(penstock, PATH, BODY)
    await until(penstock, lambda found: found.get(count_of("refused")) == 2, 10)
    await ask(penstock, PATH, BODY)
    await receiver.until(2)
    assert len(receiver.heads) == 2


async def test_what_is_left_is_sent_before_the_end(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver))
    await ask(penstock, PATH, BODY)
    await penstock.until_at_rest()
    assert await penstock.stop() == 0
    assert len(receiver.spans) == 2


# Configuration -----------------------------------------------------------------------------------


async def test_headers_from_a_file_reach_the_receiver_alone(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver, tmp_path: Path
) -> None:
    file = tmp_path / "headers"
    file.write_text("authorization: Bearer sk-receiver-7f3a91c2\nx-scope: a b\n")
    file.chmod(0o600)
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver, headers_file=str(file)))
    await ask(penstock, PATH, BODY)
    await receiver.until(2)
    (head,) = receiver.heads
    assert (head["authorization"], head["x-scope"]) == ("Bearer sk-receiver-7f3a91c2", "a b")
    assert (head["content-type"], head["content-encoding"]) == ("application/json", "gzip")
    _, shown, _ = await run("config", "show", str(penstock.config))
    said = shown + str(penstock.access_lines) + b"".join(penstock.log).decode()
    assert "sk-receiver" not in said
    assert "sk-receiver" not in str([each.headers for each in server.seen])


async def test_a_reload_turns_tracing_on_and_off(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
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
    simulate: Simulate, serve: Serve, receiver: SpanReceiver, tmp_path: Path
) -> None:
    issue(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    await receiver.stop()
    await receiver.start(tls)
    (server,) = await simulate()
    endpoint = receiver.url.replace("http:", "https:")
    trusting = {"SSL_CERT_FILE": str(tmp_path / "tls.ca")}
    settings = tracing(receiver, otlp_endpoint=endpoint)
    stranger = await serve([server], tracing=settings)
    await ask(stranger, PATH, BODY)
    async with asyncio.timeout(10):
        while b"spans are not delivered reason=untrusted" not in b"".join(stranger.log):
            await asyncio.sleep(0.05)
    assert not receiver.heads
    penstock = await serve([server], tracing=settings, environment=trusting)
    await ask(penstock, PATH, BODY)
    await receiver.until(2)


async def test_a_reload_while_a_batch_is_under_way_sends_it_to_the_new_receiver(
    simulate: Simulate, serve: Serve, receiver: SpanReceiver
) -> None:
    receiver.silent = True
    (server,) = await simulate()
    penstock = await serve([server], tracing=tracing(receiver))
    await ask(penstock, PATH, BODY)
    async with asyncio.timeout(5):
        while not receiver.heads:
            await asyncio.sleep(0.02)
    other = SpanReceiver()
    await other.start()
    assert (await penstock.reload(tracing=tracing(other)))[0] == 200
    await other.until(2, within_s=12)
    await other.stop()
    assert await counted(penstock, "sent") == 2
    assert not receiver.spans
