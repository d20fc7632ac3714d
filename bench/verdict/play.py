"""A fleet with one known cause of slowness, and what penstock says of it.

`play` starts the servers and a penstock, sends the traffic and reads the verdicts, over HTTP in
real time. The truth is written beside each scenario (tests/data/verdict) before it is played.
"""

import asyncio
import contextlib
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import aiohttp
import msgspec
import orjson

from penstock.bench.client import HOST
from penstock.bench.processes import NotStarted, python, start, stop

# Before this time the fleet has only the traffic that begins at once: it gets warm.
ONSET_S: Final = 12.0
# From the onset, the verdict must be right by then.
WITHIN_S: Final = 20.0
LOOK_S: Final = 0.5
START_S: Final = 10.0


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


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


class Stage:
    """The processes of one scenario."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._folder = folder
        *self.server_ports, self.port, self.admin_port = free_ports(len(scenario.servers) + 2)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # servers by number, -1: penstock

    def start_server(self, number: int) -> None:
        self._processes[number] = self._start(
            *_options(self._scenario.servers[number], self.server_ports[number])
        )

    def stop_server(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def start_penstock(self) -> None:
        config = self._folder / "penstock.json"
        config.write_bytes(orjson.dumps(self._config()))
        self._processes[-1] = self._start("serve", "--config", str(config))

    def close(self) -> None:
        for process in self._processes.values():
            stop(process)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self._folder / "log").open("ab")
        return start(
            python("penstock.proxy", *arguments), stdout=subprocess.DEVNULL, stderr=log.fileno()
        )

    def _config(self) -> dict[str, Any]:
        scenario = self._scenario
        backends = [
            {"name": f"gpu-{number}", "url": f"http://{HOST}:{port}"}
            for number, port in enumerate(self.server_ports)
        ]
        tenants = sorted({each.tenant for each in scenario.traffic})
        return {
            "listen": {"host": HOST, "port": self.port},
            "admin": {"host": HOST, "port": self.admin_port},
            "log": {"access": False},
            "pools": [{"name": "chat", "backends": backends, **scenario.pool}],
            "tenants": [{"name": name, "keys": [{"key": key_of(name)}]} for name in tenants],
            **scenario.config,
        }


def key_of(tenant: str) -> str:
    return f"sk-{tenant}-0123456789abcdef"


@contextlib.contextmanager
def staged(scenario: Scenario) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(scenario, Path(folder))
        try:
            yield stage
        finally:
            stage.close()


async def play(scenario: Scenario, seed: int = 1) -> Told:
    """Play it. Raises NotStarted."""
    told, rng = Told(scenario), Random(f"{scenario.name} {seed}")
    with staged(scenario) as stage:
        for number, server in enumerate(scenario.servers):
            if server.starts_s == 0.0:
                stage.start_server(number)
        stage.start_penstock()
        async with _session() as session:
            await _started(session, stage)
            began_s = monotonic()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_happen(session, stage, scenario, began_s)),
                    *[
                        group.create_task(_send_all(session, stage, each, rng, began_s))
                        for each in scenario.traffic
                    ],
                ]
                await _read_verdicts(session, stage, told, began_s)
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


async def _started(session: aiohttp.ClientSession, stage: Stage) -> None:
    until_s = monotonic() + START_S
    while monotonic() < until_s:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"http://{HOST}:{stage.admin_port}/livez") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise NotStarted("penstock did not start")


async def _read_verdicts(
    session: aiohttp.ClientSession, stage: Stage, told: Told, began_s: float
) -> None:
    url = f"http://{HOST}:{stage.admin_port}/api/v1/verdict"
    while (at_s := monotonic() - began_s) < told.scenario.length_s:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(url) as answer:
                for each in await answer.json():
                    told.verdicts.append((at_s, each))
        await asyncio.sleep(LOOK_S)


async def _happen(
    session: aiohttp.ClientSession, stage: Stage, scenario: Scenario, began_s: float
) -> None:
    """Start, stop and break servers when it is time."""
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
            stage.start_server(number)
        elif what == "stop":
            stage.stop_server(number)
        else:
            url = f"http://{HOST}:{stage.server_ports[number]}/sim/faults"
            async with session.post(url, json={"set": [what]}) as answer:
                answer.raise_for_status()


async def _send_all(
    session: aiohttp.ClientSession, stage: Stage, traffic: Traffic, rng: Random, began_s: float
) -> None:
    """Requests at random times, until it is over."""
    at_s = traffic.from_s
    async with asyncio.TaskGroup() as group:
        while at_s < traffic.until_s:
            at_s += rng.expovariate(traffic.rate_per_s)
            await asyncio.sleep(max(0.0, began_s + at_s - monotonic()))
            group.create_task(_send(session, stage, traffic, rng))


async def _send(
    session: aiohttp.ClientSession, stage: Stage, traffic: Traffic, rng: Random
) -> None:
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
    url = f"http://{HOST}:{stage.port}/v1/completions"
    with contextlib.suppress(aiohttp.ClientError):
        async with session.post(url, json=body, headers=headers) as answer:
            while piece := await answer.content.read(512 if traffic.read_bytes_per_s else 65_536):
                if traffic.read_bytes_per_s:
                    await asyncio.sleep(len(piece) / traffic.read_bytes_per_s)


def _options(server: Server, port: int) -> list[str]:
    options = {
        "--port": port,
        "--profile": server.profile,
        "--speedup": server.speedup,
        "--kv-tokens": server.kv_tokens,
        "--max-num-seqs": server.max_num_seqs,
        "--max-num-batched-tokens": server.max_num_batched_tokens,
        "--api-ms": server.api_ms or None,
    }
    given = [[name, str(value)] for name, value in options.items() if value is not None]
    return ["sim", *[each for pair in given for each in pair]]
