"""An answer on its way through a relay, and what vLLM makes answers of."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.outline import Steps, finished
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.json_relay import JsonRelay
from penstock.proxy.data.relay import Passage, Relay
from penstock.proxy.dialects import CHAT, Dialect
from penstock.proxy.errors.backend import BackendError, StreamBroken
from penstock.proxy.telemetry.pool_metrics import ITL_S, Histogram
from penstock.proxy.wire.heads import parse_request_head, parse_response_head
from tests.unit.proxy.wire.transport import Transport, dechunked

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json"


def chat(text: bytes, finish: bytes = b"null", index: int = 0) -> bytes:
    return (
        b'data: {"id":"c","choices":[{"index":%d,"delta":{"content":"%b"},'
        b'"logprobs":null,"finish_reason":%b}]}\n\n' % (index, text, finish)
    )


USAGE = (
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"total_tokens":10,'
    b'"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ROLE = chat(b"").replace(b'{"content"', b'{"role":"assistant","content"')
DRAINING = b"cannot schedule new futures after shutdown"
ERROR = b'data: {"error": {"message": "busy", "type": "Service Unavailable", "code": 503}}\n\n'
DEAD = ERROR.replace(b"busy", b"EngineCore encountered an issue.").replace(b"503", b"500")
# Text that looks like framing, escaped as JSON must have it, and bytes of several per character.
TOKENS = [
    chat(b""),
    chat(rb"data: [DONE]\n\n"),
    chat(rb"\"finish_reason\":null \"choices\":[]"),
    chat("é 河 🚀".encode()),
    chat(b"end", b'"length"'),
]


class Source:
    """Where an answer comes from."""

    dear = False
    behind_bytes = 0


class Request:
    """An answer on its way through a relay."""

    def __init__(
        self,
        dialect: Dialect = CHAT,
        *,
        hide_usage: bool = True,
        ask: Ask | None = None,
        head: bytes = SSE,
        client: bytes = b"GET / HTTP/1.1\r\nhost: x",
        bare_before: bool = False,
        backend: Backend | None = None,
        to: Transport | None = None,
        in_turns: Callable[[Steps[None]], None] = finished,
    ) -> None:
        self.transport = to or Transport()
        self.answer = Answer(self.transport, parse_request_head(client), b"id-1", [])
        self.backend = backend or Backend("b0", "http://127.0.0.1:1")
        self.lease = Lease(self.backend, ask or Ask("/", prompt_tokens=7, stream=True), 0.0)
        self.ends: list[BackendError | None] = []
        self.made: list[str] = []
        self.opened: list[float] = []
        self.begun: list[bytes] = []  # what the client had when it was told
        self.head = parse_response_head(head)
        self.relay: Relay
        self.source = Source()
        passage = Passage(
            self.answer,
            self.lease,
            dialect,
            monotonic,
            ended=self.ends.append,
            begun=self._begun,
            opened=self.opened.append,
            made=self.made.append,
            in_turns=in_turns,
            source=self.source,
        )
        if b"event-stream" in head:
            self.relay = EventRelay(
                self.head,
                passage,
                Histogram(ITL_S),
                hide_usage=hide_usage,
                bare_before=bare_before,
            )
        elif b"application/json" in head:
            self.relay = JsonRelay(self.head, passage)
        else:
            self.relay = Relay(self.head, passage)
        self.relay.begin()

    def _begun(self) -> None:
        self.begun.append(self.transport.sent)

    def feed(self, *pieces: bytes) -> "Request":
        for piece in pieces:
            if piece and not self.ends:
                self.relay.body(piece)
        return self

    def end(self) -> "Request":
        """The backend's connection says that it is whole."""
        self.relay.end()
        return self

    @property
    def body(self) -> bytes:
        return dechunked(self.transport.sent)[1]

    @property
    def complete(self) -> bool:
        return dechunked(self.transport.sent)[2]

    @property
    def error(self) -> BackendError | None:
        (error,) = self.ends
        return error

    @property
    def broken(self) -> str:
        """Why it broke after its first token, if it did."""
        return self.error.reason if isinstance(self.error, StreamBroken) else ""


def at_every_split(stream: bytes, dialect: Dialect = CHAT, **options: Any) -> Iterator[Request]:
    """A stream in two reads, of any length each, and its end."""
    for cut in range(len(stream) + 1):
        request = Request(dialect, **options).feed(stream[:cut], stream[cut:])
        yield request if request.ends else request.end()


def in_pieces(request: Request, data: bytes, size_bytes: int = 65_536) -> Request:
    return request.feed(*[data[at : at + size_bytes] for at in range(0, len(data), size_bytes)])
