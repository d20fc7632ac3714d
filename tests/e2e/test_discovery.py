"""Backends from a file and from names that change while requests run."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import dns.rcode

from penstock.bench.sim.server import SimServer
from tests.e2e.api_server import ApiServer, endpoint_slice
from tests.e2e.name_server import NameServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask, stream
from tests.e2e.traffic import DONE, Traffic

PATH = "/v1/chat/completions"
SEEN_S = 3.0  # a look a second, a swap and the first probe


def pool(path: Path, **more: Any) -> dict[str, Any]:
    return {"discover": {"file": str(path), "allow": ["127.0.0.0/8"]}, "backends": [], **more}


def listed(*servers: SimServer) -> str:
    return json.dumps([each.url for each in servers])


class ConfigMap:
    """A folder as Kubernetes mounts it: `..data` is a link that is swapped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._version = folder, 0
        folder.mkdir()
        (folder / "backends.json").symlink_to("..data/backends.json")

    @property
    def path(self) -> Path:
        return self._folder / "backends.json"

    def write(self, content: str) -> None:
        self._version += 1
        version = self._folder / f"..v{self._version}"
        version.mkdir()
        (version / "backends.json").write_text(content)
        (self._folder / "..tmp").symlink_to(version.name)
        os.replace(self._folder / "..tmp", self._folder / "..data")


async def until_used(
    penstock: Penstock, *servers: SimServer, host: str = "127.0.0.1", within_s: float = SEEN_S + 2
) -> None:
    """Wait until these are the backends, and can serve."""
    wanted = {f"http://{host}:{each.port}" for each in servers}

    def holds(told: list[dict[str, Any]]) -> bool:
        used = [each for each in told if not each["removed"]]
        return {each["url"] for each in used} == wanted and all(each["can_serve"] for each in used)

    await penstock.until(holds, within_s)


async def test_a_file_that_changes_in_all_ways_loses_no_request(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    a, b, c, d = await simulate(4)
    mounted = ConfigMap(tmp_path / "mounted")
    mounted.write(listed(a, b))
    penstock = await serve([], ready=2, pool=pool(mounted.path))
    await until_used(penstock, a, b)
    async with Traffic(penstock.url) as traffic:
        await traffic.until(50)
        mounted.write(listed(c, d))
        await until_used(penstock, c, d)
        mounted.write(listed(a, c)[:-9])  # half written
        await penstock.until_logged("not valid YAML")
        mounted.write("[]")
        await penstock.until_logged("it lists no backend")
        mounted.path.unlink()
        await penstock.until_logged("cannot be read")
        await until_used(penstock, c, d)
        mounted.path.symlink_to("..data/backends.json")
        mounted.write(json.dumps([a.url, {"url": c.url, "weight": -1}, b.url]))
        await until_used(penstock, a, b)
        await traffic.until(traffic.whole + 50)
    assert not traffic.failed
    await penstock.until_logged("entry 2 is left out: weight must be at least")


async def test_a_backend_that_stays_keeps_its_counts_and_says_where_it_came_from(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    a, b = await simulate(2)
    path = tmp_path / "backends.json"
    path.write_text(listed(a))
    penstock = await serve([], ready=1, pool=pool(path))
    await ask(penstock, PATH, CHAT)
    (before,) = await penstock.backends()
    path.write_text(listed(a, b))
    await until_used(penstock, a, b)
    kept = next(each for each in await penstock.backends() if each["url"] == a.url)
    assert (kept["requests_total"], kept["found"]) == (1, before["found"])
    assert kept["found"]["source"] == "file"
    told = await penstock.admin("proxy")
    assert told["discovery"][0] | {"age_s": 0} == {
        "pool": "default",
        "source": "file",
        "backends": 2,
        "left_out": 0,
        "age_s": 0,
        "problem": None,
    }
    assert (
        'penstock_discovered_backends{pool="default",source="file"} 2' in await penstock.metrics()
    )


async def test_a_pool_without_backends_yet_refuses_with_503_and_serves_once_it_has_one(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    (a,) = await simulate(1)
    path = tmp_path / "backends.json"
    penstock = await serve([], ready=0, pool=pool(path))
    answer = await ask(penstock, PATH, CHAT)
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_backend")
    told = await penstock.admin("proxy")
    assert "cannot be read" in told["discovery"][0]["problem"]
    path.write_text(listed(a))
    await until_used(penstock, a)
    assert (await ask(penstock, PATH, CHAT)).status == 200


async def test_a_stream_of_a_backend_that_is_gone_goes_on(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    a, b = await simulate(2, profile="default", speedup=10)
    path = tmp_path / "backends.json"
    path.write_text(listed(a))
    penstock = await serve([], ready=1, pool=pool(path))
    async with stream(penstock, max_tokens=3_000) as answer:
        path.write_text(listed(b))
        await until_used(penstock, b)
        assert (await answer.read()).endswith(DONE)


async def test_a_reload_keeps_what_was_found(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    a, b = await simulate(2)
    path = tmp_path / "backends.json"
    path.write_text(listed(a, b))
    penstock = await serve([], ready=2, pool=pool(path))
    status, change = await penstock.reload(timeouts={"idle_s": 31})
    assert (status, change["kept"], change["removed"]) == (200, 2, [])


async def test_a_watched_configuration_is_reloaded_and_an_error_keeps_the_old_one(
    simulate: Simulate, serve: Serve
) -> None:
    a, b = await simulate(2)
    penstock = await serve([a], reload={"watch": True})
    backends = [{"name": f"b{n}", "url": each.url} for n, each in enumerate((a, b))]
    pools = [{"name": "default", "backends": backends}]
    async with Traffic(penstock.url) as traffic:
        await traffic.until(50)
        whole = penstock.config.read_bytes()
        penstock.config.write_bytes(whole[:-20])  # half written
        await penstock.until_logged("not reloaded")
        await until_used(penstock, a)
        penstock.config.write_bytes(whole)
        penstock.configure(pools=pools)
        await until_used(penstock, a, b)
        await traffic.until(traffic.whole + 50)
    assert not traffic.failed


def named(server: NameServer, name: str) -> dict[str, Any]:
    discover = {
        "dns": name,
        "resolver": f"127.0.0.1:{server.port}",
        "allow": ["127.0.0.0/8"],
    }
    return {"discover": discover, "backends": []}


async def test_names_that_change_and_fail_in_all_ways_lose_no_request(
    simulate: Simulate, serve: Serve
) -> None:
    a, b, c, d = await simulate(4)
    named_so: Any = {"host": "localhost", "within_s": 12}
    async with NameServer() as names:

        def points_to(*servers: SimServer) -> None:
            targets = [f"0 0 {each.port} localhost." for each in servers]
            names.records = {("_http._tcp.vllm.test", "SRV"): targets}

        points_to(a, b)
        penstock = await serve([], ready=2, pool=named(names, "_http._tcp.vllm.test"))
        async with Traffic(penstock.url) as traffic:
            await traffic.until(50)
            points_to(c, d)
            await until_used(penstock, c, d, **named_so)
            names.records = {}
            await penstock.until_logged("it lists no backend")
            names.code = dns.rcode.SERVFAIL
            await penstock.until_logged("is not resolved", 10)
            names.silent = True
            await asyncio.sleep(1)
            names.silent, names.code = False, dns.rcode.NOERROR
            await until_used(penstock, c, d, **named_so)
            points_to(b, c)
            await until_used(penstock, b, c, **named_so)
            await traffic.until(traffic.whole + 50)
    assert not traffic.failed


async def test_all_addresses_of_a_name_are_backends(simulate: Simulate, serve: Serve) -> None:
    (a,) = await simulate(1)
    async with NameServer() as names:
        names.records = {("vllm.test", "A"): [f"127.0.0.{n}" for n in range(1, 51)]}
        penstock = await serve([], ready=1, pool=named(names, f"vllm.test:{a.port}"))
        await penstock.until(lambda told: len(told) == 50, SEEN_S)


def of_pods(*servers: SimServer, ready: bool = True) -> list[dict[str, Any]]:
    """Slices of the pods of a Service, each with a port of its own."""
    return [
        endpoint_slice(
            f"vllm-{each.port}",
            "vllm",
            {
                "addresses": ["127.0.0.1"],
                "conditions": {"ready": ready, "serving": True, "terminating": not ready},
                "targetRef": {"kind": "Pod", "name": f"pod-{each.port}"},
            },
            port=each.port,
        )
        for each in servers
    ]


def in_cluster(api: ApiServer) -> dict[str, Any]:
    kubernetes = {"api_url": api.url, "namespace": "llm", "service": "vllm"}
    discover = {"kubernetes": kubernetes, "allow": ["127.0.0.0/8"]}
    return {"discover": discover, "backends": []}


async def test_endpoints_of_a_service_are_followed_through_every_fault(
    simulate: Simulate, serve: Serve
) -> None:
    a, b, c, d = await simulate(4)
    async with ApiServer() as api:
        await api.put(*of_pods(a, b), endpoint_slice("other", "another"))
        penstock = await serve([], ready=2, pool=in_cluster(api))
        told = {each["name"] for each in await penstock.backends()}
        assert told == {f"default.pod-{a.port}", f"default.pod-{b.port}"}
        async with Traffic(penstock.url) as traffic:
            await traffic.until(50)
            await api.put(*of_pods(c))
            await until_used(penstock, a, b, c)
            await api.put(*of_pods(a, ready=False))  # it terminates: no new request
            await until_used(penstock, b, c)
            await api.bookmark()
            await api.cut()
            await api.delete(f"vllm-{b.port}")
            await until_used(penstock, c)
            await api.cut(midway=True)
            await api.put(*of_pods(d))
            await until_used(penstock, c, d)
            for _ in range(2):  # 410 as a status, and as an event
                api.oldest = api.version + 2
                await api.cut()
                await api.put(*of_pods(a), *of_pods(a))
                await until_used(penstock, a, c, d)
                await api.delete(f"vllm-{a.port}")
                await until_used(penstock, c, d)
            await traffic.until(traffic.whole + 50)
        assert not traffic.failed
        for server in (c, d):
            await api.delete(f"vllm-{server.port}")
        await penstock.until(lambda listing: not listing, SEEN_S)  # its list is whole


async def test_a_right_that_is_missing_is_told_and_the_last_list_stays(
    simulate: Simulate, serve: Serve
) -> None:
    (a,) = await simulate(1)
    async with ApiServer() as api:
        await api.put(*of_pods(a))
        api.refuses = 403
        penstock = await serve([], ready=0, pool=in_cluster(api))
        await penstock.until_logged("403: forbidden: cannot list")
        assert (await ask(penstock, PATH, CHAT)).status == 503
        api.refuses = 0
        await until_used(penstock, a)
        api.refuses = 403
        await api.cut()
        await penstock.until_logged("the last list stays, of 1", 10)
        assert (await ask(penstock, PATH, CHAT)).status == 200


ADMIN = {"host": "127.0.0.1", "port": 0, "token": "root", "view_token": "reader"}


async def test_what_operators_order_outlasts_discovery_and_restarts_and_a_reload_counts_again(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    a, b, c = await simulate(3)
    path, state = tmp_path / "backends.json", {"dir": str(tmp_path / "state")}
    path.write_text(listed(a))
    options: dict[str, Any] = {"pool": pool(path), "state": state}
    options["admin"] = ADMIN | {"add_backends": True}
    penstock = await serve([], ready=1, **options)
    async with Traffic(penstock.url) as traffic:
        extra = {"pool": "default", "name": "extra", "url": b.url}
        status, told = await penstock.ask_admin("/api/v1/backends", "POST", json=extra)
        assert (status, told["name"], told["found"]["source"]) == (201, "extra", "operator")
        status, told = await penstock.ask_admin("/api/v1/backends", "POST", json=extra)
        assert (status, told["error"]["code"]) == (400, "invalid_backend")
        await until_used(penstock, a, b)
        path.write_text(listed(c))
        await until_used(penstock, b, c)
        await penstock.admin("backends/extra/drain", "POST")
        await traffic.until(50)
    assert not traffic.failed
    await penstock.stop()
    penstock = await serve([], ready=2, **options)
    states = {each["url"]: each["admin_state"] for each in await penstock.backends()}
    assert states == {b.url: "drain", c.url: "ready"}
    path.write_text(listed(a, b))  # another name for the same server: the operator's stays
    await until_used_urls(penstock, a.url, b.url)
    status, told = await penstock.ask_admin("/api/v1/backends/b9", "DELETE")
    assert (status, told["error"]["code"]) == (404, "unknown_backend")
    assert await penstock.admin("backends/extra", "DELETE") == {"removed": "extra"}
    await penstock.ask_admin("/api/v1/backends", "POST", json=extra | {"url": c.url})
    await until_used_urls(penstock, a.url, b.url, c.url)
    assert (await penstock.reload())[0] == 200
    await until_used_urls(penstock, a.url, b.url)


async def until_used_urls(penstock: Penstock, *urls: str) -> None:
    """Wait until these are in use, drained or not."""

    def holds(told: list[dict[str, Any]]) -> bool:
        return sorted(each["url"] for each in told if not each["removed"]) == sorted(urls)

    await penstock.until(holds, SEEN_S)


async def test_only_the_full_token_adds_backends_and_only_where_that_is_allowed(
    simulate: Simulate, serve: Serve
) -> None:
    (a,) = await simulate(1)
    penstock = await serve([a], admin=ADMIN)
    entry = {"pool": "default", "url": "http://127.0.0.1:9"}
    status, told = await penstock.ask_admin("/api/v1/backends", "POST", json=entry)
    assert (status, told["error"]["code"]) == (403, "forbidden")
    assert "admin.add_backends" in told["error"]["message"]
    status, told = await penstock.reload(admin=ADMIN | {"add_backends": True})
    assert status == 200
    penstock.token = "reader"
    status, told = await penstock.ask_admin("/api/v1/backends", "POST", json=entry)
    assert status == 403
    penstock.token = "root"
    status, told = await penstock.ask_admin("/api/v1/backends", "POST", data=b"{")
    assert (status, told["error"]["message"]) == (400, "The body is not JSON.")
