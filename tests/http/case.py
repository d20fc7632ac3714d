"""One case of the corpus: what a client sends, what a backend does, what must come of it."""

from dataclasses import dataclass
from hashlib import sha256

import orjson

# What one side does: bytes are sent, a number is a pause in seconds, and these end it.
CLOSE, RESET = "close", "reset"
Step = bytes | float | str
Steps = tuple[Step, ...]

# In place of the last status: the answer is begun, and shows that it is cut.
CUT = -1


@dataclass(frozen=True)
class Case:
    """What a client sends, what it must be answered, and what may arrive at the backend.

    `arrive`: the bodies of the requests that must arrive, and no other; `twice`: each may
    arrive once more. `script`: what the backend does for each of them (an echo where it says
    nothing); `early`: it begins at the head. `headers`: what must arrive as it is. `never`:
    what no header upstream, nor anything at the client, may hold.
    `correct`: both sides spoke correct HTTP, so that any refusal is a fault.
    """

    name: str
    send: Steps
    answers: tuple[int, ...]
    arrive: tuple[bytes, ...] = ()
    target: bytes = b"/v1/completions"
    methods: tuple[bytes, ...] = ()
    script: tuple[Steps, ...] = ()
    early: bool = False
    twice: bool = False
    closes: bool = False
    body: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    never: tuple[bytes, ...] = ()
    correct: bool = False


def echo(body: bytes) -> bytes:
    """What the backend answers by itself: it says which body it answers."""
    return orjson.dumps({"sha256": sha256(body).hexdigest(), "bytes": len(body)})
