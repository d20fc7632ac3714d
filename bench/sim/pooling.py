"""Embeddings, scores, classes: prompts that are prefilled and answered with numbers.

The numbers are a hash of the text, so equal inputs agree on every server.
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

from penstock.bench.sim.dialects import Identity, Spoken, openai_usage, usage_of
from penstock.bench.sim.errors import Refusal, invalid_field
from penstock.bench.sim.job import Body, Job, is_ids
from penstock.bench.sim.prompt import Prompt

_DIMENSIONS: Final = 8

Shape = Callable[[Identity, Sequence[Spoken], Body], dict[str, Any]]


def inputs_job(body: Body) -> Job:
    """`input`, or `messages`, of embeddings, classification, and pooling."""
    if isinstance(body.get("messages"), list):
        return Job([Prompt.from_messages(body["messages"])], max_tokens=0)
    return Job(_prompts("input", body.get("input")), max_tokens=0)


def pairs_job(body: Body) -> Job:
    """Each document of a score or rerank, read together with its query."""
    query_field = next((f for f in ("query", "queries", "text_1") if f in body), "query")
    document_field = next((f for f in ("documents", "items", "text_2") if f in body), "documents")
    queries = _texts(query_field, body.get(query_field))
    documents = _texts(document_field, body.get(document_field))
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise Refusal(400, "Input lengths must be either 1:1, 1:N or N:N")
    pairs = zip(queries, documents, strict=True)
    return Job([Prompt.from_text(f"{q}\n{d}") for q, d in pairs], max_tokens=0)


def texts_job(body: Body) -> Job:
    """`texts` of Cohere's embed."""
    return Job(
        [Prompt.from_text(text) for text in _texts("texts", body.get("texts"))], max_tokens=0
    )


def items_job(body: Body) -> Job:
    """Each item of a generative scoring, after its query."""
    query = str(body.get("query"))
    return Job([Prompt.from_text(query + i) for i in _texts("items", body.get("items"))])


def _listing(prefix: str, item: Callable[[Any], dict[str, Any]], *, coded: bool = False) -> Shape:
    """The shape of a list with an item for each input, made of its numbers.

    `coded`: with `encoding_format: base64` they are 32-bit floats, little-endian, in base64.
    """

    def shape(identity: Identity, choices: Sequence[Spoken], body: Body) -> dict[str, Any]:
        base64 = coded and body.get("encoding_format") == "base64"
        form = _base64 if base64 else list[float]
        return {
            "id": f"{prefix}-{identity.request_id}",
            "object": "list",
            "created": identity.created,
            "model": identity.model,
            "data": [{"index": c.index, **item(form(_numbers(c.prompt.text)))} for c in choices],
            "usage": openai_usage(usage_of(choices)[0], 0),
        }

    return shape


def _class(numbers: list[float]) -> dict[str, Any]:
    first = numbers[0]
    label = "LABEL_0" if first >= 0.5 else "LABEL_1"
    return {"label": label, "probs": [first, 1.0 - first], "num_classes": 2}


embeddings: Final = _listing(
    "embd", lambda numbers: {"object": "embedding", "embedding": numbers}, coded=True
)
pooling: Final = _listing(
    "pool", lambda numbers: {"object": "pooling", "data": numbers}, coded=True
)
scores: Final = _listing("embd", lambda numbers: {"object": "score", "score": numbers[0]})
classes: Final = _listing("classify", _class)


def cohere(identity: Identity, choices: Sequence[Spoken], body: Body) -> dict[str, Any]:
    tokens = usage_of(choices)[0]
    return {
        "id": f"embd-{identity.request_id}",
        "embeddings": {"float": [_numbers(choice.prompt.text) for choice in choices]},
        "texts": body.get("texts"),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": tokens, "image_tokens": 0},
        },
        "response_type": "embeddings_by_type",
    }


def ranking(identity: Identity, choices: Sequence[Spoken], body: Body) -> dict[str, Any]:
    documents = _texts("documents", body.get("documents"))
    results: list[dict[str, Any]] = [
        {
            "index": choice.index,
            "document": {"text": documents[choice.index], "multi_modal": None},
            "relevance_score": _numbers(choice.prompt.text)[0],
        }
        for choice in choices
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    top = body.get("top_n")
    tokens = usage_of(choices)[0]
    return {
        "id": f"rerank-{identity.request_id}",
        "model": identity.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results[:top] if isinstance(top, int) and top > 0 else results,
    }


def _numbers(text: bytes) -> list[float]:
    digest = blake2b(text, digest_size=_DIMENSIONS).digest()
    return [byte / 255 for byte in digest]


def _base64(numbers: list[float]) -> str:
    return b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def _prompts(field: str, given: Any) -> list[Prompt]:
    if given and is_ids(given):
        return [Prompt.from_ids(given)]
    if isinstance(given, list) and given and all(map(is_ids, given)):
        return [Prompt.from_ids(item) for item in given]
    return [Prompt.from_text(text) for text in _texts(field, given)]


def _texts(field: str, given: Any) -> list[str]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and all(isinstance(item, str) for item in given):
        return given
    raise invalid_field(field)
