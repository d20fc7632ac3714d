"""One client attacks, and another one, the victim, is served as before.

The victim asks for short streams, one after the other on connections of its own, beside one long
stream, and a probe asks the admin port. Its first tokens, its answers and the proxy's memory during
an attack are compared with an ordinary moment before it.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from itertools import pairwise
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from penstock.bench.sim.connection import Reply, Request
from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from tests.certificates import Files, client_context
from tests.e2e.answers import dechunked, text_of
from tests.e2e.process import Penstock, Serve, until
from tests.e2e.tls import post
from tests.e2e.traffic import going_on

MIB: Final = 2**20
PATH: Final = "/v1/completions"
PROMPT: Final = "Of gates and rivers"
TOKENS: Final = 4
QUIET_S, BESIDE_S = 0.6, 1.5
HELD_S: Final = 1.2  # what was held for a second may be taken
# Below the second after which a client repeats a packet that the kernel has dropped.
SOON_S: Final = 0.9
KEYS: Final = {name: name * 6 for name in ("mallory", "victim")}
TENANTS: Final = [{"name": name, "keys": [{"key": key}]} for name, key in KEYS.items()]
LARGE: Final = b'{"data":[{"embedding":[%b0]}]}' % (b"0.125," * 160_000)
ADMIN_TOKEN: Final = "a-token-of-the-admin-port"
SMALL_BODIES: Final = {"limits": {"body_bytes": 65_536, "bodies_bytes": 163_840}}
LITTLE_MEMORY: Final = {"limits": {"memory_bytes": 176 * MIB}, "admission": {"enabled": False}}


class Engine(SimServer):
    """It never answers what says `hang`, fails what says `fail`, and has much for embeddings."""

    def dispatch(self, request: Request, reply: Reply) -> None:
        if b'"user":"hang"' in request.body:
            return
        if b'"user":"fail"' in request.body:
            reply.whole(500, b'{"error":{"message":"no","code":500}}')
        elif request.path == "/v1/embeddings":
            reply.whole(200, LARGE)
        else:
            super().dispatch(request, reply)


def ask(tenant: str, path: str = PATH, **body: Any) -> bytes:
    """A request with the key of a tenant."""
    key = b"Authorization: Bearer " + KEYS[tenant].encode()
    return post(path, {"model": "sim-model", "prompt": PROMPT, **body}, key)


class Place:
    """A proxy, how clients come to it, and how often somebody has struck it."""

    def __init__(self, penstock: Penstock, context: ssl.SSLContext | None) -> None:
        self.penstock = penstock
        self.context = context
        self.blows = 0

    @contextlib.asynccontextmanager
    async def connect(
        self, address: str = "127.0.0.2", *, admin: bool = False, plain: bool = False
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection that is reset in the end. What its client does not read stays with us."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            sock.bind((address, 0))
            port = self.penstock.admin_port if admin else self.penstock.port
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            tls: dict[str, Any] = {}
            if self.context is not None and not (admin or plain):
                tls = {"ssl": self.context, "server_hostname": "localhost"}
            reader, writer = await asyncio.open_connection(sock=sock, limit=2 * MIB, **tls)
        except BaseException:
            sock.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


# The victim ------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """What a victim got: times of first tokens, gaps of its stream, times of probes, faults."""

    first_s: list[float]
    gaps_s: list[float]
    probes_s: list[float]
    wrong: list[str]

    @property
    def gap_s(self) -> float:
        """The gap of its stream that only one in twenty exceeds."""
        return self.gaps_s[-1 - len(self.gaps_s) // 20]


async def stream(place: Place, tokens: int, padding: int) -> tuple[list[float], str]:
    """When each piece of one came, its beginning first, and what was wrong with it."""
    times = [perf_counter()]
    got = b""
    try:
        async with asyncio.timeout(15), place.connect("127.0.0.1") as (reader, writer):
            writer.write(ask("victim", stream=True, max_tokens=tokens, x=" " * padding))
            while not got.endswith(b"\r\n0\r\n\r\n") and (data := await reader.read(65_536)):
                got += data
                times.append(perf_counter())
    except (OSError, EOFError) as error:
        return times, repr(error)
    head, _, rest = got.partition(b"\r\n\r\n")
    text = text_of(dechunked(rest)[0]) if b" 200 OK" in head[:20] else ""
    return times, "" if text == expected(PROMPT, tokens) else got[:300].decode()


async def probe(place: Place) -> float:
    """How long the admin port takes to say that the process lives."""
    began_s = perf_counter()
    async with asyncio.timeout(15), place.connect("127.0.0.1", admin=True) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await reader.read(15)).startswith(b"HTTP/1.1 200 OK")
    return perf_counter() - began_s


async def measure(place: Place, for_s: float, padding: int) -> Measured:
    """What the victim gets in this time: always the same."""
    first_s: list[float] = []
    probes_s: list[float] = []
    wrong: list[str] = []
    long = asyncio.create_task(stream(place, int(for_s * 100), padding))
    ends_s = perf_counter() + for_s
    while perf_counter() < ends_s:
        (began_s, *times), fault = await stream(place, TOKENS, padding)
        first_s += [times[0] - began_s] if times else []
        wrong += [fault] if fault else []
        probes_s.append(await probe(place))
        await asyncio.sleep(0.02)
    (_, *pieces), fault = await long
    wrong += [f"long: {fault}"] if fault else []
    gaps_s = sorted(later - piece for piece, later in pairwise(pieces)) or [0.0]
    return Measured(first_s, gaps_s, probes_s, wrong)


# The attacks -----------------------------------------------------------------------------------

Blow = Callable[[Place, int], Awaitable[None]]


async def forever() -> None:
    await asyncio.sleep(60)


def sends(
    data: bytes | Callable[[], bytes], *, then: Callable[[], Awaitable[None]] = forever
) -> Blow:
    """Send this, read nothing, and wait."""

    async def blow(place: Place, number: int) -> None:
        async with place.connect() as (_, writer):
            writer.write(data if isinstance(data, bytes) else data())
            place.blows += 1
            await writer.drain()
            await then()

    return blow


def asks(data: bytes | Callable[[], bytes]) -> Blow:
    """Send this and read the answer, again and again."""

    async def blow(place: Place, number: int) -> None:
        async with place.connect() as (reader, writer):
            while not reader.at_eof():
                writer.write(data if isinstance(data, bytes) else data())
                place.blows += 1
                await reader.read(65_536)

    return blow


def holds(data: bytes, seconds: float, *, strangers: bool = False) -> Blow:
    """Connect, send this more than once a second, and come again."""

    async def blow(place: Place, number: int) -> None:
        address = f"127.0.0.{3 + number % 40}" if strangers else "127.0.0.2"
        async with place.connect(address) as (reader, writer):
            place.blows += 1
            for _ in range(10):
                writer.write(data)
                await asyncio.sleep(seconds)
                if not data or reader.at_eof():
                    return

    return blow


def admin(data: Callable[[int], bytes]) -> Blow:
    """Crowd the admin port."""

    async def blow(place: Place, number: int) -> None:
        async with place.connect(admin=True) as (_, writer):
            writer.write(data(place.penstock.admin_port))
            place.blows += 1
            await asyncio.sleep(5)

    return blow


def sign_in(port: int) -> bytes:
    """A session is asked for, and its token never comes."""
    return (
        b"POST /ui/session HTTP/1.1\r\nhost: 127.0.0.1:%d\r\norigin: http://127.0.0.1:%d\r\n"
        b"x-penstock-page: 1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    ) % (port, port)


@cache
def bomb() -> bytes:
    """A body of 200 MiB in 200 KB. Nobody reads it to its end, which does not come."""
    gzip = zlib.compressobj(wbits=31)
    begins = gzip.compress(b'{"prompt":"') + gzip.flush(zlib.Z_FULL_FLUSH)
    block = gzip.compress(b"a" * MIB) + gzip.flush(zlib.Z_FULL_FLUSH)
    body = begins + 200 * block
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
    fields = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head % KEYS["mallory"].encode() + fields + body


def hello() -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A handshake that is begun, what it is given, and what it says."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return tls, incoming, outgoing


async def stalls(place: Place, number: int) -> None:
    """Stop somewhere in the handshake, or amid a record after it."""
    said = hello()[2].read()
    parts = [said, said[:-9], b"", said[:3]]
    async with place.connect(f"127.0.0.{3 + number % 200}", plain=True) as (_, writer):
        writer.write(parts[number % len(parts)])
        place.blows += 1
        await forever()


async def half_records(place: Place, number: int) -> None:
    """Send the head of one record and most of it. Each comes from an address of its own."""
    tls, incoming, outgoing = hello()
    async with place.connect(f"127.0.{1 + number // 200}.{1 + number % 200}", plain=True) as wire:
        reader, writer = wire
        while True:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
        writer.write(outgoing.read() + b"\x17\x03\x03\x40\x10" + b"x" * 16_000)
        place.blows += 1
        await forever()


class Attack(NamedTuple):
    """What `clients` do at once, again and again.

    `wrong`: so many of the victim's requests may be refused; `late_s`: by so much its first tokens
    may be later in the median; `grows_mib`: so much more memory than before the proxy may take.
    """

    blow: Blow
    clients: int = 20
    config: Mapping[str, Any] = MappingProxyType({})
    padding: int = 0  # of the victim's bodies
    wrong: int = 0
    late_s: float = 0.4
    grows_mib: int = 24
    tls: bool = False
    descriptors: int | None = None


half_body: Final = ask("mallory", x="x" * 64_000)[:-500]
nobodys: Final = post("/none", {"x": "x" * 60_000})[:-100]
long_prompt: Final = ask("mallory", stream=True, max_tokens=50).replace(
    PROMPT.encode(), b"all work and no play " * 1_100
)
health: Final = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
explain: Final = (
    b"POST /api/v1/explain HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: 8388609\r\n"
    b"authorization: Bearer a-token-of-the-admin-port\r\n\r\n"
)
hung: Final[dict[str, Any]] = {"user": "hang", "max_tokens": 1}
FEW: Final = {"limits": {"connections": 40}}
ATTACKS: Final[dict[str, Attack]] = {
    "nobody": Attack(holds(health, 0.5), 1),
    "unread answers": Attack(
        sends(ask("mallory", path="/v1/embeddings", input="x")),
        100,
        LITTLE_MEMORY | {"timeouts": {"client_stall_s": 60}},
        grows_mib=90,
    ),
    "half bodies": Attack(sends(half_body), 2, SMALL_BODIES, padding=60_000, wrong=1),
    "bodies without a key": Attack(sends(nobodys), 4, SMALL_BODIES, padding=60_000),
    "bodies that wait": Attack(
        sends(ask("mallory", x="x" * 60_000, **hung)),
        6,
        {"limits": {"body_bytes": 65_536, "bodies_bytes": 262_144}},
        padding=60_000,
        wrong=2,
    ),
    "large bodies that wait": Attack(
        sends(ask("mallory", x="x" * (4 * MIB), **hung)), 20, LITTLE_MEMORY, grows_mib=90
    ),
    "giant heads": Attack(sends(health[:-2] + b"X: " + b"x" * 60_000), 100),
    "compressed bombs": Attack(asks(bomb), 4, grows_mib=64),
    "full queues": Attack(asks(long_prompt), 30, late_s=2.0),
    "requests that fail everywhere": Attack(
        asks(ask("mallory", path="/v1/chat/completions", user="fail", messages=[])), 4
    ),
    "searches for responses": Attack(
        asks(lambda: health.replace(b"health", b"v1/responses/resp_" + os.urandom(8).hex().encode())
             .replace(b"x\r", b"x\r\nAuthorization: Bearer %b\r" % KEYS["mallory"].encode()))
    ),
    "connections with health checks": Attack(holds(health, 0.7), 50, FEW, wrong=3),
    "connections that say nothing": Attack(holds(b"", 0.7), 50, FEW, wrong=3),
    "strangers of many addresses": Attack(
        holds(b"", 0.8, strangers=True), 160, {"limits": {"connections": 100}}, wrong=2
    ),
    "sign-ins that hang": Attack(admin(sign_in), 80),
    "endless bodies to the admin port": Attack(
        admin(lambda port: explain % port + b"x" * MIB), 12
    ),
    "connections to the admin port": Attack(
        admin(lambda _: b"GET /liv"), 300, descriptors=300
    ),
    "stalled handshakes": Attack(stalls, 150, tls=True),
    "parts of records": Attack(
        half_records, 60, {"limits": {"memory_bytes": 176 * MIB}}, wrong=6, tls=True
    ),
}  # fmt: skip


async def strikes(place: Place, attack: Attack, number: int) -> None:
    while True:
        with contextlib.suppress(OSError, EOFError):
            await attack.blow(place, number)
        await asyncio.sleep(0.05)


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    started = [await Engine(f"sim-{each}", "default", seed=each).start() for each in range(2)]
    yield started
    for engine in started:
        await engine.stop()


def compare(quiet: Measured, beside: Measured, attack: Attack) -> None:
    late_s = median(beside.first_s) - median(quiet.first_s)
    print(
        f"{len(beside.first_s)} streams, first tokens {late_s * 1e3:+.0f} ms, gaps"
        f" {beside.gap_s * 1e3:.0f} ms, probes {max(beside.probes_s) * 1e3:.0f} ms,"
        f" {len(beside.wrong)} wrong"
    )
    assert quiet.wrong == []
    assert len(beside.wrong) <= attack.wrong, beside.wrong
    assert beside.first_s
    assert late_s < attack.late_s
    assert beside.gap_s < 0.4
    assert median(beside.probes_s) < SOON_S


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_costs_the_victim_nothing(
    serve: Serve, engines: list[Engine], files: Files, name: str
) -> None:
    attack = ATTACKS[name]
    config: dict[str, Any] = {
        "admin": {"host": "127.0.0.1", "port": 0, "token": ADMIN_TOKEN},
        "tenants": TENANTS,
    }
    if attack.tls:
        config["listen"] = {"host": "127.0.0.1", "port": 0, "tls": files.settings}
    penstock = await serve(
        list(engines), at_rest=False, descriptors=attack.descriptors, **config | dict(attack.config)
    )
    place = Place(penstock, client_context() if attack.tls else None)
    quiet = await measure(place, QUIET_S, attack.padding)
    before_bytes = penstock.resident_bytes
    async with going_on(*(strikes(place, attack, number) for number in range(attack.clients))):
        await asyncio.sleep(HELD_S)
        with contextlib.suppress(TimeoutError):  # some are refused, and come again
            await until(lambda: place.blows >= attack.clients, 10)
        beside = await measure(place, BESIDE_S, attack.padding)
        grown_bytes = penstock.resident_bytes - before_bytes
        states = [each["state"] for each in await penstock.backends()]
    print(f"{place.blows} blows, {grown_bytes / MIB:+.0f} MiB")
    assert place.blows
    compare(quiet, beside, attack)
    assert grown_bytes < attack.grows_mib * MIB
    assert states == ["ready", "ready"]
    await penstock.until_at_rest()
