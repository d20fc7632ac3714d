"""Cohere's embed: plain JSON that reports its tokens as billed units."""

from typing import ClassVar

import msgspec

from penstock.proxy.dialects.dialect import TOKENS_MAX, UNREADABLE, Dialect, Usage
from penstock.proxy.dialects.event_members import Meta
from penstock.proxy.dialects.whole_members import Whole

_meta = msgspec.json.Decoder(Meta | None)


class Embed(Dialect):
    """The embed API."""

    counts_in: ClassVar[bytes] = b"meta"

    def usage(self, whole: Whole) -> Usage | None:
        try:
            meta = _meta.decode(bytes(whole.meta) or b"null")
        except UNREADABLE:
            return None
        units = meta.billed_units if meta is not None else None
        if units is None:
            return None
        tokens = (units.input_tokens or 0) + (units.image_tokens or 0)
        return Usage(tokens, 0) if 0 < tokens < TOKENS_MAX else None
