"""The paths that are served: an allow-list of exact methods and paths.

A backend's own admin paths (sleep, LoRA loading, weights) can never be reached, because
paths that are not listed are not forwarded. An encoded form of a path is another path.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.balancing.reader import GENERATION, NO_ENGINE, PREFILL_ONLY, Work
from penstock.proxy.dialects import (
    CHAT,
    COMPLETIONS,
    EMBED,
    MESSAGES,
    POOLING,
    RESPONSES,
    TRANSCRIPTS,
    Dialect,
)
from penstock.proxy.wire.heads import RequestHead

# SageMaker's one path for all APIs.
INVOCATIONS: Final = b"/invocations"
MODELS: Final = b"/v1/models"
MODEL: Final = b"/v1/models/"
_RESPONSE_ID: Final = re.compile(rb"/v1/responses/[A-Za-z0-9_\-]{1,128}(/cancel)?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How one path is served.

    `anywhere`: only one backend holds the object, so after a 404 the next one is asked.
    `first_pool`: the first pool serves it, whatever the model.
    """

    dialect: Dialect
    work: Work = PREFILL_ONLY
    anywhere: bool = False
    first_pool: bool = False


_PLAIN: Final = Endpoint(POOLING)
_AUDIO: Final = Endpoint(TRANSCRIPTS, Work(streams=True))
_STATEFUL: Final = Endpoint(RESPONSES, NO_ENGINE, anywhere=True)
_FURTHER: Final = Endpoint(POOLING, NO_ENGINE, first_pool=True)
_METHODS: Final = (b"GET", b"HEAD", b"POST")

_POST: Final[dict[bytes, Endpoint]] = {
    b"/v1/chat/completions": Endpoint(CHAT, GENERATION),
    b"/v1/chat/completions/batch": Endpoint(CHAT, Work(generates=True)),
    b"/v1/completions": Endpoint(COMPLETIONS, GENERATION),
    b"/inference/v1/generate": Endpoint(COMPLETIONS, GENERATION),
    b"/v1/responses": Endpoint(RESPONSES, GENERATION),
    b"/v1/messages": Endpoint(MESSAGES, GENERATION),
    b"/v1/messages/count_tokens": Endpoint(MESSAGES, NO_ENGINE),
    b"/v2/embed": Endpoint(EMBED),
    b"/tokenize": Endpoint(POOLING, NO_ENGINE),
    b"/detokenize": Endpoint(POOLING, NO_ENGINE),
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
            INVOCATIONS,  # until its body tells the API
        ),
        _PLAIN,
    ),
    b"/v1/audio/transcriptions": _AUDIO,
    b"/v1/audio/translations": _AUDIO,
}

# Load balancers, and SDKs that look whether the base URL is right, ask for these without a key.
OPEN_PATHS: Final = frozenset({b"/", b"/health"})
LOCAL_PATHS: Final = OPEN_PATHS | {MODELS}
WEBSOCKET_PATHS: Final = frozenset({b"/v1/realtime"})

_HINT_PARTS_MAX: Final = 12
_BASE_URLS: Final = "The base URL of OpenAI's SDKs ends with one /v1, that of Anthropic's has none."


class Paths:
    """The table of all proxied paths: the fixed ones and `paths` of the configuration."""

    def __init__(self, extra: Sequence[str] = (), prefix: str = "") -> None:
        """`prefix`: what clients put before each path. `descend` takes it off."""
        self.prefix = prefix.encode()
        entries = [entry.encode().partition(b" ") for entry in extra]
        self._extra = {(method, path): _FURTHER for method, _, path in entries}
        further = frozenset([path for _, path in self._extra])
        self._listed = further | frozenset(_POST) | LOCAL_PATHS | WEBSOCKET_PATHS

    def lists(self, path: bytes) -> bool:
        """Whether the path is in the table, with any method."""
        return path in self._listed

    def descend(self, head: RequestHead) -> bool:
        """Take the prefix off the path of a request. False if it has another one."""
        prefix, path = self.prefix, head.path
        if path != prefix and not path.startswith(prefix + b"/"):
            return False
        head.path = path[len(prefix) :] or b"/"
        head.target = head.path + head.target[len(path) :]
        return True

    def find(self, method: bytes, path: bytes) -> Endpoint | None:
        """The endpoint of an exact method (HEAD counts as GET) and path. None: it is not served."""
        return _built_in(method, path) or self._extra.get(
            (b"GET" if method == b"HEAD" else method, path)
        )

    def hint(self, path: bytes) -> str:
        """What to tell who asks for a path that is not served. Empty: it means nothing here.

        A wrong base URL has put too much before a path, or too little, or one slash too many. The
        paths that an operator has added are not for all to know.
        """
        parts = [each for each in path.split(b"/", 64) if each]
        if len(parts) > _HINT_PARTS_MAX:
            return ""
        tails = [b"/" + b"/".join(parts[begin:]) for begin in range(len(parts))]
        for tail in (*tails, *[b"/v1" + each for each in tails]):
            if [each for each in _METHODS if is_answered_here(each, tail) or _built_in(each, tail)]:
                meant = (self.prefix + tail).decode("latin-1")
                if b"deployments" in parts:
                    return f"Azure's paths are not served: use the OpenAI client, for {meant}."
                if tail.startswith(b"/v1/messages") and parts[:2] == [b"v1", b"v1"]:
                    return f"Did you mean {meant}? Anthropic's SDKs add /v1 to their base URL."
                return f"Did you mean {meant}? {_BASE_URLS}"
        return ""

    def methods_of(self, path: bytes) -> list[str]:
        """The methods with which the path is served. Empty when there is none."""
        return [
            each.decode()
            for each in _METHODS
            if is_answered_here(each, path) or self.find(each, path) is not None
        ]


def _built_in(method: bytes, path: bytes) -> Endpoint | None:
    if method == b"POST" and path in _POST:
        return _POST[path]
    if path.startswith(b"/v1/responses/"):
        match = _RESPONSE_ID.fullmatch(path)
        if match and method == (b"POST" if match.group(1) else b"GET"):
            return _STATEFUL
    return None


def is_of_models(path: bytes) -> bool:
    """Whether the path asks for the list or for one model. Ids may hold slashes."""
    return path == MODELS or path.startswith(MODEL)


def is_answered_here(method: bytes, path: bytes) -> bool:
    """Whether penstock answers it without a backend: the fleet's health and its models."""
    return method in (b"GET", b"HEAD") and (path in LOCAL_PATHS or is_of_models(path))


def speaks_anthropic(head: RequestHead) -> bool:
    """Whether a client says that it expects the shapes of Anthropic's API."""
    return head.get(b"anthropic-version") is not None


def dialect_of(head: RequestHead) -> Dialect:
    """The dialect whose error shape the client expects, even if the path is not served."""
    anthropic = head.path.startswith(b"/v1/messages") or speaks_anthropic(head)
    return MESSAGES if anthropic else POOLING


def opens_websocket(head: RequestHead) -> bool:
    """Whether a request is the handshake of a WebSocket, which is spoken on no path."""
    return head.path in WEBSOCKET_PATHS or (
        b"upgrade" in head.nominated
        and head.method == b"GET"
        and (head.get(b"upgrade") or b"").lower() == b"websocket"
    )
