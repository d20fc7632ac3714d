"""The data path as a play: what clients and backends do goes in, lines of what happened come out.

All of it is real but the wires and the clock. A test says who does what, moves the time by hand and
compares what happened line by line; nothing sleeps, and no socket is opened.
"""

import asyncio
import errno
import os
import re
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

import orjson

from penstock.balancing.backend import Backend, State
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.speed.estimates import prior_prefill_s
from penstock.conf.settings import Settings
from penstock.health.probes import Outcome
from penstock.proxy.data.account import count_all
from penstock.proxy.data.adapters import cannot_load
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.exchange import Exchange
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.errors.backend import BackendError
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.deadline import Clock
from penstock.proxy.wire.host import Names
from tests.e2e.raw_backend import LENGTH

REACHABLE: Final = Names(has_way=lambda _: True)
# Turns of the loop in which everything that follows from one event has happened.
TURNS: Final = 12
STEP_S: Final = 0.05
REFUSED: Final = errno.ECONNREFUSED
_TOLD: Final = re.compile(
    rb'"content":"([^"]+)"|"text":"([^"]+)"|(\[DONE\])|: (ping)|"code":"(\w+)"'
)


def chat(*fields: str, stream: bool = True, head: bytes = b"", content: str = "x") -> bytes:
    """A client's request; `fields` are further members of its body."""
    members = [f'"messages":[{{"role":"user","content":"{content}"}}]', *fields]
    members += ['"stream":true'] * stream
    body = b"{%b}" % ",".join(members).encode()
    line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + head
    return line + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def post(path: str, body: bytes, head: bytes = b"") -> bytes:
    """A client's request with any body."""
    line = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return line % (path.encode(), head, len(body)) + body


def get(path: str, head: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (path.encode(), head)


def pool(name: str, *numbers: int, policy: str = "round_robin", **more: Any) -> dict[str, Any]:
    """The settings of a pool with these backends: b1 and so on."""
    backends = [{"name": f"b{each}", "url": f"http://10.0.0.{each}:1"} for each in numbers]
    return {"name": name, "policy": policy, "backends": backends} | more


def tenants(*names: str, **more: Any) -> list[dict[str, Any]]:
    """The settings of tenants, each with the key that `keyed` sends."""
    return [{"name": name, "keys": [{"key": f"key-of-tenant-{name}"}]} | more for name in names]


def keyed(name: str) -> bytes:
    return b"authorization: Bearer key-of-tenant-%b\r\n" % name.encode()


STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
END: Final = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str) -> bytes:
    """One event with one token."""
    return chunk(
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
        % text.encode()
    )


COMMENT: Final = chunk(b": is loading\n\n")
DONE: Final = chunk(b"data: [DONE]\n\n")
ERROR: Final = chunk(b'data: {"error":{"message":"no","code":500}}\n\n')


def plain(status: str, body: bytes = b"{}", *fields: bytes) -> bytes:
    """An answer with a length."""
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n" % status.encode()
    lines = b"".join(field + b"\r\n" for field in fields)
    return head + lines + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def text(text: str) -> bytes:
    """A plain answer with this text."""
    return plain("200 OK", b'{"choices":[{"text":"%b"}]}' % text.encode())


def told(data: bytes) -> str:
    """What an end user would see of it, and the codes of errors."""
    found = [b"".join(groups).decode() for groups in _TOLD.findall(data)]
    return " ".join(found) or f"{len(data)} bytes"


class _Wire(asyncio.Transport):
    """One side of a connection: tells the play what is written to it and how it ends."""

    def __init__(self, play: "Play", name: str, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._play = play
        self._name = name
        self.protocol = protocol
        self.written = b""
        self.unsent_bytes = 0
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 1) if name == "peername" else self._play.socket

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_reading(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._play.happens(f"{self._name} is not read")

    def resume_reading(self) -> None:
        self._play.happens(f"{self._name} is read again")

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += bytes(data)
        self._say(bytes(data))

    def _say(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("dropped")

    def _end(self, how: str) -> None:
        if not self.closed:
            self.closed = True
            self._play.happens(f"{self._name} {how}")
            self._play.loop.call_soon(self.protocol.connection_lost, None)

    # What the other side does -------------------------------------------------------------

    def sends(self, *data: bytes) -> None:
        """All in one read."""
        self.protocol.data_received(b"".join(data))
        self._play.turns()

    def closes(self) -> None:
        """A FIN: the whole connection ends."""
        if not self.protocol.eof_received() and not self.closed:
            self.closed = True
            self._play.loop.call_soon(self.protocol.connection_lost, None)
        self._play.turns()

    def resets(self) -> None:
        self.closed = True
        self.protocol.connection_lost(ConnectionResetError())
        self._play.turns()


class Client(_Wire):
    """A client's end."""

    def __init__(self, play: "Play", connection: ClientConnection) -> None:
        super().__init__(play, "client", connection)
        self.connection = connection

    @property
    def exchange(self) -> Exchange:
        """Of its request under way."""
        found = self.connection._exchange
        assert found is not None
        return found

    def fills(self) -> None:
        """It takes nothing more for now."""
        self.unsent_bytes = 300_000
        self.connection.pause_writing()
        self._play.turns()

    def drains(self) -> None:
        """It has taken everything."""
        self.unsent_bytes = 0
        self.connection.resume_writing()
        self._play.turns()

    def _say(self, data: bytes) -> None:
        says = []
        if data.startswith(b"HTTP/1.1 "):
            head, _, data = data.partition(b"\r\n\r\n")
            says.append(head[9:12].decode())
        whole = data.endswith(END)
        data = data.removesuffix(END)
        if data:
            says.append(told(data))
        says += ["end"] * whole
        self._play.happens("client got " + ", ".join(says))


class Upstream(_Wire):
    """A backend's end of one connection."""

    head = body = b""  # of the last request

    def _say(self, data: bytes) -> None:
        written = self.written
        end = written.find(b"\r\n\r\n")
        match = LENGTH.search(written, 0, end + 2)
        if end > 0 and len(written) == end + 4 + (int(match[1]) if match else 0):
            self.head, self.body = written[: end + 4], written[end + 4 :]
            self.written = b""
            self._play.asked(self._name, self)
            self._play.happens(f"{self._name} got {written.split()[0].decode()}")


class _First(Random):
    """Of equal backends it draws the first."""

    def random(self) -> float:
        return 0.9


class Loop(asyncio.SelectorEventLoop):
    """Its time is moved by hand; whether a dial succeeds is the play's to say."""

    def __init__(self, play: "Play") -> None:
        super().__init__()
        self._play = play
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self._play.dialed(address[0])

    async def create_connection(self, factory: Any, *where: Any, **how: Any) -> Any:  # type: ignore[override]
        how["sock"].close()
        return self._play.opened(factory())


# Of a backend whose speed is known: how many samples there are, and of how much work.
MEASURED, MEASURED_WORK = 1, 2_000


class Play:
    """A data plane between one client and backends b1, b2 …

    `down`: by the name of a backend, the error number with which its dials fail.
    """

    open: ClassVar[list["Play"]] = []  # the folder's conftest closes them

    def __init__(self, backends: int = 2, policy: str = "round_robin", **settings: Any) -> None:
        self.loop = Loop(self)
        self.lines: list[str] = []
        self.down: dict[str, int | None] = {}  # None: no answer
        self.socket = _Socket()
        self._dialing = ""
        self._upstream: dict[str, Upstream] = {}
        pools = [pool("p", *range(1, backends + 1), policy=policy)]
        asked = Settings.model_validate({"pools": pools, "log": {"access": False}} | settings)
        self.clock = Clock(self.loop.time)
        now = self.clock.now
        configuration = configure(draft(asked, {}, None), self.loop, REACHABLE, now=now)
        self.backends = configuration.fleet.backends
        for backend in self.backends:
            backend.state = State.READY
            if "admission" in settings:  # its speed is known: it gets few prompts beforehand
                backend.prefill_speed.observe(MEASURED_WORK, prior_prefill_s(MEASURED_WORK))
        self.metrics = Metrics(["p"])
        self.plane = DataPlane(
            configuration,
            loop=self.loop,
            rng=_First(1),
            metrics=self.metrics,
            on_failure=self._failed,
            load_adapter=self.load_adapter,
            now=now,
        )
        self.metrics.count_ended = partial(count_all, self.plane)
        self._counted: dict[tuple[str, int], int] = {}
        self._clients: list[Client] = []
        self.client = self.connects()
        Play.open.append(self)

    def close(self) -> None:
        """The end of a test: all clients leave, and nothing may be left."""
        if self.loop.is_closed():
            return
        Play.open.remove(self)
        try:
            self._end()
        finally:
            self.socket.close()
            self.loop.close()

    def _end(self) -> None:
        for client in self._clients:
            if not client.closed:
                client.closes()
        self.plane.adapters.close()
        self.plane.mirrors.end_all()
        self.turns()
        assert all(backend.own.idle for backend in self.backends), "a lease was not given back"
        assert not self.plane.clients
        assert not self.plane.bodies.held_bytes
        assert not len(self.plane.mirrors)
        assert not self.plane.mirrors.bodies_bytes

    def connects(self) -> Client:
        """One more client."""
        connection = ClientConnection(self.plane)
        client = Client(self, connection)
        connection.connection_made(client)
        self._clients.append(client)
        return client

    def happens(self, line: str) -> None:
        self.lines.append(line)

    def happened(self) -> list[str]:
        """What happened since the last call, and which requests were counted."""
        count_all(self.plane)
        for pool in self.metrics.pools.values():
            for key, count in pool.requests.items():
                if count > self._counted.get(key, 0):
                    self._counted[key] = count
                    self.happens(f"counted {key[1]} {key[0] or 'nobody'}")
        lines, self.lines = self.lines, []
        return lines

    def turns(self) -> None:
        """Let everything happen that follows from what has happened, and count what has ended."""
        self.loop.run_until_complete(some_turns())
        count_all(self.plane)

    def passes(self, time_s: float) -> None:
        """Time passes."""
        until_s = self.loop.now_s + time_s
        while self.loop.now_s < until_s:
            self.loop.now_s = min(until_s, self.loop.now_s + STEP_S)
            self.turns()

    def after(self, time_s: float) -> list[str]:
        """Time passes. What has happened by then?"""
        self.passes(time_s)
        return self.happened()

    def answers(self, name: str, *texts: str) -> None:
        """A backend answers its last request with a whole stream."""
        self[name].sends(STREAM, *map(token, texts or "a"), DONE, END)
        self.turns()

    def streams(self, name: str, *texts: str) -> None:
        """It begins a stream, with these tokens."""
        self[name].sends(STREAM, *map(token, texts))

    def says(self, name: str, *texts: str) -> None:
        """Further tokens."""
        self[name].sends(*map(token, texts))

    def ends(self, name: str, *texts: str) -> None:
        """Further tokens, and the end of its stream."""
        self[name].sends(*map(token, texts), DONE, END)

    def model(self, name: str) -> Any:
        """Which model a backend was asked for last."""
        return orjson.loads(self[name].body)["model"]

    def ejects(self, *names: str) -> None:
        """Eject these, and no others."""
        for backend in self.backends:
            backend.state = State.EJECTED if backend.name in names else State.READY

    def reloads(self, **changes: Any) -> None:
        """Take a configuration with these sections."""
        old = self.plane.configuration
        new = draft(old.settings.model_copy(update=changes), {}, None)
        members, now = old.members, self.loop.time
        self.plane.use(configure(new, self.loop, REACHABLE, members, running=old.fleet, now=now))

    def sleeps(self, time_s: float) -> None:
        """The process does not run for this long."""
        self.loop.now_s += time_s
        self.clock.slept(time_s)
        self.plane.clients.slept()

    def __getitem__(self, name: str) -> Upstream:
        """The connection to a backend that was opened, or got a request, last."""
        return self._upstream[name]

    def asked(self, name: str, upstream: Upstream) -> None:
        """A backend got a request on this connection."""
        self._upstream[name] = upstream

    def leaves_once_open(self, name: str) -> None:
        """The client leaves in the turn in which a connection to this backend opens."""
        self.loop.run_until_complete(self._leaves(name))
        self.turns()

    async def _leaves(self, name: str) -> None:
        while name not in self._upstream:
            await asyncio.sleep(0)
        self.client.connection.eof_received()

    async def dialed(self, address: str) -> None:
        name = "b" + address.rpartition(".")[2]
        self.happens(f"{name} dialed")
        if name in self.down:
            error = self.down[name]
            if error is None:
                await asyncio.Event().wait()
            assert error is not None
            raise OSError(error, "")
        self._dialing = name

    def opened(self, protocol: asyncio.Protocol) -> tuple[Upstream, asyncio.Protocol]:
        upstream = self._upstream[self._dialing] = Upstream(self, self._dialing, protocol)
        protocol.connection_made(upstream)
        return upstream, protocol

    async def load_adapter(self, backend: Backend, name: str, path: str) -> Outcome:
        """A play with adapters says how a load ends."""
        return await cannot_load(backend, name, path)

    def _failed(self, backend: Backend, error: BackendError, cause: Cause) -> None:
        self.happens(f"{backend.name} failed: {error.reason}")


async def some_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class _Socket:
    """Of a wire, which has none: nothing ever comes on it unseen."""

    def __init__(self) -> None:
        self._ends = os.pipe()

    def setsockopt(self, *option: object) -> None:
        pass

    def fileno(self) -> int:
        return self._ends[0]

    def close(self) -> None:
        for end in self._ends:
            os.close(end)
