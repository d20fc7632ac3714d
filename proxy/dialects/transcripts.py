"""OpenAI transcriptions and translations: chunks like chat's, with the same end.

An audio file is processed in pieces, and each piece ends with a chunk that has a reason to finish.
Only `data: [DONE]` ends the stream. The chunks between have no such member, so none is ordinary.
"""

from typing import ClassVar

from penstock.proxy.dialects.choices import Choices
from penstock.proxy.dialects.dialect import Dialect
from penstock.proxy.dialects.whole_members import Whole


class Transcripts(Choices):
    """Audio. A field of the form asks for usage."""

    asks_usage: ClassVar[bool] = False
    ordinary: ClassVar[bytes] = b""

    def serves(self, whole: Whole) -> bool:
        return Dialect.serves(self, whole)  # an empty text is valid: nobody may speak
