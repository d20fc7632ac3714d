"""What a deep probe asks for: the least work of each kind that an engine is asked for."""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

import orjson


class Task(StrEnum):
    """What a backend does, as far as a deep probe can ask for it."""

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


# One of these is what any backend does.
USUAL: Final = (Task.COMPLETION, Task.EMBEDDING)
# Where several paths are for one kind, an older one is what all servers have.
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
# A token id needs no tokenizer, 1 is in every vocabulary.
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
    """The task whose work a request to this path is most like, if there is one."""
    return _TASKS.get(path)


def work(model: str, task: Task) -> tuple[bytes, bytes]:
    """Path and body of the least work."""
    path, fields = _WORK[task]
    return path, orjson.dumps({"model": model, **fields})
