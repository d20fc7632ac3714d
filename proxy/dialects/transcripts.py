"""OpenAI transcriptions and translations: chunks like chat's, and the same end.

An audio file is worked on in pieces, and each ends with a chunk that has a reason to finish; only
`data: [DONE]` ends the stream. A chunk in between has no such member, so none is ordinary.
"""

from typing import ClassVar

from proxy.dialects.choices import Choices
from proxy.dialects.dialect import Dialect, Usage


class Transcripts(Choices):
    """Audio: usage is asked for by a field of its form."""

    asks_usage: ClassVar[bool] = False
    ordinary: ClassVar[bytes] = b""

    def serves(self, body: bytes, usage: Usage | None) -> bool:
        return Dialect.serves(self, body, usage)  # a text, which is empty where nobody speaks
