"""The paths that are served anyway: the key `paths` adds others.

Under another name such a path would be forwarded unread, past the limits of tenants.
"""

from posixpath import normpath
from typing import Final
from urllib.parse import unquote

_SERVED: Final = frozenset(
    {"/", "/health", "/invocations", "/inference/v1/generate", "/tokenize", "/detokenize"}
    | {"/pooling", "/score", "/classify", "/rerank", "/generative_scoring"}
    | {"/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses"}
    | {"/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/models", "/v1/realtime"}
    | {"/v1/score", "/v1/rerank", "/v1/audio/transcriptions", "/v1/audio/translations"}
    | {"/v2/embed", "/v2/rerank"}
)
_BELOW: Final = ("/v1/models/", "/v1/responses/")


def leads_to_some(prefix: str) -> bool:
    """Whether a served path begins so."""
    return any(each.startswith(prefix) for each in (*_SERVED, *_BELOW))


def is_served(path: str) -> bool:
    """Whether servers take it for one of these paths, however it is written."""
    plain = "/" + normpath(unquote(path)).lstrip("/")
    return plain in _SERVED or plain.startswith(_BELOW)
