"""The APIs that clients speak: what their events mean and how their errors look.

A dialect reads bytes and returns their meaning. It holds no state and does no I/O.
"""

from typing import Final

from penstock.proxy.dialects.choices import Choices, Transcripts
from penstock.proxy.dialects.dialect import Dialect, Embed
from penstock.proxy.dialects.messages import Messages
from penstock.proxy.dialects.responses import Responses

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
