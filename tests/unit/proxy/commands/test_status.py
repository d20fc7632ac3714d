"""What `penstock status` says beside the table, from the listing of a real backend."""

import io
import os
import time
from typing import Any

import pytest

from penstock.balancing.backend import AdminState, State
from penstock.conf.settings import Settings
from penstock.health.probes import Outcome
from penstock.proxy.admin.fleet_listing import describe
from penstock.proxy.commands.admin_client import AdminError
from penstock.proxy.commands.cli import of_several_servers
from penstock.proxy.commands.status import (
    EVERY_S,
    ejected_of,
    proxy_lines,
    set_aside,
    several_of,
    told_of,
    unlisted_of,
    watch,
)
from tests.unit.health.watched import HUNG, REFUSED, Scene


def told(scene: Scene) -> list[str]:
    watch = scene.watch
    return ejected_of(
        [describe(scene.backend, watch.last_probes, scene.now_s, to_return=watch.to_return())]
    )


async def ejected_twice() -> Scene:
    """The second ejection has a waiting time of about 10 s."""
    scene = Scene()
    await scene.turn()
    scene.watch.certain("unreachable")
    assert await scene.turn(2) is State.WARMING
    scene.ask.live_is = REFUSED
    assert await scene.turn() is State.EJECTED
    return scene


async def test_an_ejected_backend_that_answers_again_tells_what_it_waits_for() -> None:
    scene = await ejected_twice()
    assert told(scene) == []  # its probes fail: the reason says why
    scene.ask.live_is = Outcome()
    scene.ask.deep_is = HUNG
    begins = "b0 passes its probes. Before it returns: "
    said = []
    for step_s in (0.0, 4.0, 30.0):
        assert await scene.turn(step_s=step_s) is State.EJECTED
        said += told(scene)
    may = "b0 is ejected, but may be able. It serves requests when no other backend can."
    assert said == [
        f"{begins}1 more passed probe, 11 s of its waiting time, a passed deep probe.",
        may,
        f"{begins}7 s of its waiting time, a passed deep probe.",
        may,
        f"{begins}a passed deep probe.",
    ]
    scene.ask.deep_is = Outcome()
    assert await scene.turn() is State.WARMING
    assert told(scene) == []


async def test_nothing_is_awaited_of_a_backend_in_maintenance() -> None:
    scene = await ejected_twice()
    scene.ask.live_is = Outcome()
    await scene.turn()
    assert told(scene)
    scene.backend.admin_state = AdminState.MAINT
    assert told(scene) == []


async def test_a_backend_that_is_ejected_on_suspicion_may_still_serve() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.deep_is = HUNG
    assert await scene.turn(12, step_s=10.0) is State.EJECTED
    begins = "b0 is ejected, but may be able."
    assert any(line.startswith(begins) for line in told(scene))
    scene.watch.certain("unreachable")
    assert not any(line.startswith(begins) for line in told(scene))


def test_a_fleet_that_the_operator_took_out_tells_how_to_go_on() -> None:
    states = enumerate(["drain", "ready", "maint"])
    fleet = [{"name": f"gpu-{at}", "admin_state": each, "can_serve": False} for at, each in states]
    said = "In drain or maint: gpu-0, gpu-2. To go on, run: penstock ready gpu-0"
    assert set_aside(fleet) == [said]
    fleet[1]["can_serve"] = True
    assert set_aside(fleet) == []


def test_a_name_that_stands_for_several_servers_is_told_with_the_remedy() -> None:
    fleet = [{"name": f"gpu-{at}", "servers": at} for at in (0, 1, 2)]
    (line,) = several_of([*fleet, {"name": "of an older version"}])
    assert line.startswith("gpu-2: its name has 2 addresses, and all requests go to one.")
    assert "discover: {dns: NAME:PORT}" in line


async def test_check_tells_such_names_as_far_as_dns_answers() -> None:
    names = {"one": ["10.0.0.1", "::1"], "two": ["10.0.0.1", "10.0.0.2", "::1"], "none": []}
    backends = [{"name": each, "url": f"http://{each}:8000"} for each in names]
    settings = Settings.model_validate({"pools": [{"name": "p", "backends": backends}]})

    async def look_up(name: str) -> list[str]:
        return names[name]

    (line,) = await of_several_servers(settings, look_up)
    assert line.startswith("two: its name has 2 addresses")


@pytest.mark.parametrize(
    ("age_s", "kept"),
    [(None, "it has told no backend yet"), (75.0, "its list of 3 backends from 1 min ago stays")],
)
def test_a_source_that_fails_is_told_with_what_stays(age_s: float | None, kept: str) -> None:
    told = {"pool": "chat", "source": "dns", "backends": 3, "age_s": age_s}
    (line,) = told_of(PROXY | {"waiting": {}, "discovery": [told | {"problem": "SERVFAIL"}]})
    assert line == f"Discovery of pool chat by dns: SERVFAIL; {kept}."
    assert not told_of(PROXY | {"waiting": {}, "discovery": [told | {"problem": None}]})


async def test_a_pool_whose_models_nobody_tells_is_named_with_the_remedy() -> None:
    scene = Scene()
    scene.ask.ready_is = Outcome()  # its key is refused, or it has no such list
    await scene.turn()
    backend = scene.backend
    assert backend.can_serve
    (line,) = unlisted_of([describe(backend, {}, 0.0)])
    assert line.startswith(f"{backend.pool}: ")
    assert "`pools[].models`" in line
    backend.models = {"m": b"{}"}
    assert not unlisted_of([describe(backend, {}, 0.0)])
    backend.models, backend.state = None, State.EJECTED
    assert not unlisted_of([describe(backend, {}, 0.0)])


SINCE: float = time.mktime((2026, 11, 25, 23, 2, 1, 0, 0, -1))
PROXY: dict[str, Any] = {
    "version": "0.1.0",
    "build": "compiled",
    "state": "ready",
    "since": SINCE,
    "up_s": 11_000.0,
    "open_requests": 1_041,
    "lag_ms": 3.4,
    "refused_lately": {},
    "last_reload": None,
    "reload_failed": [],
    "needs_restart": [],
    "waiting": {"interactive": 2, "batch": 10},
}


def test_the_state_is_one_line() -> None:
    assert proxy_lines(PROXY)[0] == (
        "Proxy ready, up 3 h since 11-25 23:02, 0.1.0 compiled, 1,041 open, 12 queued, lag 3 ms"
    )
    assert len(proxy_lines(PROXY | {"waiting": {}})) == 1


def test_what_an_older_proxy_does_not_tell_is_not_told_as_zero() -> None:
    told = {"version": "0.0.9", "state": "ready", "reload_failed": [], "waiting": {"standard": 0}}
    assert proxy_lines(told) == ["Proxy ready, up -, 0.0.9, - open, 0 queued, lag -"]


@pytest.mark.parametrize("problems", [[], ["a.yaml:1: x: unknown key", "a.yaml:2: y: is required"]])
def test_the_last_reload_is_told_with_its_time_and_why_it_failed(problems: list[str]) -> None:
    last = {"at": SINCE, "age_s": 250.0, "succeeded": not problems}
    proxy = PROXY | {"waiting": {}, "last_reload": last, "reload_failed": problems}
    when = "4 min ago, 11-25 23:02"
    failed = f"The last reload failed {when}; the previous configuration is still in use:"
    expected = [failed, *(f"  {each}" for each in problems)]
    assert proxy_lines(proxy)[1:] == (
        expected if problems else [f"The last reload succeeded {when}."]
    )


def test_what_was_refused_is_told_with_the_most_frequent_reasons() -> None:
    refused = {"wait": 1_200, "deadline": 30, "lag": 5, "memory": 4, "budget": 2, "unread": 1}
    assert proxy_lines(PROXY | {"waiting": {}, "refused_lately": refused})[1:] == [
        "Refused in the last minutes: 1,242 (wait 1,200, deadline 30, lag 5, memory 4, others 3)."
    ]


def test_what_waits_is_told_by_class_while_something_waits() -> None:
    proxy = {"state": "ready", "reload_failed": [], "waiting": {"interactive": 0, "batch": 0}}
    assert told_of(proxy) == []
    proxy["waiting"] = {"interactive": 2, "standard": 0, "batch": 1_000}
    told = "Requests that wait for room at a backend: interactive 2, batch 1,000."
    assert told_of(proxy) == [told]


class Screen(io.StringIO):
    """Standard output."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown(
    monkeypatch: pytest.MonkeyPatch, drawn: list[list[str] | AdminError], *, terminal: bool
) -> str:
    """What was written until Ctrl-C, which comes while it sleeps."""
    screen, slept_s = Screen(terminal=terminal), []
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "80")
    todo = iter(drawn)

    def draw() -> list[str]:
        lines = next(todo)
        if isinstance(lines, AdminError):
            raise lines
        return lines

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        if len(slept_s) == len(drawn):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(draw, sleep)
    assert slept_s == [EVERY_S] * len(drawn)
    return screen.getvalue()


def test_a_terminal_is_cleared_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(monkeypatch, [["one"], ["two"]], terminal=True)
    assert [block.splitlines()[1] for block in out.split("\x1b[2J\x1b[H")[1:]] == ["one", "two"]


def test_what_does_not_fit_a_terminal_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {number}" for number in range(1_000)]
    out = shown(monkeypatch, [lines], terminal=True).splitlines()
    assert out[1:] == ["line 0", "line 1", "line 2", "997 more lines: penstock status shows all"]
    wide = ["x" * 81, *lines]
    out = shown(monkeypatch, [wide], terminal=True).splitlines()
    assert out[1:] == ["x" * 81, "line 0", "999 more lines: penstock status shows all"]
    assert shown(monkeypatch, [lines], terminal=False).splitlines()[1:-1] == lines


@pytest.mark.parametrize(
    ("drawn", "blocks"),
    [
        ([["one", "more"], ["two"]], [["one", "more"], ["two"]]),
        ([["one"], AdminError("no answer"), ["two"]], [["one"], ["penstock: no answer"], ["two"]]),
    ],
)
def test_a_pipe_gets_one_block_after_another(
    drawn: list[Any], blocks: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shown(monkeypatch, drawn, terminal=False)
    assert "\x1b" not in out
    assert [block.splitlines()[1:] for block in out.split("\n\n")] == [*blocks, []]


def test_it_ends_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert watch(lambda: ["one"], lambda _: None) == 0
