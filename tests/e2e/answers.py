"""One request over a raw connection in any dialect, and all that came of it."""

from contextlib import closing
from typing import Any, NamedTuple

import orjson

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock
from tests.e2e.request import BODIES as BODIES
from tests.e2e.wire import RawClient

ENDS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/responses": b'"type":"response.completed"}\n\n',
    "/v1/messages": b'data: {"type":"message_stop"}\n\n',
}


class Got(NamedTuple):
    """A whole answer: `ended` when its framing says that it is complete."""

    head: bytes
    body: bytes
    ended: bool
    reset: bool = False

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: bytes) -> bytes:
        return self.head.partition(b"\r\n" + name + b": ")[2].partition(b"\r\n")[0]

    @property
    def last_event(self) -> Any:
        """The data of the last event."""
        return orjson.loads(self.body.rstrip().rpartition(b"data: ")[2])


async def ask(
    penstock: Penstock,
    path: str = "/v1/completions",
    *,
    http: bytes = b"1.1",
    headers: bytes = b"",
    **fields: Any,
) -> Got:
    """One request over a raw connection, read until penstock closes it.

    `headers` are more lines of the head, each with its line end.
    """
    body = orjson.dumps(BODIES[path] | fields)
    head = b"POST %b HTTP/%b\r\nHost: x\r\nConnection: close\r\n" % (path.encode(), http)
    head += headers + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with closing(await RawClient.open(penstock.port, head + body)) as client:
        raw = await client.rest()
    head, _, rest = raw.partition(b"\r\n\r\n")
    reset = client.was_reset
    got = Got(head, rest, not reset, reset)
    if length := got.header(b"content-length"):
        return got._replace(ended=len(rest) == int(length))
    if got.header(b"transfer-encoding"):
        whole, ended = dechunked(rest)
        return got._replace(body=whole, ended=ended)
    return got


def asked(servers: list[SimServer]) -> int:
    """How many requests of clients these have seen; penstock's own probes carry no id."""
    return sum(bool(each.header("x-request-id")) for server in servers for each in server.seen)


def dechunked(raw: bytes) -> tuple[bytes, bool]:
    """The data in chunks, and whether the last one came."""
    body = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        if size == b"0":
            return body, rest == b"\r\n"
        body, raw = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body, False


def text_of(stream: bytes) -> str:
    events = [orjson.loads(line[6:]) for line in stream.split(b"\n") if line[:7] == b"data: {"]
    return "".join(event["choices"][0]["text"] for event in events if "choices" in event)
