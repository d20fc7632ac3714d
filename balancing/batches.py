"""Finds the prompts of APIs that have several of them in fields of their own.

These are the conversations of a batch of chats, the texts or images of Cohere's embed, and the
items or documents that are scored against a query.
"""

import re
from typing import Final, NamedTuple

import msgspec

from penstock.balancing.fields import NO_FIELD
from penstock.balancing.members import members
from penstock.balancing.outline import Steps, count_in, items_in
from penstock.balancing.places import PlacesFound, names_of

CHAT_BATCH: Final = "/v1/chat/completions/batch"
EMBED: Final = "/v2/embed"
SCORING: Final = "/generative_scoring"
# Each document is a prompt, with the query before it. Some models read the query only once; that is
# learnt like other properties of a model.
RANKING: Final = frozenset({"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"})
BATCHES: Final = frozenset({CHAT_BATCH, EMBED, SCORING}) | RANKING
# Prompts of one request that are counted one by one.
PROMPTS_MAX: Final = 1_024

_IDS: Final = re.compile(rb"\[[\[\s]*[0-9]")


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
        texts = given.inputs if given.texts is NO_FIELD else given.texts
        return Batch((yield from _count(texts)))
    if path in RANKING:
        return (yield from _ranked(given))
    # The backend counts the query with each item. After the first its cache holds the query.
    ids = 0
    if _IDS.match(given.items):
        ids = (yield from _ids_of(given.query)) + (yield from _ids_of(given.items))
    return Batch((yield from _count(given.items)), ids)


def _ranked(given: _Batch) -> Steps[Batch]:
    """One query with many documents, or as many queries as documents."""
    # The names that vLLM 0.32 knows, in the order of its request models.
    query = _first(given.query, given.queries, given.data_1, given.text_1)
    documents = _first(given.documents, given.items, given.data_2, given.text_2)
    queries = yield from _count(query)
    prompts = max(queries, (yield from _count(documents)))
    return Batch(prompts, told=True, again=bytes(query) if queries == 1 else b"")


def _first(*values: msgspec.Raw) -> msgspec.Raw:
    for value in values:
        if value is not NO_FIELD:
            return value
    return NO_FIELD


def _ids_of(value: msgspec.Raw) -> Steps[int]:
    """The number of token ids, by commas: a list of millions must not become objects."""
    return (yield from count_in(bytes(value), b",")) + 1 if _IDS.match(value) else 0


def _count(value: msgspec.Raw) -> Steps[int]:
    return min((yield from items_in(bytes(value))), PROMPTS_MAX)
