"""`penstock bench verdict`: verdicts on fleets whose trouble is known, over HTTP in real time.

`play` starts the servers and a penstock, sends the traffic and reads the verdicts. The truth is
written beside each scenario (tests/data/verdict) before it is played.
"""

import asyncio
import contextlib
import socket
import subprocess
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from subprocess import DEVNULL
from time import monotonic
from typing import Any, Final

import aiohttp
import msgspec
import orjson

from penstock.bench.arguments import option
from penstock.bench.client import HOST
from penstock.bench.processes import free_port, python, start, stop
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.report import BenchError, head, row, save, say

# In a checkout only. Nothing of it is in a wheel.
SCENARIOS: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "verdict"
SETS: Final = ("known", "opened", "unseen")
# Before this time the fleet has only the traffic that begins at once: it gets warm.
ONSET_S: Final = 12.0
# From the onset, the verdict must be right by then.
WITHIN_S: Final = 20.0
LOOK_S: Final = 0.5
# What `penstock sim` is told of a server, in its own words.
OPTIONS: Final = (
    *("profile", "speedup", "kv_tokens"),
    *("max_num_seqs", "max_num_batched_tokens", "api_ms"),
)


class Server(msgspec.Struct, forbid_unknown_fields=True):
    """`count` simulated servers: options of `penstock sim`. `starts_s`: None if never."""

    profile: str = "8b-1xh100"
    speedup: float = 1.0
    kv_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    api_ms: float = 0.0
    starts_s: float | None = 0.0
    stops_s: float | None = None
    count: int = 1


class Traffic(msgspec.Struct, forbid_unknown_fields=True):
    """Requests of one tenant, at random times. Sizes are drawn evenly between their bounds.

    `prefix_tokens`: so many of each prompt are the same for all of this traffic.
    `read_bytes_per_s`: how fast its clients read. None: at once.
    """

    rate_per_s: float
    prompt_tokens: tuple[int, int] = (200, 400)
    answer_tokens: tuple[int, int] = (20, 60)
    tenant: str = "app"
    session: str | None = None
    prefix_tokens: int = 0
    choices: int = 1
    stream: bool = True
    read_bytes_per_s: float | None = None
    from_s: float = 0.0
    until_s: float = inf


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """A fault of `/sim/faults` that a server has from then on."""

    at_s: float
    server: int
    options: dict[str, Any]


class Scenario(msgspec.Struct, forbid_unknown_fields=True):
    """`truth`: the kinds that are right, the best one first. `tenant`: whom it must name, too.

    `config`: further keys of the configuration; `pool`: further keys of the pool.
    """

    name: str
    truth: tuple[str, ...]
    servers: list[Server]
    traffic: list[Traffic]
    faults: list[Fault] = []
    config: dict[str, Any] = {}
    pool: dict[str, Any] = {}
    tenant: str = ""
    length_s: float = ONSET_S + WITHIN_S + 3.0

    def __post_init__(self) -> None:
        self.servers = [each for each in self.servers for _ in range(each.count)]


@dataclass(slots=True)
class Told:
    """The verdicts that were told, by the time since the scenario began."""

    scenario: Scenario
    verdicts: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def at_last(self) -> dict[str, Any]:
        """The verdict when it must be right."""
        due = [each for at_s, each in self.verdicts if at_s <= ONSET_S + WITHIN_S]
        return due[-1] if due else {"kind": "none", "sentence": ""}

    @property
    def right(self) -> bool:
        return self._is_right(self.at_last)

    @property
    def right_after_s(self) -> float | None:
        """From the onset, when it was right for the first time and stayed so."""
        since: float | None = None
        for at_s, each in self.verdicts:
            if at_s < ONSET_S or at_s > ONSET_S + WITHIN_S:
                continue
            if not self._is_right(each):
                since = None
            elif since is None:
                since = at_s - ONSET_S
        return since

    def _is_right(self, verdict: dict[str, Any]) -> bool:
        names = not self.scenario.tenant or verdict.get("tenant") == self.scenario.tenant
        return names and verdict["kind"] in self.scenario.truth


class Servers:
    """The simulated servers of one scenario, each a process with a port of its own."""

    def __init__(self, scenario: Scenario) -> None:
        self._options = scenario.servers
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.urls = [f"http://{HOST}:{free_port()}" for _ in self._options]

    def start(self, number: int) -> None:
        server = self._options[number]
        command = python("penstock.proxy", "sim", "--port", self.urls[number].rpartition(":")[2])
        for name in OPTIONS:
            value = getattr(server, name)
            if value is not None:
                command += [f"--{name.replace('_', '-')}", str(value)]
        self._processes[number] = start(command, stdout=DEVNULL, stderr=DEVNULL)

    def stop(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def close(self) -> None:
        for process in self._processes.values():
            stop(process)


def key_of(tenant: str) -> str:
    return f"sk-{tenant}-0123456789abcdef"


def _config(scenario: Scenario, urls: Sequence[str]) -> dict[str, Any]:
    backends = [{"name": f"gpu-{number}", "url": url} for number, url in enumerate(urls)]
    tenants = sorted({each.tenant for each in scenario.traffic})
    return {
        "log": {"access": False, "level": "error"},
        "pools": [{"name": "chat", "backends": backends, **scenario.pool}],
        "tenants": [{"name": name, "keys": [{"key": key_of(name)}]} for name in tenants],
        **scenario.config,
    }


async def play(scenario: Scenario, seed: int = 1) -> Told:
    """Play it. Raises NotStarted."""
    told, rng = Told(scenario), Random(f"{scenario.name} {seed}")
    with contextlib.closing(Servers(scenario)) as servers:
        for number, server in enumerate(scenario.servers):
            if server.starts_s == 0.0:
                servers.start(number)
        config = _config(scenario, servers.urls)
        async with (
            ProxyProcess(servers.urls, ready=False, **config) as proxy,
            _session() as session,
            asyncio.TaskGroup() as group,
        ):
            began_s = monotonic()
            url = f"http://{HOST}:{proxy.port}/v1/completions"
            work = [_send_all(session, url, each, rng, began_s) for each in scenario.traffic]
            work.insert(0, _happen(session, servers, scenario, began_s))
            tasks = [group.create_task(each) for each in work]
            while (at_s := monotonic() - began_s) < scenario.length_s:
                found = orjson.loads(await proxy.ask("/api/v1/verdict"))
                told.verdicts += [(at_s, verdict) for verdict in found]
                await asyncio.sleep(LOOK_S)
            for task in tasks:
                task.cancel()
    return told


@contextlib.asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_small_socket)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=2_048
    ) as session:
        yield session


def _small_socket(address: Any) -> socket.socket:
    """With small buffers, so that a client that reads slowly is felt, as over a slow network."""
    sock = socket.socket(address[0], address[1], address[2])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    return sock


async def _happen(
    session: aiohttp.ClientSession, servers: Servers, scenario: Scenario, began_s: float
) -> None:
    events: list[tuple[float, int, dict[str, Any] | str]] = []
    for number, server in enumerate(scenario.servers):
        if server.starts_s:
            events.append((server.starts_s, number, "start"))
        if server.stops_s is not None:
            events.append((server.stops_s, number, "stop"))
    events += [(each.at_s, each.server, each.options) for each in scenario.faults]
    for at_s, number, what in sorted(events, key=lambda each: each[0]):
        await asyncio.sleep(max(0.0, began_s + at_s - monotonic()))
        if what == "start":
            servers.start(number)
        elif what == "stop":
            servers.stop(number)
        else:
            url = f"{servers.urls[number]}/sim/faults"
            async with session.post(url, json={"set": [what]}) as answer:
                answer.raise_for_status()


async def _send_all(
    session: aiohttp.ClientSession, url: str, traffic: Traffic, rng: Random, began_s: float
) -> None:
    at_s = traffic.from_s
    async with asyncio.TaskGroup() as group:
        while at_s < traffic.until_s:
            at_s += rng.expovariate(traffic.rate_per_s)
            await asyncio.sleep(max(0.0, began_s + at_s - monotonic()))
            group.create_task(_send(session, url, traffic, rng))


async def _send(session: aiohttp.ClientSession, url: str, traffic: Traffic, rng: Random) -> None:
    tokens = rng.randint(*traffic.prompt_tokens)
    own = max(1, tokens - traffic.prefix_tokens)
    # Four bytes are a token of the simulated servers.
    words = "abc " * traffic.prefix_tokens
    prompt = words + " ".join(f"{rng.getrandbits(12):03x}" for _ in range(own))
    body: dict[str, Any] = {
        "model": "sim-model",
        "prompt": prompt,
        "max_tokens": rng.randint(*traffic.answer_tokens),
        "stream": traffic.stream,
    }
    if traffic.choices > 1:
        body["n"] = traffic.choices
    headers = {"authorization": f"Bearer {key_of(traffic.tenant)}"}
    if traffic.session is not None:
        headers["x-session-id"] = traffic.session
    with contextlib.suppress(aiohttp.ClientError):
        async with session.post(url, json=body, headers=headers) as answer:
            while piece := await answer.content.read(512 if traffic.read_bytes_per_s else 65_536):
                if traffic.read_bytes_per_s:
                    await asyncio.sleep(len(piece) / traffic.read_bytes_per_s)


def run(options: Namespace) -> int:
    """Play the scenarios one after another. Returns 1 if a verdict is wrong. Raises BenchError."""
    chosen = [each for each in scenarios(options.set) if options.only in each.name]
    told = []
    for each in chosen:
        told.append(asyncio.run(play(each, options.seed)))
        say(f"{each.name}: {told[-1].at_last['kind']}")
    print(table(told))
    print(confusion(told))
    save(options.json, {each.scenario.name: each.verdicts for each in told})
    return 0 if all(each.right for each in told) else 1


def scenarios(name: str) -> tuple[Scenario, ...]:
    """A set. Raises BenchError where there is no checkout."""
    path = SCENARIOS / f"{name}.yaml"
    if not path.exists():
        raise BenchError(f"no scenarios: {path} is only in a checkout of penstock's repository")
    return msgspec.yaml.decode(path.read_bytes(), type=tuple[Scenario, ...])


def table(told: Sequence[Told]) -> str:
    lines = ["| scenario | truth | told | right after s | sentence |", "|---|---|---|---:|---|"]
    for each in told:
        last, after_s = each.at_last, each.right_after_s
        kind = last["kind"] if each.right else f"**{last['kind']}**"
        after = f"{after_s:.1f}" if after_s is not None else "-"
        truth = ", ".join(each.scenario.truth)
        lines.append(row(each.scenario.name, truth, kind, after, last["sentence"]))
    return "\n".join(lines)


def confusion(told: Sequence[Told]) -> str:
    """How often each truth was told as what."""
    counts = Counter(
        (each.scenario.truth[0], each.scenario.truth[0] if each.right else each.at_last["kind"])
        for each in told
    )
    kinds = sorted({kind for pair in counts for kind in pair})
    rows = [
        row(truth, *[counts[truth, kind] or "" for kind in kinds])
        for truth in sorted({truth for truth, _ in counts})
    ]
    right = sum(each.right for each in told)
    return "\n".join(["", head("truth", *kinds), *rows, "", f"{right} of {len(told)} right"])


def arguments(parser: ArgumentParser) -> None:
    sets = (
        "known: those the rules were made with; opened: written without knowledge of the rules,"
        " and looked at since; unseen: written so, and played before anybody looked at them"
    )
    option(parser, "--set", SETS, "known", sets)
    option(parser, "--only TEXT", str, "", "those whose names hold it")
    option(parser, "--seed N", int, 1, "of sizes and times")
    option(parser, "--json OUT", Path, None, "write all verdicts")
