"""What the error text of a backend says about the backend itself, not only about the request.

A draining vLLM looks healthy and idle to every probe, but fails requests within a
millisecond. A vLLM whose engine died ends within a second. Both say so in the error of
the next request: as a 500, or as the first event of a 200.
"""

import re
from typing import Final

from penstock.proxy.errors.backend import (
    BackendBusy,
    BackendDraining,
    BackendError,
    BackendRefused,
    EngineDead,
    InternalFault,
)

# The statuses of a backend that has too much to do.
BUSY: Final = frozenset({429, 503})
# How these messages of vLLM 0.32 begin: that of the executor behind its tokenizer, and that of
# its EngineDeadError. Text quoted inside another message cannot match, because a quote inside JSON
# text is escaped. In a stream there is a space after the colon.
_SAID: Final = re.compile(
    rb'"message": ?"(?:(cannot schedule new futures after shutdown)|EngineCore encountered)'
)


def diagnosis(error: bytes) -> BackendError | None:
    """The failure of the backend that the text of an error reveals, if any."""
    said = _SAID.search(error)
    if said is None:
        return None
    return BackendDraining() if said[1] else EngineDead()


def of_event(event: bytes, status: int) -> BackendError:
    """The failure of the backend that an error event of a stream means."""
    said = diagnosis(event)
    if said is not None:
        return said
    if status in BUSY:
        return BackendBusy()
    return InternalFault() if status == 500 else BackendRefused()


def of_gateway(status: int) -> bool:
    """Whether a status means that the backend does not serve, rather than a bad request.

    A redirect counts too: its target is in the backend's own network. vLLM's 500 and 501 do not
    count, because the request may cause them.
    """
    return status > 501 or (300 <= status < 400 and status != 304)
