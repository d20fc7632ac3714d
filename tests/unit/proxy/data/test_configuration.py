"""What follows from the settings: built completely, keeping what is named alike."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.conf.load import Loaded, load
from penstock.proxy.data.configuration import Configuration, Draft, configure, draft
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.reload import keep_fixed
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.host import Names


async def look_up(name: str) -> Sequence[str]:
    raise AssertionError(name)


NAMES = Names(look_up)


def loaded(*urls: str, **flags: Any) -> Loaded:
    return load(None, {}, {"backends": list(urls)} | flags)


def test_a_backend_may_have_a_key_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("of-b1\n")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "penstock.yaml").write_text(
        "pools:\n- name: p\n  api_key: of-the-pool\n  backends:\n"
        "  - {name: b0, url: http://10.0.0.1:1}\n"
        "  - {name: b1, url: http://10.0.0.2:1, api_key_file: key}\n"
    )
    loop = asyncio.new_event_loop()
    try:
        configuration = configure(drafted(load(tmp_path / "penstock.yaml", {}, {})), loop, NAMES)
    finally:
        loop.close()
    keys = {"b0": b"Bearer of-the-pool", "b1": b"Bearer of-b1"}
    assert configuration.authorizations == keys
    assert configuration.credentials == {name: (True, key) for name, key in keys.items()}


A, B, C = (f"http://10.0.0.{i}:8000" for i in (1, 2, 3))


def drafted(given: Loaded) -> Draft:
    return draft(given.settings, given.origins, None)


def first(*urls: str, **flags: Any) -> Configuration:
    return configure(drafted(loaded(*urls, **flags)), asyncio.get_running_loop(), NAMES)


def after(before: Configuration, *urls: str, **flags: Any) -> Configuration:
    new = drafted(loaded(*urls, **flags))
    return configure(new, asyncio.get_running_loop(), NAMES, before.members, before.counting)


async def test_backends_named_alike_are_the_same_objects() -> None:
    before = first(A, B, policy="least_tokens")
    b0, b1 = before.fleet.backends
    next_one = after(before, A, C, policy="session")
    assert next_one.fleet.backends[0] is b0
    assert next_one.connections["b0"] is before.connections["b0"]
    assert next_one.fleet.backends[1] is not b1  # moved: another server
    assert next_one.connections["b1"] is not before.connections["b1"]
    assert next_one.fleet.pools[0].policy is not before.fleet.pools[0].policy
    assert (before.sessions is None, next_one.sessions is None) == (True, False)


@pytest.mark.parametrize(
    ("policy", "urls", "sessions", "prefixes"),
    [
        ("round_robin", (A, B), False, False),
        ("session", (A, B), True, False),
        ("token_cost", (A, B), True, True),
        ("token_cost", (A,), True, False),  # one backend: its cache decides nothing
    ],
)
async def test_only_what_a_choice_needs_is_read(
    policy: str, urls: tuple[str, ...], sessions: bool, prefixes: bool
) -> None:
    found = first(*urls, policy=policy)
    assert (found.sessions is not None, found.prefixes) == (sessions, prefixes)
    assert found.session_pools == ({"default"} if sessions else set())


async def test_nothing_changes_before_it_is_settled() -> None:
    before = first(A)
    environ = {
        "PENSTOCK_POOLS": f'[{{name: default, backends: [{{name: b0, url: "{A}", weight: 4}}]}}]'
    }
    new = drafted(load(None, environ, {"timeouts.connect_s": 9.0}))
    next_one = configure(new, asyncio.get_running_loop(), NAMES, before.members)
    (backend,) = before.fleet.backends
    assert next_one.fleet.backends == (backend,)
    assert (backend.weight, before.connections["b0"].connect_timeout_s) == (1.0, 1.0)
    next_one.apply()
    assert (backend.weight, before.connections["b0"].connect_timeout_s) == (4.0, 9.0)


def test_ports_stay_as_they_are_until_a_restart() -> None:
    running = loaded(A, **{"listen.port": 1000, "admin.host": "::1"})
    new = loaded(B, **{"listen.port": 2000, "limits.body_bytes": 5000})
    settled, waiting = keep_fixed(new, running)
    assert waiting == ("listen.port", "admin.host")
    assert settled.settings.listen.port == 1000
    assert settled.settings.admin.host == "::1"
    assert settled.settings.limits.body_bytes == 5000
    assert settled.settings.pools == new.settings.pools
    assert settled.origins["listen.port"] == "flag --port"
    assert keep_fixed(settled, running) == (settled, ())


class Scene:
    """A fleet that is swapped, and what is left of former ones. Time stands still."""

    def __init__(self) -> None:
        self.running = first(A, B)
        self.metrics = Metrics(["default"])
        self.retirement = Retirement(self.metrics, lambda: self.running.fleet)

    def swap(self, *urls: str) -> None:
        before = self.running
        new = drafted(loaded(*urls))
        known = (*self.retirement.members, *before.members)
        self.running = configure(new, asyncio.get_running_loop(), NAMES, known)
        self.retirement.take(before.members)

    @property
    def left(self) -> list[Backend]:
        return [backend for backend, _ in self.retirement.members]


async def test_one_that_is_named_again_is_taken_back() -> None:
    scene = Scene()
    b0, b1 = scene.running.fleet.backends
    lease = Lease(b1, Ask("/v1/completions"), 0.0)
    scene.swap(A)
    assert scene.left == [b1]
    assert scene.retirement.known == (b0, b1)
    scene.swap(A, C)  # its name is another's now
    assert scene.left == [b1]
    assert scene.retirement.known == scene.running.fleet.backends
    scene.swap(A, B)
    assert scene.running.fleet.backends == (b0, b1)
    assert b1.own.requests == 1
    lease.end(0.0)
    scene.retirement.close()


async def test_what_is_idle_leaves_with_its_series() -> None:
    scene = Scene()
    b0, b1 = scene.running.fleet.backends
    busy, idle = Lease(b0, Ask("/v1/completions"), 0.0), b1
    for name in ("b0", "b1"):
        scene.metrics.of("default").request(name, 200, 0.1)
    scene.swap(C)  # b0 is another server, b1 is gone
    scene.retirement.dismiss()
    assert scene.left == [b0]
    assert idle not in scene.retirement.known
    assert set(scene.metrics.of("default").requests) == {("b0", 200)}
    busy.end(0.0)
    scene.retirement.dismiss()
    assert not scene.left
    assert set(scene.metrics.of("default").requests) == {("b0", 200)}  # of the one in use
    scene.retirement.close()


async def test_a_pool_that_is_gone_has_no_series() -> None:
    scene = Scene()
    for counter in (scene.metrics.adapter_loads, scene.metrics.newcomers):
        counter.add("default", "ok")
        counter.add("gone", "ok")
    scene.metrics.forget_pool("gone")
    for counter in (scene.metrics.adapter_loads, scene.metrics.newcomers):
        assert dict(counter.items()) == {("default", "ok"): 1}
    scene.retirement.close()


async def test_a_reload_has_names_looked_up_again_that_were_not_found() -> None:
    asked = 0

    async def in_vain(name: str) -> Sequence[str]:
        nonlocal asked
        asked += 1
        raise OSError(name)

    new = drafted(loaded("http://gpu.example:8000"))
    loop = asyncio.get_running_loop()
    before = configure(new, loop, Names(in_vain))
    after = configure(new, loop, Names(in_vain), before.members)
    for settled in (False, True):
        if settled:
            after.apply()
        for _ in range(2):  # the second is told without a lookup
            with pytest.raises(OSError, match="no address"):
                await after.connections["b0"].host.addresses()
        assert asked == 1 + settled


async def test_a_second_backend_makes_the_first_forget_how_fast_it_was_without_a_cache() -> None:
    before = first(A, policy="token_cost")
    (backend,) = before.fleet.backends
    plane = DataPlane(
        before,
        loop=asyncio.get_running_loop(),
        rng=Random(1),
        metrics=Metrics([]),
        on_failure=lambda *_: None,
    )
    measured = backend.prefill_speed
    plane.use(after(before, A, policy="token_cost"))
    assert backend.prefill_speed is measured
    plane.use(after(before, A, B, policy="token_cost"))
    assert backend in plane.fleet.backends
    assert backend.prefill_speed is not measured
