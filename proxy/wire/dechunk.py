"""Decodes the chunked transfer coding with llhttp.

One class serves both legs, because requests and answers use the same coding. llhttp gets a fixed
head first, so it sees only the body. No lenient flag is set. Two things that it does not limit are
limited here: extensions and trailers (it takes an extension of 1 MB), and bytes after the end (it
cannot stop there and would parse them as the next message).

A usual read has whole chunks and nothing else. C takes all reads before the first that has not,
and llhttp the rest. It can begin between any two chunks: it needs nothing of those before.
"""

from typing import Final

import httptools

from penstock.proxy.wire import native

_HEAD: Final = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
# The framing of one chunk: up to 16 hex digits and two line ends.
_FRAME_BYTES: Final = 20
# The most that extensions and trailers of one message may add. Nobody uses either.
EXTRA_BYTES_MAX: Final = 4_096


class MalformedChunks(ValueError):
    """The body is not canonical chunked coding, or its extras are over the limit."""


class Dechunker:
    """Takes bytes as they arrive and returns the bytes of the body. Trailers are dropped."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._plain = native.AVAILABLE  # all reads so far had whole chunks only
        self._extra_bytes = 0
        self.complete = False
        self.surplus = False  # bytes came after the end, in the same read
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`, in order. Raises MalformedChunks."""
        if self._plain:
            found = native.whole_chunks(data)
            if found is not None:
                body, count = found
                self._extra_bytes += len(data) - len(body) - _FRAME_BYTES * count
                return body
            self._plain = False
        parts = self._parts
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.complete:
                raise MalformedChunks from None
            self.surplus = True  # after the end: the rest does not belong to this body
        count = len(parts)
        body = parts[0] if count == 1 else b"".join(parts)
        if not self.surplus:
            self._extra_bytes += len(data) - len(body) - _FRAME_BYTES * count
            if self._extra_bytes > EXTRA_BYTES_MAX:
                raise MalformedChunks
        parts.clear()
        return body

    # llhttp's callbacks -------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second message begins: there are bytes after the end."""
        if self.complete:
            self.surplus = True

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self.complete = True
