"""The paths that are served: an allow-list, exact in method and path.

A backend's own admin paths (sleep, LoRA loading, weights) are never reachable,
because nothing that is not listed goes on; encoded look-alikes are other paths.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.dialects import (
    CHAT,
    COMPLETIONS,
    EMBED,
    MESSAGES,
    POOLING,
    RESPONSES,
    TRANSCRIPTS,
    Dialect,
)
from proxy.invocations import INVOCATIONS

_RESPONSE_ID: Final = re.compile(rb"/v1/responses/[A-Za-z0-9_\-]{1,128}(/cancel)?")


@dataclass(frozen=True, slots=True)
class Route:
    """How one path is served.

    `generates`: the answer has decode tokens, not only prefill. `engine`: an
    engine works on it; others the API server answers by itself, also while its
    engine hangs. `anywhere`: a backend's 404 sends it on to the next, for objects
    that one backend holds. `first_pool`: no model decides, the first pool serves it.
    `streams`: `stream` in a request may make an event stream of its answer.
    """

    dialect: Dialect
    generates: bool = False
    engine: bool = True
    anywhere: bool = False
    first_pool: bool = False
    streams: bool = False


_PLAIN: Final = Route(POOLING)
_AUDIO: Final = Route(TRANSCRIPTS, streams=True)
_STATEFUL: Final = Route(RESPONSES, engine=False, anywhere=True)

_POST: Final[dict[bytes, Route]] = {
    b"/v1/chat/completions": Route(CHAT, generates=True, streams=True),
    b"/v1/chat/completions/batch": Route(CHAT, generates=True),
    b"/v1/completions": Route(COMPLETIONS, generates=True, streams=True),
    b"/v1/responses": Route(RESPONSES, generates=True, streams=True),
    b"/v1/messages": Route(MESSAGES, generates=True, streams=True),
    b"/v1/messages/count_tokens": Route(MESSAGES, engine=False),
    b"/v2/embed": Route(EMBED),
    b"/tokenize": Route(POOLING, engine=False),
    b"/detokenize": Route(POOLING, engine=False),
    **dict.fromkeys(
        (
            b"/v1/embeddings",
            b"/pooling",
            b"/score",
            b"/v1/score",
            b"/classify",
            b"/rerank",
            b"/v1/rerank",
            b"/v2/rerank",
            b"/generative_scoring",
            INVOCATIONS,  # until its body is read
        ),
        _PLAIN,
    ),
    b"/v1/audio/transcriptions": _AUDIO,
    b"/v1/audio/translations": _AUDIO,
}

LOCAL_PATHS: Final = frozenset({b"/health", b"/v1/models"})
WEBSOCKET_PATHS: Final = frozenset({b"/v1/realtime"})


class Paths:
    """The table of proxied paths: the fixed ones and the configuration's `paths`."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._routes = {(b"POST", path): route for path, route in _POST.items()}
        for entry in extra:
            method, _, path = entry.partition(" ")
            self._routes[method.encode(), path.encode()] = Route(
                POOLING, engine=False, first_pool=True
            )
        self._listed = frozenset(path for _, path in self._routes) | LOCAL_PATHS | WEBSOCKET_PATHS

    def lists(self, path: bytes) -> bool:
        """Whether it is a path of the table, with whatever method."""
        return path in self._listed

    def find(self, method: bytes, path: bytes) -> Route | None:
        """The route of an exact method (HEAD as GET) and path, None when it is not served."""
        route = self._routes.get((method, path))
        if route is None and method == b"HEAD":
            return self._routes.get((b"GET", path))
        if route is None and path.startswith(b"/v1/responses/"):
            match = _RESPONSE_ID.fullmatch(path)
            if match and method == (b"POST" if match.group(1) else b"GET"):
                return _STATEFUL
        return route


def dialect_of(path: bytes) -> Dialect:
    """The dialect whose error shape a path's clients expect, also when it is not served."""
    return MESSAGES if path.startswith(b"/v1/messages") else POOLING
