"""Prompts of the paths that hold several of them in fields of their own.

Conversations of a batch of chats, texts or images of Cohere's embed, and items that are
scored after one query.
"""

import re
from typing import Final, NamedTuple

import msgspec

from balancing.fields import NO_FIELD
from balancing.members import members
from balancing.outline import LARGE_BYTES, Steps, count_in, items_in

CHAT_BATCH: Final = "/v1/chat/completions/batch"
EMBED: Final = "/v2/embed"
SCORING: Final = "/generative_scoring"
BATCHES: Final = frozenset({CHAT_BATCH, EMBED, SCORING})
# Prompts of one request that are told apart.
PROMPTS_MAX: Final = 1_024

_IDS: Final = re.compile(rb"\[[\[\s]*[0-9]")


class _Batch(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    texts: msgspec.Raw = NO_FIELD
    images: msgspec.Raw = NO_FIELD
    inputs: msgspec.Raw = NO_FIELD
    query: msgspec.Raw = NO_FIELD
    items: msgspec.Raw = NO_FIELD


_batch = msgspec.json.Decoder(_Batch)


class Batch(NamedTuple):
    """What a body holds.

    `token_ids`: the prompts' exact tokens where they are token ids, else 0. `images`: how many
    of the prompts are images, whose bytes are no text. `told`: the backend tells what the text
    as it stands has cost, so that it can be learnt from.
    """

    prompts: int
    token_ids: int = 0
    images: int = 0
    told: bool = False


def batch_of(path: str, body: bytes) -> Steps[Batch]:
    """The prompts of a body for one of BATCHES, which is known to be a JSON object."""
    if len(body) <= LARGE_BYTES:
        given = _batch.decode(body)
    else:
        given = yield from members(body, _batch)
    if path == CHAT_BATCH:
        return Batch((yield from _count(given.messages)), told=True)
    if path == EMBED:
        # Texts are cut to the model's length unless the client forbids it.
        if bytes(given.images).startswith(b"["):
            number = yield from _count(given.images)
            return Batch(number, images=number)
        texts = given.inputs if given.texts is NO_FIELD else given.texts
        return Batch((yield from _count(texts)))
    # The backend counts the query with each item; its cache holds it after the first.
    ids = 0
    if _IDS.match(given.items):
        ids = (yield from _ids_of(given.query)) + (yield from _ids_of(given.items))
    return Batch((yield from _count(given.items)), ids)


def _ids_of(value: msgspec.Raw) -> Steps[int]:
    """Counted by their commas: a list of millions must not become millions of objects."""
    return (yield from count_in(bytes(value), b",")) + 1 if _IDS.match(value) else 0


def _count(value: msgspec.Raw) -> Steps[int]:
    return min((yield from items_in(bytes(value))), PROMPTS_MAX)
