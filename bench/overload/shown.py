"""How an answer shows itself to whoever relays it."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Begins(Enum):
    """When a stream shows that it has begun, before any token: the event with the role."""

    NEVER = 0
    AT_ONCE = 1
    WITH_FIRST_TOKEN = 2  # as vLLM does


@dataclass(frozen=True, slots=True)
class Shown:
    """`stream`: token by token. Otherwise its end shows all of it. `generates`: not an embedding.
    `hidden_tokens`: from how many to how many come before the first that is shown."""

    stream: bool = True
    generates: bool = True
    hidden_tokens: tuple[int, int] = (0, 0)
    begins: Begins = Begins.WITH_FIRST_TOKEN


STREAM: Final = Shown()
PLAIN: Final = Shown(stream=False)
EMBEDDING: Final = Shown(stream=False, generates=False)
