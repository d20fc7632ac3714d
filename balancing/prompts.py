"""Finds the prompts in a body: their parts as JSON, and their text without inline data."""

from typing import Final

from penstock.balancing.apis import COMPLETIONS, api_of
from penstock.balancing.batches import BATCHES, Batch, batch_of
from penstock.balancing.field_values import NO_FIELD
from penstock.balancing.fields import Fields
from penstock.balancing.media import MEDIA_PARTS_MAX, has_media, without_media
from penstock.balancing.members import Places, span_of
from penstock.balancing.outline import Steps, copied, count_in, finished, past_blanks, strings_in

# Their prompt is one conversation, whatever other fields there are.
OF_MESSAGES: Final = frozenset(
    {"/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"}
)
_ONE: Final = Batch(1, told=True)
# Of embeddings in base64 for one token: 4,096 values of two bytes. How many values a model has is
# not known here; most have 2,048 to 8,192.
EMBEDDING_CHARS: Final = 8_192 * 4 // 3
_NOTHING: Final = frozenset({b"null", b'""', b"[]"})


class Prompt:
    """The prompts of a body: their parts as JSON, and their texts without inline data."""

    __slots__ = ("batch", "media_parts", "parts", "size_bytes", "texts")

    def __init__(
        self,
        batch: Batch,
        parts: list[bytes | memoryview],
        texts: list[bytes | memoryview],
        media_parts: int,
    ) -> None:
        """`texts` are pieces in order. They are never joined: a copy of a large body is dear."""
        self.batch = batch
        self.parts = parts
        self.texts = texts
        self.media_parts = media_parts
        self.size_bytes = sum(map(len, texts))


def text_prompt(path: str, fields: Fields, body: bytes, *, may_name: bool) -> Prompt | None:
    """The prompts of a small body. None when there may be more in it than text.

    `may_name`: whether media may be named in the body.
    """
    parts = _parts_of(path, fields)
    texts = parts or _all_of(path, fields, body)
    if may_name and [text for text in texts if has_media(bytes(text))]:
        return None
    batch = _ONE if path in OF_MESSAGES else finished(_prompts_of(path, fields))
    return Prompt(batch, parts, texts, 0)


def reading_prompt(path: str, fields: Fields, body: bytes, *, may_name: bool) -> Steps[Prompt]:
    """The prompts of a body of any size, with media or without."""
    parts = _parts_of(path, fields)
    batch = _ONE if path in OF_MESSAGES else (yield from _batch(path, fields, body))
    if batch.images:
        return Prompt(batch, parts, [], batch.images)
    if not may_name:
        return Prompt(batch, parts, parts or _all_of(path, fields, body), 0)
    texts: list[bytes | memoryview] = []
    media_parts = 0
    for number, part in enumerate(parts or _all_of(path, fields, body)):
        text = part if isinstance(part, bytes) else (yield from copied(part))
        if parts:
            parts[number] = text
        if has_media(text):
            named, kept = yield from without_media(text)
            media_parts += named
            texts += kept
        else:
            texts.append(text)
    return Prompt(batch, parts, texts, min(media_parts, MEDIA_PARTS_MAX * batch.prompts))


def _parts_of(path: str, fields: Fields) -> list[bytes | memoryview]:
    """The parts of the prompt as JSON, in the order in which chat templates use them.

    Fields that the API does not read are left out, or the estimator would learn wrong costs.
    """
    parts: list[bytes | memoryview] = []
    for name in api_of(path).parts:
        part = getattr(fields, name)
        if part is not NO_FIELD:
            parts.append(part if isinstance(part, memoryview) else bytes(part))
    return parts


def _batch(path: str, fields: Fields, body: bytes) -> Steps[Batch]:
    """The prompts that the path's API finds, if they are not a conversation."""
    if path in BATCHES:
        return (yield from batch_of(path, body))
    return (yield from _prompts_of(path, fields))


def _has_embeddings(path: str, fields: Fields) -> bool:
    """Whether embeddings are a part of the prompt. They are no text, and their tokens unknown."""
    given = fields.prompt_embeds
    return path == COMPLETIONS and given is not NO_FIELD and bytes(given) not in _NOTHING


def embedded_tokens(path: str, fields: Fields, places: Places) -> int:
    """About how many tokens embeddings stand for: a guess, until the backend tells. 0: none."""
    if not _has_embeddings(path, fields):
        return 0
    begin, end = span_of(places, b"prompt_embeds") or (0, 0)
    return max(1, (end - begin) // EMBEDDING_CHARS)


def _all_of(path: str, fields: Fields, body: bytes) -> list[bytes | memoryview]:
    """What is measured of a body in which no part of a prompt was found."""
    return [] if _has_embeddings(path, fields) else [body]


def _prompts_of(path: str, fields: Fields) -> Steps[Batch]:
    """The prompts of a part that may be a list of them, and embeddings beside it."""
    name = api_of(path).prompts
    batch = (yield from _listed(bytes(getattr(fields, name)))) if name else _ONE
    if not _has_embeddings(path, fields):
        return batch
    embeds = bytes(fields.prompt_embeds)
    prompts = (yield from strings_in(embeds)) if embeds.startswith(b"[") else 1
    if fields.prompt is not NO_FIELD and bytes(fields.prompt) != b"null":
        prompts += batch.prompts
    return batch._replace(prompts=max(1, prompts))


def _listed(value: bytes) -> Steps[Batch]:
    """The prompts of a list of prompts, of token ids, or of lists of token ids.

    Token ids are counted by their commas, texts by their quotes: a list of millions must not
    become millions of objects. Lists of lists have a comma between any two ids, too.
    """
    if not value.startswith(b"["):
        return _ONE
    at = yield from past_blanks(value, 1)
    first = value[at : at + 1]
    if first == b'"':
        return Batch((yield from strings_in(value)), told=True)
    lists = 1
    if first == b"[":
        lists = (yield from count_in(value, b"[")) - 1
        at = yield from past_blanks(value, at + 1)
    if not value[at : at + 1].isdigit():  # no ids, or not plainly
        return Batch(lists, told=True)
    return Batch(lists, (yield from count_in(value, b",")) + 1, told=True)
