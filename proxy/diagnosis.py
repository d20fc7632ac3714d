"""What a backend's own error tells of the backend itself, beyond the one request.

A draining vLLM looks healthy and idle to every probe and fails requests within a
millisecond; one whose engine died is gone within a second. Both say so in the
error of the first request they meet: as a 500, or as the first event of a 200.
"""

import re
from typing import Final

from proxy.errors import BackendDraining, BackendError, EngineDead

# How the message of vLLM 0.32 begins: that of the executor behind its tokenizer, and that
# of its EngineDeadError. Nothing quoted inside another message can look like it, since a
# quote inside JSON text is escaped. In a stream there is a space after the colon.
_SAID: Final = re.compile(
    rb'"message": ?"(?:(cannot schedule new futures after shutdown)|EngineCore encountered)'
)


def diagnosis(error: bytes) -> BackendError | None:
    """The failure of the backend that an error's body or event confesses, if any."""
    said = _SAID.search(error)
    if said is None:
        return None
    return BackendDraining() if said[1] else EngineDead()
