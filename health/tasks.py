"""The requests of deep probes: for each kind of work the least that an engine can do."""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

import orjson


class Task(StrEnum):
    """A kind of work that a deep probe can ask for."""

    COMPLETION = "completion"
    EMBEDDING = "embedding"
    CHAT = "chat"
    RESPONSE = "response"
    MESSAGE = "message"
    POOLING = "pooling"
    CLASS = "class"
    SCORE = "score"
    RERANK = "rerank"
    NONE = "none"


# Every usual backend does one of these.
USUAL: Final = (Task.COMPLETION, Task.EMBEDDING)
# If several paths serve one kind, an older one is used, which all servers have.
_TASKS: Final = MappingProxyType(
    {
        "/v1/completions": Task.COMPLETION,
        "/v1/embeddings": Task.EMBEDDING,
        "/v2/embed": Task.EMBEDDING,
        "/v1/chat/completions": Task.CHAT,
        "/v1/chat/completions/batch": Task.CHAT,
        "/v1/responses": Task.RESPONSE,
        "/v1/messages": Task.MESSAGE,
        "/pooling": Task.POOLING,
        "/classify": Task.CLASS,
        "/score": Task.SCORE,
        "/v1/score": Task.SCORE,
        "/rerank": Task.RERANK,
        "/v1/rerank": Task.RERANK,
        "/v2/rerank": Task.RERANK,
    }
)
_TEXT: Final = "a"
_MESSAGES: Final = ({"role": "user", "content": _TEXT},)
# A token id needs no tokenizer, and 1 is in every vocabulary.
_WORK: Final[MappingProxyType[Task, tuple[bytes, dict[str, object]]]] = MappingProxyType(
    {
        Task.COMPLETION: (
            b"/v1/completions",
            {"prompt": [1], "max_tokens": 1, "temperature": 0},
        ),
        Task.EMBEDDING: (b"/v1/embeddings", {"input": [1]}),
        Task.CHAT: (
            b"/v1/chat/completions",
            {"messages": _MESSAGES, "max_tokens": 1, "temperature": 0},
        ),
        Task.RESPONSE: (
            b"/v1/responses",
            {"input": _TEXT, "max_output_tokens": 1, "temperature": 0, "store": False},
        ),
        Task.MESSAGE: (
            b"/v1/messages",
            {"messages": _MESSAGES, "max_tokens": 1, "temperature": 0},
        ),
        Task.POOLING: (b"/pooling", {"input": [1]}),
        Task.CLASS: (b"/classify", {"input": _TEXT}),
        Task.SCORE: (b"/score", {"text_1": _TEXT, "text_2": _TEXT}),
        Task.RERANK: (b"/rerank", {"query": _TEXT, "documents": [_TEXT]}),
    }
)


def task_of(path: str) -> Task | None:
    """The task that is most like a request to this path. None if there is none."""
    return _TASKS.get(path)


def work(model: str, task: Task) -> tuple[bytes, bytes]:
    """The path and the body of the least work of this kind."""
    path, fields = _WORK[task]
    return path, orjson.dumps({"model": model, **fields})
