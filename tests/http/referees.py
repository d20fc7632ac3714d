"""Two parsers that know nothing of penstock, h11 and llhttp, read what went over a wire.

Each reads a whole connection's bytes and returns the messages that it found, or raises
`Refused`. Names are in lower case; bodies are without their coding.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import h11
import httptools

_UPGRADE = re.compile(rb"(\r\n)upgrade:", re.I)
Headers = list[tuple[bytes, bytes]]


class Refused(ValueError):
    """The referee does not accept these bytes; `before` are the messages ahead of them."""

    def __init__(self, why: object, before: "list[Message]") -> None:
        super().__init__(repr(why))
        self.before = before


@dataclass
class Message:
    """A request or an answer as a referee understood it; `whole`: its end was there."""

    method: bytes = b""
    target: bytes = b""
    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


Referee = Callable[[bytes], list[Message]]


def h11_requests(data: bytes) -> list[Message]:
    """The requests that h11 finds in a client's bytes."""
    seen: list[Message] = []
    while data := data.removeprefix(b"\r\n"):  # RFC 9112 2.2, which it does not do itself
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(data)
        try:
            message = _h11_message(connection)
        except h11.RemoteProtocolError as error:
            raise Refused(error, seen) from None
        if message is None:
            break
        seen.append(message)
        # One connection a request: h11 wants answers in between. What it says must close, does.
        if not message.whole or connection.their_state is h11.MUST_CLOSE:
            break
        data = connection.trailing_data[0]
    return seen


def h11_answers(data: bytes, methods: list[bytes], *, eof: bool) -> list[Message]:
    """The final answers that h11 finds in a server's bytes to requests with these methods."""
    seen: list[Message] = []
    for method in methods:
        message, data = _h11_answer(data, method, seen, eof=eof)
        if message is None:
            return seen
        seen.append(message)
    if data:
        raise Refused(f"after the last answer: {data[:80]!r}", seen)
    return seen


def all_h11_answers(data: bytes) -> list[Message]:
    """All final answers in a server's bytes up to its FIN, none of them to HEAD."""
    seen: list[Message] = []
    while data:
        message, data = _h11_answer(data, b"POST", seen, eof=True)
        if message is not None:
            seen.append(message)
    return seen


def _h11_answer(
    data: bytes, method: bytes, before: list[Message], *, eof: bool
) -> tuple[Message | None, bytes]:
    """The first answer, and what comes after it."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    try:
        if data:
            connection.receive_data(data)
        if eof:
            connection.receive_data(b"")
        message = _h11_message(connection)
    except h11.RemoteProtocolError as error:
        raise Refused(error, before) from None
    return message, connection.trailing_data[0]


def _h11_message(connection: h11.Connection) -> Message | None:
    message: Message | None = None
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            message = Message(event.method, event.target, headers=list(event.headers))
        elif isinstance(event, h11.Response):
            message = Message(status=event.status_code, headers=list(event.headers))
        elif isinstance(event, h11.Data):
            assert message is not None
            message.body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert message is not None
            message.whole = True
            return message
        elif not isinstance(event, h11.InformationalResponse):
            return message  # NEED_DATA, PAUSED or the end of the connection


class _Llhttp:
    """llhttp's callbacks, put together to messages."""

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.parser: httptools.HttpRequestParser | None = None

    def on_message_begin(self) -> None:
        self.seen.append(Message())

    def on_url(self, url: bytes) -> None:
        self.seen[-1].target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # llhttp tells trailers and headers alike.
        if not self.seen[-1].method:
            self.seen[-1].headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.seen[-1].method = self.parser.get_method()

    def on_body(self, body: bytes) -> None:
        self.seen[-1].body += body

    def on_message_complete(self) -> None:
        self.seen[-1].whole = True


def llhttp_requests(data: bytes) -> list[Message]:
    """The requests that llhttp finds in a client's bytes."""
    reader = _Llhttp()
    reader.parser = httptools.HttpRequestParser(reader)
    try:
        reader.parser.feed_data(data)
    except httptools.HttpParserUpgrade:  # it takes the body for another protocol's
        return llhttp_requests(_UPGRADE.sub(rb"\1x-grade:", data, count=1))
    except httptools.HttpParserError as error:
        raise Refused(error, [each for each in reader.seen if each.whole]) from None
    return [each for each in reader.seen if each.method]


REFEREES: dict[str, Referee] = {"h11": h11_requests, "llhttp": llhttp_requests}
