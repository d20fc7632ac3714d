"""TLS to the proxy: keys, leaving, stalling, broken streams, certificates that are renewed."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from penstock.bench.sim.prompt import render
from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from tests.certificates import (
    Files,
    client_context,
    issue,
)
from tests.e2e.process import COUNTS, Penstock, Serve, Simulate, until
from tests.e2e.tls import TlsClient, TlsFront, post

COMPLETIONS = "/v1/completions"
PROMPT: dict[str, Any] = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 20}
LONG = PROMPT | {"max_tokens": 5_000, "stream": True}
QUIET = {"interval_s": 60, "timeout_s": 5}
TOKENS = 40
USER: list[dict[str, str]] = [{"role": "user", "content": "Tell me of rivers."}]
TEXT = expected(render(USER), TOKENS)
Secure = Callable[..., Awaitable[tuple[SimServer, Penstock]]]


@pytest.fixture
async def secure(simulate: Simulate, serve: Serve, files: Files) -> AsyncIterator[Secure]:
    """TLS to the proxy and from it: `await secure(profile="steady-50", tells=True, …)`."""
    fronts: list[TlsFront] = []

    async def start(
        profile: str = "instant", *, tells: bool = False, **config: Any
    ) -> tuple[SimServer, Penstock]:
        (server,) = await simulate(profile=profile)
        fronts.append(await TlsFront(server.port, tells=tells).start())
        pool = {"tls": {"ca_file": str(files.ca)}} | config.pop("pool", {})
        listen = {"host": "127.0.0.1", "port": 0, "tls": files.settings}
        listen |= config.pop("listen", {})
        return server, await serve([fronts[-1].url], pool=pool, listen=listen, **config)

    yield start
    for front in fronts:
        await front.stop()


async def at_rest(penstock: Penstock, server: SimServer) -> None:
    took_s = await until(lambda: server.engine.idle, 1.0)
    print(f"aborted within {took_s * 1000:.1f} ms")
    await penstock.until(lambda listing: not any(listing[0][name] for name in COUNTS), 1.0)


async def test_the_sdks_with_keys_over_tls(secure: Secure) -> None:
    server, penstock = await secure(
        tenants=[{"name": "one", "keys": [{"key": "sk-one"}]}], pool={"api_key": "sk-pool"}
    )
    server.api_key = "sk-pool"
    url = f"https://localhost:{penstock.port}"
    fields: Any = {"model": "sim-model", "messages": USER, "max_tokens": TOKENS}
    trust = openai.DefaultAsyncHttpxClient(verify=client_context())
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="sk-one", http_client=trust) as gpt:
        text = ""
        async for chunk in await gpt.chat.completions.create(**fields, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == TEXT
        assert [model.id async for model in gpt.models.list()] == ["sim-model"]
        with pytest.raises(openai.AuthenticationError) as refused:
            await gpt.with_options(api_key="sk-two").chat.completions.create(**fields)
        assert refused.value.code == "unauthorized"
    trusting = anthropic.DefaultAsyncHttpxClient(verify=client_context())
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key="sk-one", http_client=trusting
    ) as claude:
        whole = await claude.messages.create(**fields)
        assert whole.content[0].text == TEXT
        with pytest.raises(anthropic.AuthenticationError) as denied:
            await claude.with_options(api_key="sk-two").messages.create(**fields)
        assert orjson.loads(denied.value.response.content)["error"]["type"] == (
            "authentication_error"
        )
    await until(lambda: len(penstock.access_lines) == 4)  # a list of models is no exchange
    assert [line["tenant"] for line in penstock.access_lines] == ["one", None, "one", None]


WAYS = (TlsClient.say_and_close, TlsClient.close, TlsClient.reset, TlsClient.half_close)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_a_leaving_client_frees_its_engine(secure: Secure, tmp_path: Path, loop: str) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    modules = tmp_path if loop == "asyncio" else None
    server, penstock = await secure("steady-50", health=QUIET, modules=modules)
    for leave in WAYS:
        client = await TlsClient.open(penstock, post(COMPLETIONS, LONG))
        await client.until(b"text")
        leave(client)
        await at_rest(penstock, server)
        plain = await TlsClient.open(penstock, post(COMPLETIONS, LONG | {"stream": False}))
        await until(lambda: server.engine.running == 1)
        leave(plain)
        await at_rest(penstock, server)
    server.faults.set("hang_before_headers")
    for leave in WAYS:
        client = await TlsClient.open(penstock, post(COMPLETIONS, LONG))
        await until(lambda: server.engine.running == 1)
        leave(client)
        await at_rest(penstock, server)
    assert server.client_aborts_total == 12


async def rest(penstock: Penstock, body: dict[str, Any], http: bytes = b"1.1") -> tuple[bytes, str]:
    return await (await TlsClient.open(penstock, post(COMPLETIONS, body, http=http))).rest()


async def test_a_broken_stream_does_not_look_whole(secure: Secure) -> None:
    server, penstock = await secure()
    stream = PROMPT | {"stream": True}
    for rst in (False, True):
        server.faults.set("cut_mid_stream", tokens=4, rst=rst)
        got, _ = await rest(penstock, stream)
        assert b"stream_broken" in got
        assert not got.endswith(b"0\r\n\r\n")
        got, end = await rest(penstock, stream, b"1.0")
        assert (b"[DONE]" in got, end) == (False, "reset")
        server.faults.clear()
    got, end = await rest(penstock, stream, b"1.0")
    assert (got.endswith(b"data: [DONE]\n\n"), end) == (True, "told")


async def test_an_error_is_seen_while_the_body_is_sent(secure: Secure) -> None:
    _, penstock = await secure(limits={"body_bytes": 1_024})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n"
    client = await TlsClient.open(penstock, head)
    for _ in range(30):
        await client.send(b"x" * 100_000)
    got, end = await client.rest()
    assert b"body_too_large" in got
    assert end == "told"


@pytest.mark.alone
async def test_a_slow_reader_is_served_and_a_stalled_one_dropped(secure: Secure) -> None:
    _, penstock = await secure(health=QUIET, timeouts={"client_stall_s": 1.0})
    wide: dict[str, object] = {"model": "sim-model", "input": ["x"] * 6_000}
    slow = await TlsClient.open(penstock, post("/v1/embeddings", wide), receive_bytes=4_096)
    stalled = await TlsClient.open(penstock, post("/v1/embeddings", wide), receive_bytes=4_096)
    got = b""
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < 2.2:  # twice the stall, a little at a time
        got += await asyncio.to_thread(slow.sock.recv, 16_384)
        await asyncio.sleep(0.05)
    length = int(got.split(b"content-length: ")[1].split(b"\r\n")[0])
    body = got.partition(b"\r\n\r\n")[2]
    while len(body) < length:
        body += await asyncio.to_thread(slow.sock.recv, 65_536)
    assert len(orjson.loads(body)["data"]) == 6_000
    await until(lambda: len(penstock.access_lines) == 2, 20)  # both are over
    _, end = await stalled.rest()
    assert end != "told"


async def test_silent_connections_are_counted_and_closed(secure: Secure) -> None:
    """A handshake that never comes costs a place, and no longer than a head may take."""
    _, penstock = await secure(limits={"connections": 2}, timeouts={"client_head_s": 2})
    silent = [socket.create_connection(("127.0.0.1", penstock.port)) for _ in range(2)]
    refused = await TlsClient.open(penstock)
    got, _ = await refused.rest()
    assert b"429" in got.split(b"\r\n")[0]
    for sock in silent:
        sock.settimeout(5)
        assert await asyncio.to_thread(sock.recv, 1) == b""
        sock.close()
    client = await TlsClient.open(penstock, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await client.until(b'{"status":"ok"}')
    assert "penstock_tls_handshakes_failed_total 2.0" in await penstock.metrics()


async def test_only_current_tls_is_spoken(secure: Secure) -> None:
    _, penstock = await secure()
    client = await TlsClient.open(penstock)
    assert client.sock.version() == "TLSv1.3"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.deprecated_call():
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    new = client_context()
    new.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", penstock.port)) as tcp, pytest.raises(ssl.SSLError):
        await asyncio.to_thread(old.wrap_socket, tcp)
    with socket.create_connection(("127.0.0.1", penstock.port)) as tcp:
        sock = await asyncio.to_thread(new.wrap_socket, tcp, server_hostname="localhost")
        assert sock.selected_alpn_protocol() == "http/1.1"
        sock.close()
    with socket.create_connection(("127.0.0.1", penstock.port)) as tcp:
        tcp.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        tcp.settimeout(5)
        said = await asyncio.to_thread(tcp.recv, 100)
    assert b"HTTP" not in said


async def test_a_renewed_certificate_is_used_after_a_reload(
    secure: Secure, tmp_path: Path, files: Files
) -> None:
    """Who is connected stays so; files that do not fit each other change nothing."""
    _, penstock = await secure()

    async def serial() -> str:
        client = await TlsClient.open(penstock)
        certificate: dict[str, Any] = client.sock.getpeercert() or {}
        return str(certificate["serialNumber"])

    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    open_before = await TlsClient.open(penstock, health)
    await open_before.until(b"}")
    first = await serial()
    issue(tmp_path)  # over the files that are in use
    assert await serial() == first
    assert (await penstock.reload())[0] == 200
    second = await serial()
    assert second != first
    await open_before.send(health)
    assert b"200 OK" in await open_before.until(b"}")
    issue(tmp_path, name="other").key.replace(files.key)
    status, said = await penstock.reload()
    assert status == 422
    assert "is not the key of cert_file" in str(said)
    assert await serial() == second
