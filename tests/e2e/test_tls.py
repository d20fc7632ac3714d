"""All that the data plane promises, over TLS on both legs."""

import asyncio
import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import random
from typing import Any

import anthropic
import openai
import orjson
import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.bench.sim.prompt import render
from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from tests.certificates import (
    Files,
    authority,
    client_certificate,
    client_context,
    issue,
    server_context,
)
from tests.e2e.process import COUNTS, Penstock, Serve, Simulate, pool_of, until
from tests.e2e.raw_backend import stop_listening
from tests.e2e.request import BODIES, ask
from tests.e2e.tls import TlsClient, TlsFront, post, pump

COMPLETIONS = "/v1/completions"
PROMPT: dict[str, Any] = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 20}
LONG = PROMPT | {"max_tokens": 5_000, "stream": True}
QUIET = {"interval_s": 60, "timeout_s": 5}
TOKENS = 40
USER: list[dict[str, str]] = [{"role": "user", "content": "Tell me of rivers."}]
TEXT = expected(render(USER), TOKENS)
Secure = Callable[..., Awaitable[tuple[SimServer, Penstock]]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return issue(tmp_path)


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
    for client in TlsClient.opened:
        client.close()
    TlsClient.opened.clear()
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


async def test_leaving_during_a_tls_dial_leaves_no_error(
    simulate: Simulate, serve: Serve, files: Files
) -> None:
    """uvloop's transport does not tell that it is closed after the call that made it was cancelled.

    The fixture finds the tracebacks. Meanwhile another client is served.
    """
    (server,) = await simulate()
    front = await TlsFront(server.port).start()
    penstock = await serve([front.url], pool={"tls": {"ca_file": str(files.ca)}})
    left = 0

    async def leave() -> None:
        nonlocal left
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
            writer.write(post(COMPLETIONS, PROMPT))
            await asyncio.sleep(0.02 * random())
            writer.transport.abort()
            left += 1

    leaving = asyncio.gather(*(leave() for _ in range(4)))
    statuses = []
    while not leaving.done():
        statuses.append((await ask(penstock, COMPLETIONS, PROMPT)).status)
        await asyncio.sleep(0.05)
    await leaving
    errors = sum(b" ERROR " in line for line in penstock.log)
    print(f"{left} left, {errors} errors in the log, {len(statuses)} served")
    assert set(statuses) == {200}
    assert not errors
    await front.stop()


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


@pytest.mark.parametrize("rst", [False, True])
async def test_a_broken_stream_does_not_look_whole(secure: Secure, rst: bool) -> None:
    server, penstock = await secure()
    server.faults.set("cut_mid_stream", tokens=4, rst=rst)
    stream = PROMPT | {"stream": True}
    got, _ = await (await TlsClient.open(penstock, post(COMPLETIONS, stream))).rest()
    assert b"stream_broken" in got
    assert not got.endswith(b"0\r\n\r\n")
    for http, whole in ((b"1.0", b"[DONE]"), (b"1.1", b"0\r\n\r\n")):
        got, end = await (
            await TlsClient.open(penstock, post(COMPLETIONS, stream, http=http))
        ).rest()
        assert whole not in got
        if http == b"1.0":
            assert end == "reset"
    server.faults.clear()
    got, end = await (await TlsClient.open(penstock, post(COMPLETIONS, stream, http=b"1.0"))).rest()
    assert (got.endswith(b"data: [DONE]\n\n"), end) == (True, "told")


@pytest.mark.parametrize(("told", "status"), [(True, 200), (False, 502)])
async def test_a_fin_without_close_notify_is_no_end(
    serve: Serve, files: Files, told: bool, status: int
) -> None:
    """A FIN alone may come from whoever stands between: such an answer may be cut."""
    models = b'{"data":[{"id":"sim-model"}]}'
    answered = b'{"object":"text_completion","choices":[]}'

    async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n")
        writer.write(models if b"/v1/models" in asked else answered)
        await writer.drain()
        if told or b"POST" not in asked:
            writer.close()
        else:
            writer.transport.abort()

    server = await asyncio.start_server(backend, "127.0.0.1", 0, ssl=server_context())
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    penstock = await serve([url], pool={"tls": {"ca_file": str(files.ca)}})
    got = await ask(penstock, COMPLETIONS, PROMPT)
    assert (got.status, got.body == answered) == (status, told)
    await stop_listening(server)


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
    _, penstock = await secure(health=QUIET, timeouts={"client_stall_s": 1.5})
    wide: dict[str, object] = {"model": "sim-model", "input": ["x"] * 6_000}
    slow = await TlsClient.open(penstock, post("/v1/embeddings", wide), receive_bytes=4_096)
    stalled = await TlsClient.open(penstock, post("/v1/embeddings", wide), receive_bytes=4_096)
    got = b""
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < 3.5:  # twice the stall, a little at a time
        got += await asyncio.to_thread(slow.sock.recv, 16_384)
        await asyncio.sleep(0.05)
    length = int(got.split(b"content-length: ")[1].split(b"\r\n")[0])
    body = got.partition(b"\r\n\r\n")[2]
    while len(body) < length:
        body += await asyncio.to_thread(slow.sock.recv, 65_536)
    assert len(orjson.loads(body)["data"]) == 6_000
    async with asyncio.timeout(20):
        while len(penstock.access_lines) < 2:  # both are over
            await asyncio.sleep(0.05)
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


async def test_large_bodies_arrive_unchanged(secure: Secure) -> None:
    server, penstock = await secure()
    # Cut to the model's context by the server: it would be refused as too long.
    raw = orjson.dumps(PROMPT | {"prompt": "x" * 8_000_000, "truncate_prompt_tokens": -1})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client = await TlsClient.open(penstock, head + b"Content-Length: %d\r\n\r\n" % len(raw))
    await client.send(raw)
    await client.until(b"}")
    seen = [r.body for r in server.seen if r.line.startswith("POST")]
    assert hashlib.sha256(seen[-1]).digest() == hashlib.sha256(raw).digest()


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


@pytest.mark.parametrize("wrong", ["name", "authority", "no TLS"])
async def test_an_untrusted_backend_is_never_ready(
    simulate: Simulate, serve: Serve, tmp_path: Path, files: Files, wrong: str
) -> None:
    (server,) = await simulate()
    front = await TlsFront(server.port, *(["elsewhere"] if wrong == "name" else [])).start()
    ca = issue(tmp_path, by=trustme.CA(), name="other").ca if wrong == "authority" else files.ca
    url = front.url.replace(str(front.port), str(server.port)) if wrong == "no TLS" else front.url
    penstock = await serve([url], ready=0, pool={"tls": {"ca_file": str(ca)}})
    await penstock.until(
        lambda listing: listing[0]["last_probe"].get("live", {}).get("reason") == "untrusted", 15
    )
    assert (await penstock.backends())[0]["state"] == "starting"
    await front.stop()


async def test_an_impostor_gets_no_request(simulate: Simulate, serve: Serve, files: Files) -> None:
    """It has the address, but not the name."""
    (server,) = await simulate()
    front = await TlsFront(server.port).start()
    penstock = await serve([front.url], pool={"tls": {"ca_file": str(files.ca)}}, health=QUIET)
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    await front.stop()
    impostor = await TlsFront(server.port, "elsewhere", port=front.port).start()
    seen = len(server.seen)
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 502
    assert len(server.seen) == seen
    await impostor.stop()


async def test_a_new_authority_is_used_after_a_reload(
    simulate: Simulate, serve: Serve, tmp_path: Path, files: Files
) -> None:
    (server,) = await simulate()
    front = await TlsFront(server.port).start()
    other = issue(tmp_path, by=trustme.CA(), name="other")
    penstock = await serve([front.url], ready=0, pool={"tls": {"ca_file": str(other.ca)}})
    await penstock.until(
        lambda listing: listing[0]["last_probe"].get("live", {}).get("reason") == "untrusted", 15
    )
    other.ca.write_bytes(files.ca.read_bytes())
    assert (await penstock.reload())[0] == 200
    await penstock.until_ready(1, 15)
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    await front.stop()


async def test_a_key_goes_where_it_was_chosen_for(
    simulate: Simulate, serve: Serve, files: Files
) -> None:
    """A request that is being dialled while a reload changes its pool's key takes the old one."""
    (server,) = await simulate()
    front = await TlsFront(server.port).start()
    passes, held = asyncio.Event(), asyncio.Event()
    passes.set()

    async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.set()
        await passes.wait()
        inner, to = await asyncio.open_connection("127.0.0.1", front.port)
        await asyncio.gather(pump(reader, to, to.close), pump(inner, writer, writer.close))

    way = await asyncio.start_server(gate, "127.0.0.1", 0)
    url = f"https://localhost:{way.sockets[0].getsockname()[1]}"

    def pools(key: str) -> list[dict[str, Any]]:
        return [pool_of("default", {"b0": url}, tls={"ca_file": str(files.ca)}, api_key=key)]

    penstock = await serve([], ready=1, pools=pools("sk-old"), health=QUIET)
    passes.clear()
    held.clear()
    request = asyncio.create_task(ask(penstock, COMPLETIONS, PROMPT))
    await held.wait()
    assert (await penstock.reload(pools=pools("sk-new")))[0] == 200
    passes.set()
    assert (await request).status == 200
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    headers = [dict(seen.headers) for seen in server.seen if seen.path == COMPLETIONS]
    keys = [each[b"authorization"] for each in headers if b"x-request-id" in each]
    assert keys == [b"Bearer sk-old", b"Bearer sk-new"]
    await stop_listening(way)
    await front.stop()


COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class AskingFront(TlsFront):
    """Asks for a certificate, and notes the serial number of each that it is shown."""

    def __init__(self, to: int, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        super().__init__(to, context=asking(version))
        self.serials: list[str] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serials.append(writer.get_extra_info("peercert")["serialNumber"])
        await super()._serve(reader, writer)


def asking(version: ssl.TLSVersion) -> ssl.SSLContext:
    """A backend's context that asks for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("localhost").configure_cert(context)
    authority().configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    return context


@contextlib.contextmanager
def refusing(context: ssl.SSLContext) -> Iterator[str]:
    """The URL of a backend that tells why it refuses. asyncio's and uvloop's servers only close."""

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listening.accept()
                with contextlib.suppress(OSError), sock:
                    context.wrap_socket(sock, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield f"https://localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
async def fronts() -> AsyncIterator[list[AskingFront]]:
    started: list[AskingFront] = []
    yield started
    for front in started:
        await front.stop()


def tls_of(shown: Files | None, ca: Path) -> dict[str, str]:
    return {"ca_file": str(ca)} | (shown.settings if shown else {})


@pytest.mark.parametrize("version", VERSIONS)
async def test_everything_shows_the_client_certificate(
    simulate: Simulate,
    serve: Serve,
    tmp_path: Path,
    fronts: list[AskingFront],
    version: ssl.TLSVersion,
) -> None:
    servers = await simulate(2)
    fronts += [AskingFront(server.port, version) for server in servers]
    for front in fronts:
        await front.start()
    shown = client_certificate(tmp_path, "penstock.example")
    pool = {"tls": tls_of(shown, issue(tmp_path).ca)}
    penstock = await serve(
        [front.url for front in fronts],
        pool=pool,
        health={"timeout_s": 5, "deep": {"interval_s": 0.5, "timeout_s": 5}},
    )
    await penstock.until(
        lambda listing: all(
            each["engine"] is not None and "deep" in each["last_probe"] for each in listing
        ),
        20,
    )
    assert (await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS])).status == 200
    more = BODIES[RESPONSES] | {"previous_response_id": "resp_nobodys"}
    assert (await ask(penstock, RESPONSES, more)).status == 404  # both were asked
    assert all(any(seen.path.startswith(RESPONSES) for seen in each.seen) for each in servers)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wrong", ["none", "another authority's", "a server's"])
async def test_a_backend_that_refuses_the_certificate(
    serve: Serve, tmp_path: Path, version: ssl.TLSVersion, wrong: str
) -> None:
    """With TLS 1.3 it does so only after the handshake."""
    case: dict[str, Any] = {"usage": ExtendedKeyUsageOID.SERVER_AUTH}
    if wrong == "another authority's":
        case = {"by": trustme.CA()}
    shown = None if wrong == "none" else client_certificate(tmp_path, **case)
    pool = {"tls": tls_of(shown, issue(tmp_path).ca)}
    with refusing(asking(version)) as url:
        penstock = await serve([url], ready=0, pool=pool, health={"timeout_s": 5})
        await penstock.until(
            lambda listing: listing[0]["last_probe"].get("live", {}).get("reason") == "untrusted",
            20,
        )


async def test_a_renewed_client_certificate_is_shown(
    simulate: Simulate, serve: Serve, tmp_path: Path, fronts: list[AskingFront]
) -> None:
    """Files that do not fit each other change nothing."""
    (server,) = await simulate()
    fronts.append(AskingFront(server.port))
    await fronts[0].start()
    shown = client_certificate(tmp_path, "penstock.example")
    pool = {"tls": tls_of(shown, issue(tmp_path).ca)}
    penstock = await serve([fronts[0].url], pool=pool)
    first = set(fronts[0].serials)
    assert len(first) == 1
    client_certificate(tmp_path, "penstock.example")  # over the files that are in use
    assert (await penstock.reload())[0] == 200
    fronts[0].serials.clear()
    assert (await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS])).status == 200
    async with asyncio.timeout(5):
        while len(fronts[0].serials) < 3:  # probes, too
            await asyncio.sleep(0.01)
    second = set(fronts[0].serials[1:])
    assert len(second) == 1
    assert second != first
    client_certificate(tmp_path, name="other").key.replace(shown.key)
    status, said = await penstock.reload()
    assert status == 422
    assert "client.key is not the key of cert_file" in str(said)
    assert (await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS])).status == 200
