"""A raw client of the data port: what it sends is sent as it is, and answers are read by hand."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock

KEY, PROMPT = "sk-canary-7f3a", "canary prompt 91c2"
HOST = b"Host: penstock\r\n"
SECRET = b"Authorization: Bearer " + KEY.encode() + b"\r\n"
BODY = orjson.dumps({"model": "sim-model", "prompt": PROMPT, "max_tokens": 4})
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def request(
    *fields: bytes,
    path: bytes = b"/v1/completions",
    method: bytes = b"POST",
    body: bytes | None = BODY,
    host: bytes = HOST,
) -> bytes:
    """A request with these header lines; with a length unless they hold the framing."""
    lines = [b"Content-Type: application/json\r\n", *(field + b"\r\n" for field in fields)]
    framed = any(b"content-length" in field.lower() for field in fields)
    framed = framed or any(b"transfer-encoding" in field.lower() for field in fields)
    if body is not None and not framed:
        lines.append(b"Content-Length: %d\r\n" % len(body))
    head = method + b" " + path + b" HTTP/1.1\r\n" + host + SECRET
    return head + b"".join(lines) + b"\r\n" + (body or b"")


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> Any:
        return self.json["error"]["code"]


class Client:
    """A raw connection to the data port."""

    opened: ClassVar[list["Client"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.opened.append(self)

    @classmethod
    async def open(cls, penstock: Penstock, data: bytes = b"") -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", penstock.port))
        client.send(data)
        return client

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, within_s: float = 5.0) -> Answer:
        """The next answer, which must tell its length."""
        async with asyncio.timeout(within_s):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head[:-4].split("\r\n")
            headers = {n.lower(): v.strip() for n, _, v in (f.partition(":") for f in fields)}
            status = int(line.split(" ")[1])
            body = b""
            if status >= 200 and status != 204:
                body = await self._reader.readexactly(int(headers["content-length"]))
            return Answer(status, headers, body)

    async def until(self, sign: bytes, within_s: float = 5.0) -> None:
        """Wait until this has come."""
        async with asyncio.timeout(within_s):
            await self._reader.readuntil(sign)

    async def rest(self, within_s: float = 1.0) -> bytes | None:
        """What came until the connection was closed; None when it is still open."""
        try:
            return await asyncio.wait_for(self._reader.read(), within_s)
        except TimeoutError:
            return None
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        if self in self.opened:
            self.opened.remove(self)
        self._writer.transport.abort()


Guard = Callable[..., Awaitable[tuple[SimServer, Penstock]]]


async def refuse_all(
    penstock: Penstock, cases: Mapping[str, tuple[bytes, int, str]], *, closes: bool = True
) -> None:
    """Send each case on a connection of its own and compare; tell all that differ at once."""
    wrong: dict[str, object] = {}
    for name, (raw, status, code) in cases.items():
        client = await Client.open(penstock, raw)
        try:
            answer = await client.answer(2.0)
            if (answer.status, answer.code) != (status, code):
                wrong[name] = answer
            elif closes and (rest := await client.rest()) != b"":
                wrong[name] = "not closed" if rest is None else rest
        except (OSError, EOFError, ValueError) as error:  # a timeout is an OSError
            wrong[name] = repr(error)
        client.close()
    assert not wrong


def malformed(cases: Mapping[str, bytes]) -> dict[str, tuple[bytes, int, str]]:
    return {name: (raw, 400, "invalid_request") for name, raw in cases.items()}


def numbered(number: int, **options: Any) -> bytes:
    body = {"prompt": f"{PROMPT} {number}", "max_tokens": 6, **options}
    return request(body=orjson.dumps(body))
