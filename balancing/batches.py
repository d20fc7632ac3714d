"""Finds the prompts of APIs that have several of them in fields of their own.

These are the conversations of a batch of chats, the texts or images of Cohere's embed, and the
items or documents that are scored against a query.
"""

import re
from typing import Final, NamedTuple

import msgspec

from penstock.balancing.field_values import NO_FIELD
from penstock.balancing.members import PlacesFound, members, names_of
from penstock.balancing.outline import Steps, count_in, items_in

CHAT_BATCH: Final = "/v1/chat/completions/batch"
EMBED: Final = "/v2/embed"
SCORING: Final = "/generative_scoring"
# Each document is a prompt, with the query before it. Some models read the query only once; that is
# learnt like other properties of a model.
RANKING: Final = frozenset({"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"})
BATCHES: Final = frozenset({CHAT_BATCH, EMBED, SCORING}) | RANKING
_IDS: Final = re.compile(rb"\[[\[\s]{0,4096}[0-9]")


class _Batch(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    texts: msgspec.Raw = NO_FIELD
    images: msgspec.Raw = NO_FIELD
    inputs: msgspec.Raw = NO_FIELD
    query: msgspec.Raw = NO_FIELD
    items: msgspec.Raw = NO_FIELD
    documents: msgspec.Raw = NO_FIELD
    queries: msgspec.Raw = NO_FIELD
    text_1: msgspec.Raw = NO_FIELD
    text_2: msgspec.Raw = NO_FIELD
    data_1: msgspec.Raw = NO_FIELD
    data_2: msgspec.Raw = NO_FIELD


_batch = msgspec.json.Decoder(_Batch)
_NAMES: Final = names_of(_Batch)


class Batch(NamedTuple):
    """The prompts of a body.

    `token_ids`: their exact number of tokens if they are token ids, otherwise 0. `images`: how many
    of the prompts are images, whose bytes are not text. `told`: the backend reports what the text
    as it stands has cost, so the estimator can learn from it. `again`: text that stands in the
    body once and is read with each prompt.
    """

    prompts: int
    token_ids: int = 0
    images: int = 0
    told: bool = False
    again: bytes = b""


def batch_of(path: str, body: bytes) -> Steps[Batch]:
    """The prompts of a body for one of BATCHES. It is known to be a JSON object.

    Raises GivenTwice.
    """
    given = yield from members(body, _batch, noted=PlacesFound(_NAMES))
    if path == CHAT_BATCH:
        return Batch((yield from _count(given.messages)), told=True)
    if path == EMBED:
        # Texts are cut to the model's length unless the client forbids it.
        if bytes(given.images).startswith(b"["):
            number = yield from _count(given.images)
            return Batch(number, images=number)
        texts, inputs = (yield from _count(given.texts)), (yield from _count(given.inputs))
        return Batch(max(texts, inputs))
    if path in RANKING:
        return (yield from _ranked(given))
    # The backend counts the query with each item. After the first its cache holds the query.
    query, items = (yield from _ids_of(given.query)), (yield from _ids_of(given.items))
    return Batch((yield from _count(given.items)), query + items if query and items else 0)


def _ranked(given: _Batch) -> Steps[Batch]:
    """One query with many documents, or as many queries as documents.

    Each has four names in vLLM. Where a body has several of them, the one that costs most counts.
    """
    prompts, again = 1, b""
    for query in (given.query, given.queries, given.data_1, given.text_1):
        queries = yield from _count(query)
        prompts = max(prompts, queries)
        if queries == 1:
            again = max(again, bytes(query), key=len)
    for documents in (given.documents, given.items, given.data_2, given.text_2):
        prompts = max(prompts, (yield from _count(documents)))
    return Batch(prompts, told=True, again=again)


def _ids_of(value: msgspec.Raw) -> Steps[int]:
    """The number of token ids, by commas: a list of millions must not become objects."""
    return (yield from count_in(bytes(value), b",")) + 1 if _IDS.match(value) else 0


def _count(value: msgspec.Raw) -> Steps[int]:
    return (yield from items_in(bytes(value)))
