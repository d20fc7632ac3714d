"""TLS to backends: who is believed, and what a reload changes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.certificates import Files, issue
from tests.e2e.listening import stop_listening
from tests.e2e.process import Serve, Simulate
from tests.e2e.request import ask
from tests.e2e.tls import TlsFront, pump

COMPLETIONS = "/v1/completions"
PROMPT: dict[str, Any] = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 20}
QUIET = {"interval_s": 60, "timeout_s": 5}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return issue(tmp_path)


@pytest.mark.parametrize("wrong", ["name", "authority", "no TLS"])
async def test_a_backend_that_is_not_who_it_should_be_is_never_ready(
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


async def test_a_new_authority_is_believed_from_the_next_connection(
    simulate: Simulate, serve: Serve, tmp_path: Path, files: Files
) -> None:
    (server,) = await simulate()
    front = await TlsFront(server.port).start()
    other = issue(tmp_path, by=trustme.CA(), name="other")
    pools = [
        {
            "name": "default",
            "backends": [{"name": "b0", "url": front.url}],
            "tls": {"ca_file": str(other.ca)},
        }
    ]
    penstock = await serve([], ready=0, pools=pools)
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
        backends = [{"name": "b0", "url": url}]
        tls = {"ca_file": str(files.ca)}
        return [{"name": "default", "backends": backends, "tls": tls, "api_key": key}]

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
