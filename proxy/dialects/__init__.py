"""The APIs that are spoken through penstock: what their events mean, how their errors look.

A dialect reads bytes and returns meaning; it holds no state and does no I/O.
"""

from typing import Final

from proxy.dialects.choices import Choices
from proxy.dialects.dialect import Dialect
from proxy.dialects.embed import Embed
from proxy.dialects.messages import Messages
from proxy.dialects.responses import Responses
from proxy.dialects.transcripts import Transcripts

CHAT: Final = Choices("chat")
COMPLETIONS: Final = Choices("completions")
RESPONSES: Final = Responses("responses")
MESSAGES: Final = Messages("messages")
POOLING: Final = Dialect("pooling")
TRANSCRIPTS: Final = Transcripts("transcripts")
EMBED: Final = Embed("embed")

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EMBED",
    "MESSAGES",
    "POOLING",
    "RESPONSES",
    "TRANSCRIPTS",
    "Dialect",
]
