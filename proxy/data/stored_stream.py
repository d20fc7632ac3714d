"""Passes on a stored response that is read as a stream, which need not have a token.

Its last event tells what the response took.
"""

from penstock.proxy.data.relay import Passage, Relay
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.dialects.whole import whole_of
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.json_object import JsonObject


class StoredStream(Relay):
    """A relay that finds the token counts."""

    __slots__ = ("_counts", "_dialect")

    def __init__(self, head: ResponseHead, passage: Passage) -> None:
        super().__init__(head, passage)
        self._dialect = passage.dialect
        self._counts = JsonObject(passage.dialect.counts_in, 2)

    def body(self, data: bytes) -> None:
        super().body(data)
        self._counts.feed(data)

    @property
    def counts(self) -> Usage | None:
        whole = whole_of(b'{"%b":%b}' % (self._dialect.counts_in, self._counts.text))
        return self._dialect.usage(whole) if whole is not None else None

    @property
    def is_over(self) -> bool:
        return self.counts is not None
