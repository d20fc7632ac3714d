"""`penstock demo`: simulated vLLM servers, a little traffic and the proxy, on loopback.

With `--break` one thing goes wrong while somebody looks.
"""

import asyncio
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import aiohttp
import orjson

from penstock.bench.sim.faults import FaultKind
from penstock.bench.sim.job import Manner, Span
from penstock.bench.sim.profiles import PROFILES, Profile
from penstock.bench.sim.server import SimServer
from penstock.proxy.app import App
from penstock.proxy.reload.source import Source

# So long all is well, so that the change shows.
BREAKS_AFTER_S: Final = 15.0
_USUAL: Final = PROFILES["default"]
_SLOW: Final = 0.1


class Break(NamedTuple):
    """`act`: what is done to the servers. `crowd`: clients of the tenant `crawler` that come then,
    with documents of `crowd_words` and answers of `crowd_tokens`. `keyed`: clients have keys.
    `from_start`: it is so at once."""

    means: str
    act: Callable[[Sequence[SimServer]], None] = lambda servers: None
    crowd: int = 0
    crowd_words: tuple[int, int] = (40, 2_500)
    crowd_tokens: tuple[int, int] = (24, 220)
    keyed: bool = False
    from_start: bool = False
    profile: Profile = _USUAL


def _slow(servers: Sequence[SimServer]) -> None:
    servers[0].pump.speedup = _SLOW


def _hang(servers: Sequence[SimServer]) -> None:
    for kind in (FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_MID_STREAM):
        servers[0].faults.set(kind)


def _fail(servers: Sequence[SimServer]) -> None:
    servers[0].faults.set(FaultKind.INTERNAL_ERROR)


def _think(servers: Sequence[SimServer]) -> None:
    for each in servers:
        each.manner = Manner(hidden_tokens=Span(150, 250))


def _load(servers: Sequence[SimServer]) -> None:
    for each in servers:
        each.faults.set(FaultKind.HEALTH_503)


BREAKS: Final = {
    "slow": Break("the first server becomes ten times slower", _slow, crowd=12),
    "hung": Break("the first server accepts requests and answers none; its /health goes on", _hang),
    "errors": Break("the first server answers 500", _fail),
    "kv": Break(
        "KV caches are too small for the clients that come",
        crowd=24,
        crowd_tokens=(600, 1_200),
        profile=replace(_USUAL, name="small caches", kv_tokens=16_384),
    ),
    "flood": Break(
        "one tenant sends far more than its share",
        crowd=80,
        crowd_words=(10, 60),  # longer prompts would keep the GPUs busy, too
        keyed=True,
        profile=replace(_USUAL, name="few seats", max_num_seqs=8),
    ),
    "thinking": Break("first tokens come late, and nothing waits: the SLO is missed", _think),
    "cold": Break("all servers load, for 30 to 60 s", _load, from_start=True),
}


# So many conversations go on at once: enough to see something, a few percent of a core.
TALKERS: Final = 4
TURNS: Final = (1, 5)
PAUSE_S: Final = (0.5, 4.0)
ANSWER_TOKENS: Final = (24, 220)
DOCUMENT_WORDS: Final = (40, 2_500)
_WORDS: Final = ("water", "gate", "river", "turbine", "pressure", "valve", "lake", "power", "pipe")


class Traffic:
    """Clients of the proxy at `url`, until `stop`."""

    def __init__(self, url: str, model: str, rng: Random) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._rng = rng
        self._talking: list[asyncio.Task[None]] = []

    def start(
        self,
        talkers: int,
        key: str,
        words: tuple[int, int] = DOCUMENT_WORDS,
        tokens: tuple[int, int] = ANSWER_TOKENS,
    ) -> None:
        """Add clients with this key. `words`, `tokens`: the shortest and the longest of their
        documents and of their answers."""
        talk = [asyncio.create_task(self._talk(key, words, tokens)) for _ in range(talkers)]
        self._talking += talk

    async def stop(self) -> None:
        for each in self._talking:
            each.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    async def _talk(self, key: str, words: tuple[int, int], tokens: tuple[int, int]) -> None:
        """One conversation after another. Each turn sends all that was said before it."""
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                messages = [{"role": "system", "content": self._text(self._rng.randint(*words))}]
                for _ in range(self._rng.randint(*TURNS)):
                    messages.append({"role": "user", "content": self._text(12)})
                    await self._ask(session, messages, self._rng.randint(*tokens))
                    messages.append({"role": "assistant", "content": self._text(60)})
                    await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    async def _ask(
        self, session: aiohttp.ClientSession, messages: list[dict[str, str]], max_tokens: int
    ) -> None:
        body = {
            "model": self._model,
            "stream": True,
            "max_tokens": max_tokens,
            "messages": messages,
        }
        try:
            async with session.post(self._url, json=body) as answer:
                async for _ in answer.content.iter_any():
                    pass
        except aiohttp.ClientError:
            await asyncio.sleep(1.0)  # the demo's user tries something, or it ends

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choices(_WORDS, k=words))


MODEL: Final = "demo-model"
READY_WITHIN_S: Final = 10.0
PROMPT: Final = "Why does a penstock need a gate?"
HOST: Final = "127.0.0.1"
# The port that the other commands ask by default.
ADMIN_PORT: Final = 9321
# So that the page has a promise to show.
SLO: Final = {"ttft_s": {"p95": 1.0}, "error_rate": 0.01}
# Where clients have keys.
KEYS: Final = ("sk-demo-chat-0123456789abcdef", "sk-demo-crawler-0123456789abcdef")
TENANTS: Final = [
    {"name": name, "keys": [{"key": key}]}
    for name, key in zip(("chat", "crawler"), KEYS, strict=True)
]
# Enough for a trial, and below any limit on descriptors.
CONNECTIONS: Final = 100


async def demo(
    *, backends: int, port: int, admin_port: int | None, once: bool, breaks: str | None = None
) -> int:
    """Run the demo. With `once` returns 0 only if the stream ended with [DONE].

    Without `admin_port` it takes ADMIN_PORT, or a free port when that one is taken. `breaks`: what
    goes wrong (`demo_faults`).
    """
    fault = BREAKS[breaks] if breaks is not None else Break("nothing")
    servers = [SimServer(f"sim-{i}", fault.profile, MODEL, seed=i) for i in range(max(1, backends))]
    if fault.from_start:
        fault.act(servers)
    for server in servers:
        await server.start()
    source = Source(
        None,
        {},
        {
            "backends": [server.url for server in servers],
            "listen.host": HOST,
            "listen.port": port,
            "admin.port": _usual_port() if admin_port is None else admin_port,
            "limits.connections": CONNECTIONS,
            "drain.grace_s": 0.0,
            "log.access": False,  # the traffic would push away what to try
            "slo": [SLO],
            "tenants": TENANTS if fault.keyed else [],
        },
    )
    app = App(source, source.load())
    try:
        await app.start()
        if not fault.from_start:
            async with asyncio.timeout(READY_WITHIN_S):
                await app.monitor.started.wait()
        if once:
            return await _stream_one(app.port)
        app.take_signals()
        _tell(app, len(servers), fault.means if breaks else None)
        traffic = Traffic(f"http://{HOST}:{app.port}", MODEL, Random())
        traffic.start(TALKERS, KEYS[0])
        later = asyncio.create_task(_break(fault, servers, traffic))
        try:
            await app.serve()
        finally:
            later.cancel()
            await traffic.stop()  # or the drain would wait for it
        await app.leave()
        return 0
    finally:
        await app.close()
        for server in servers:
            await server.stop()


async def _break(fault: Break, servers: list[SimServer], traffic: Traffic) -> None:
    """What goes wrong, after a while. What goes wrong from the start ends, server by server."""
    await asyncio.sleep(BREAKS_AFTER_S)
    if fault.from_start:
        for each in servers:
            await asyncio.sleep(BREAKS_AFTER_S)
            each.faults.clear()
    else:
        fault.act(servers)
    traffic.start(fault.crowd, KEYS[1], fault.crowd_words, fault.crowd_tokens)


def _body(max_tokens: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "stream": True,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": PROMPT}],
    }


def _usual_port() -> int:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, ADMIN_PORT))
        except OSError:
            return 0
    return ADMIN_PORT


def _command() -> str:
    """The command with which this penstock was started."""
    called = sys.argv[0]
    if Path(called).name != "penstock":
        return f"{sys.executable} -m penstock.proxy"
    return "penstock" if shutil.which("penstock") == called else called


def _tell(app: App, servers: int, means: str | None) -> None:
    broken = f"\nWhat goes wrong, after {BREAKS_AFTER_S:.0f} s: {means}.\n" if means else ""
    admin = f"http://{HOST}:{app.admin_port}"
    print(
        f"""penstock is serving {servers} simulated vLLM servers on http://{HOST}:{app.port}
They have no model: they answer gibberish, at the speed of a real server.
{broken}
    {admin}/ui

is the page that shows them live. A little traffic keeps going. Send more:

    curl -N http://{HOST}:{app.port}/v1/chat/completions \\
      -H 'content-type: application/json' \\
      -d '{orjson.dumps(_body(48)).decode()}'

See the same from another terminal:

    {_command()} top --admin {admin}
    {_command()} status --admin {admin}
    {_command()} requests --admin {admin}

All paths of the admin port: {admin}/
Stop with Ctrl-C.
""",
        file=sys.stderr,
        flush=True,
    )


async def _stream_one(port: int) -> int:
    url = f"http://{HOST}:{port}/v1/chat/completions"
    done = False
    async with aiohttp.ClientSession() as session, session.post(url, json=_body(48)) as answer:
        if answer.status != 200:
            print(f"answered {answer.status}: {await answer.text()}", file=sys.stderr)
            return 1
        async for line in answer.content:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                done = True
            elif data:
                for choice in orjson.loads(data)["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
        backend = answer.headers["x-penstock-backend"]
    cut = "" if done else " (the stream was cut)"
    print(f"\n\nserved by {backend}, a simulated server: it answers gibberish{cut}")
    return 0 if done else 1
