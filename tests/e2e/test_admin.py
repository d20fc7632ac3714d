"""The admin port: probes, tokens, changes by POST, and what it tells of the configuration."""

import asyncio
from pathlib import Path

import orjson
import pytest

from tests.e2e.process import Fleet
from tests.e2e.request import BODIES, ask, fetch

pytestmark = pytest.mark.once

BODY = BODIES["/v1/completions"] | {"stream": True, "max_tokens": 30}
TOKEN = "s3cret-token"


async def test_readiness_does_not_depend_on_backends(fleet: Fleet) -> None:
    """503 would have the proxy restarted, which would not help."""
    (server,), penstock = await fleet()
    for path in ("/livez", "/readyz"):
        assert (await fetch(penstock.admin_url + path)).status == 200
    server.faults.set("refuse")
    await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
    assert (await fetch(penstock.url + "/health")).status == 503
    for path in ("/livez", "/readyz"):
        assert (await fetch(penstock.admin_url + path)).status == 200


async def test_the_listing_of_backends(fleet: Fleet) -> None:
    (server,), penstock = await fleet(profile="steady-50")
    asked = asyncio.create_task(ask(penstock, "/v1/completions", BODY))
    await penstock.until(lambda listing: listing[0]["active_decode_tokens"] > 8, 2)
    (backend,) = await penstock.backends()
    named = {"name": "b0", "url": server.url, "pool": "default", "state": "ready", "reason": ""}
    assert named.items() <= backend.items()
    assert (backend["admin_state"], backend["weight"]) == ("ready", 1.0)
    assert (backend["requests_in_flight"], backend["streams"]) == (1, 1)
    assert backend["queued_prefill_tokens"] == 0
    assert 8 < backend["active_decode_tokens"] <= 40
    assert (backend["requests_total"], backend["failures_total"]) == (1, 0)
    for level in ("live", "ready"):
        assert backend["last_probe"][level]["passed"] is True
    assert (await asked).status == 200


async def test_the_ports_serve_different_paths(fleet: Fleet) -> None:
    (server,), penstock = await fleet()
    for path in ("/metrics", "/livez", "/readyz", "/api/v1/backends", "/ui"):
        got = await fetch(penstock.url + path)
        assert (got.status, got.json["error"]["code"]) == (404, "unknown_path")
    assert (await fetch(penstock.admin_url + "/v1/models")).status == 404
    for path in ("/livez", "/metrics", "/api/v1/queue"):  # these change nothing
        assert (await fetch(penstock.admin_url + path, "POST")).status == 405
    assert not server.seen


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_with_a_token_only_probes_and_metrics_are_open(
    fleet: Fleet, tmp_path: Path, host: str
) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    admin = {"host": host, "port": 0, "token_file": "token"}
    _, penstock = await fleet(ready=0, at_rest=False, admin=admin)
    url = penstock.admin_url
    for path in ("/", "/livez", "/readyz", "/metrics"):
        assert (await fetch(url + path)).status in (200, 503)
    # The address, the version and the fleet are for who has the token.
    index = (await fetch(url + "/")).body
    assert b"/api/v1/backends" in index
    assert not any(word in index for word in (b"127.0.0.1", b"b0", b"0.1.0", b"s3cret"))
    for given in (None, "Bearer wrong", TOKEN[:-1], "Bearer ", f"Bearer {TOKEN} x"):
        headers = {"authorization": given} if given else {}
        for path in ("/api/v1/backends", "/api/v1/proxy", "/nowhere", "//api/v1/backends"):
            got = await fetch(url + path, headers=headers)
            assert (got.status, got.json["error"]["code"]) == (401, "unauthorized")
    right = {"authorization": f"Bearer {TOKEN}"}
    assert len((await fetch(f"{url}/api/v1/backends", headers=right)).json) == 1
    assert TOKEN.encode() not in b"".join(penstock.log)


async def test_unreadable_heads_are_not_logged(fleet: Fleet) -> None:
    """A token from a file with Windows line ends is a malformed head, and still a secret."""
    _, penstock = await fleet()
    for end in (b"\r", b"\x00", b"\x01"):
        reader, writer = await asyncio.open_connection("127.0.0.1", penstock.admin_port)
        secret = b"authorization: Bearer tok-canary" + end
        writer.write(b"GET /api/v1/backends HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % secret)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert (await fetch(f"{penstock.admin_url}/livez")).status == 200
    assert not any(b"canary" in line or b"Traceback" in line for line in penstock.log)


async def test_only_post_changes_and_refusals_are_json(fleet: Fleet) -> None:
    _, penstock = await fleet()
    for method, path, answer in (
        ("GET", "b0/drain", (405, "method_not_allowed")),
        ("POST", "b0/explode", (404, "unknown_path")),
        ("POST", "b9/drain", (404, "unknown_backend")),
    ):
        status, said = await penstock.ask_admin(f"/api/v1/backends/{path}", method)
        assert (status, said["error"]["code"]) == answer
        assert (said["error"]["type"], said["error"]["param"]) == ("invalid_request_error", None)
        assert said["error"]["message"].startswith("This path takes POST.") == (status == 405)
    status, said = await penstock.ask_admin("/api/v1/backends/b0/drain", "POST")
    assert (status, said["admin_state"]) == (200, "drain")


async def test_the_configuration_is_shown_without_secrets(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-canary")
    pool = {"api_key_file": str(tmp_path / "key"), "policy": "round_robin"}
    _, penstock = await fleet(pool=pool)
    status, config = await penstock.ask_admin("/api/v1/config")
    assert status == 200
    assert config["settings"]["pools"][0]["policy"] == "round_robin"
    assert config["origins"]["drain.timeout_s"] == "file:1"
    assert config["origins"]["timeouts.idle_s"] == "default"
    assert "sk-canary" not in orjson.dumps(config).decode()
