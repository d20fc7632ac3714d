"""Reads what a request wants from its path, head and body.

`peek` is pure: it looks at the few fields that routing needs and refuses only what
no backend could route either: a body that is no JSON object, a `model` that is no
string.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from balancing.ask import Ask
from balancing.fields import NO_FIELD, UNREADABLE, Fields
from balancing.media import mark_media, tokens_of_bytes, without_media
from balancing.output_length import PRIOR_TOKENS, OutputLength
from balancing.prompt_blocks import BLOCK_BYTES, NO_BLOCKS, Blocks, compact, prompt_blocks
from balancing.tokens import NOTHING, Measure, TokenEstimator, measure

if TYPE_CHECKING:
    from balancing.session_key import SessionKeys

Headers = Sequence[tuple[bytes, bytes]]

# Their prompt is one conversation, whatever else stands beside it.
_OF_MESSAGES: Final = frozenset(
    {"/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"}
)
# A list of prompts, of token ids, or of lists of token ids, by what it begins with.
_LIST: Final = re.compile(rb'\[\s*(["\[0-9])')
# Prompts of one request that are told apart; a list of texts longer than this is one.
PROMPTS_MAX: Final = 1_024
# More than any context holds: a number that a client gives must not stretch a timeout for ever.
COUNT_MAX: Final = 131_072
COUNTED_BYTES_MAX: Final = 262_144

NO_OBJECT: Final = "The request body must be one valid JSON object."

_fields = msgspec.json.Decoder(Fields)
_items = msgspec.json.Decoder(list[msgspec.Raw])
_integer = msgspec.json.Decoder(int)
_string = msgspec.json.Decoder(str)


class MalformedAsk(ValueError):
    """The body cannot be routed; the text says what to change. Never holds the body."""


def peek(
    path: str,
    headers: Headers,
    body: bytes,
    estimator: TokenEstimator,
    *,
    generates: bool = True,
    engine: bool = True,
    sessions: "SessionKeys | None" = None,
    tenant: str = "",
    prefixes: bool = False,
    outputs: OutputLength | None = None,
) -> Ask:
    """Read a request's wishes. Raises MalformedAsk on a body that is no JSON object.

    `sessions` tells where a session's key stands; None: nobody asks for it. `prefixes`: whether
    somebody asks for the blocks of its text. `outputs` tells how long its answer will be.
    """
    if not body or not _is_json(headers):
        session = _session(sessions, headers, None, tenant)
        return _unread(path, body, session, tenant, generates=generates, engine=engine)
    try:
        fields = (_fields if sessions is None else sessions.decoder).decode(body)
    except (*UNREADABLE, RecursionError):
        raise MalformedAsk(NO_OBJECT) from None
    model = _model_of(fields.model)
    parts = _parts_of(path, fields)
    media_parts, text = without_media(b"".join(parts) or body)
    prompts, token_ids = (1, 0) if path in _OF_MESSAGES else _prompts_of(fields)
    measured = whole = NOTHING if token_ids else measure(text)
    tokens = token_ids or estimator.estimate(model, measured, media_parts)
    response_id = _response_in(path) or _text(fields.previous_response_id)
    cut_tokens = _positive(fields.truncate_prompt_tokens)
    if cut_tokens or response_id is not None:  # the backend counts other tokens than these
        measured = NOTHING
        tokens = min(tokens, cut_tokens or tokens)
    blocks = NO_BLOCKS
    if prefixes and prompts == 1 and generates:
        root = _root_of(fields)
        if media_parts:
            blocks = _media_blocks(root, parts, len(text), model, whole, estimator)
        else:
            joined = b"".join(map(compact, parts))
            density = tokens * BLOCK_BYTES / max(len(joined), BLOCK_BYTES)
            blocks = Blocks(prompt_blocks(root, joined), density)
    max_tokens = _max_tokens_of(fields)
    expected = PRIOR_TOKENS if outputs is None else outputs.expect(tenant, model, path, max_tokens)
    return Ask(
        path=path,
        model=model,
        prompt_tokens=tokens,
        measured=measured,
        media_parts=media_parts,
        prompts=prompts,
        choices=min(_positive(fields.n) or 1, PROMPTS_MAX),
        max_tokens=max_tokens,
        stream=fields.stream is not NO_FIELD and bytes(fields.stream) == b"true",
        stream_options=bytes(fields.stream_options),
        generates=generates,
        engine=engine,
        session=_session(sessions, headers, fields, tenant),
        tenant=tenant,
        response_id=response_id,
        blocks=blocks.hashes,
        block_tokens=blocks.tokens,
        text_blocks=blocks.text,
        media_block_tokens=blocks.media_tokens,
        output_tokens=expected if generates else 0.0,
    )


def _unread(
    path: str, body: bytes, session: str | None, tenant: str, *, generates: bool, engine: bool
) -> Ask:
    """What is wanted where the body is not text."""
    return Ask(
        path,
        prompt_tokens=tokens_of_bytes(body),
        generates=generates,
        engine=engine,
        session=session,
        tenant=tenant,
        response_id=_response_in(path),
        output_tokens=PRIOR_TOKENS if generates else 0.0,
    )


def _max_tokens_of(fields: Fields) -> int | None:
    """The client's own limit, whatever its API calls it."""
    return (
        _positive(fields.max_completion_tokens)
        or _positive(fields.max_tokens)
        or _positive(fields.max_output_tokens)
    )


def _root_of(fields: Fields) -> bytes:
    """What a cache holds apart: models, adapters (they are models by name) and salts."""
    return bytes(fields.model) + b"\n" + bytes(fields.cache_salt)


def _is_json(headers: Headers) -> bool:
    """JSON unless the request says it is something else (audio comes as multipart)."""
    for name, value in headers:
        if name == b"content-type":
            return b"multipart/" not in value.lower()
    return True


def _session(
    sessions: "SessionKeys | None", headers: Headers, fields: Fields | None, tenant: str
) -> str | None:
    """The session's key, apart from equal ones of other tenants (no name holds a blank)."""
    key = sessions.read(headers, fields) if sessions is not None else None
    return f"{tenant} {key}" if tenant and key else key


def _model_of(raw: msgspec.Raw) -> str | None:
    if raw is NO_FIELD or bytes(raw) == b"null":
        return None
    try:
        return _string.decode(raw)
    except UNREADABLE:
        raise MalformedAsk("`model` must be a string.") from None


def _response_in(path: str) -> str | None:
    """The id in `/v1/responses/{id}` and in what lies below it."""
    return path.split("/")[3] if path.startswith("/v1/responses/") else None


def _text(raw: msgspec.Raw) -> str | None:
    """A string, or None for anything else."""
    if not bytes(raw).startswith(b'"'):
        return None
    try:
        return _string.decode(raw)
    except UNREADABLE:
        return None


def _parts_of(path: str, fields: Fields) -> list[bytes]:
    """The prompt's JSON, wherever the path's API keeps it, in the order of chat templates.

    What that API does not read counts for nothing: it would teach lies about what prompts cost.
    """
    if path == "/v1/chat/completions":
        parts = [fields.tools, fields.messages]
    elif path == "/v1/completions":
        parts = [fields.prompt]
    elif path == "/v1/responses":
        parts = [fields.tools, fields.instructions, fields.input]
    elif path in _OF_MESSAGES:
        parts = [fields.tools, fields.system, fields.messages]
    else:
        parts = [fields.tools, fields.system, fields.messages, fields.prompt, fields.input]
    return [bytes(part) for part in parts if part is not NO_FIELD]


def _media_blocks(
    root: bytes,
    parts: Sequence[bytes],
    text_bytes: int,
    model: str | None,
    measured: Measure,
    estimator: TokenEstimator,
) -> Blocks:
    """Text before the first inline data has its own density, what follows has what is left.

    Media that are elsewhere have no bytes here: their tokens are in no block.
    """
    inline, before, joined = mark_media(parts)
    text_tokens = estimator.estimate(model, measured)
    density = text_tokens * BLOCK_BYTES / max(text_bytes, BLOCK_BYTES)
    hashes = prompt_blocks(root, joined)
    text = before // BLOCK_BYTES
    left = estimator.estimate(model, measured, inline) - text * density
    rest = max(len(joined) - text * BLOCK_BYTES, BLOCK_BYTES)
    return Blocks(hashes, density, text, max(0.0, left) * BLOCK_BYTES / rest)


def _prompts_of(fields: Fields) -> tuple[int, int]:
    """(number of prompts, exact tokens when they are token ids else 0) of `prompt` or `input`.

    Token ids are counted by their commas: a list of millions must not become
    millions of objects. Lists of lists have a comma between any two ids too.
    """
    value = bytes(fields.input if fields.prompt is NO_FIELD else fields.prompt)
    match = _LIST.match(value)
    if match is None:
        return 1, 0
    first = match.group(1)
    if first == b"[":
        return min(value.count(b"[") - 1, PROMPTS_MAX), value.count(b",") + 1
    if first != b'"':
        return 1, value.count(b",") + 1
    if len(value) > COUNTED_BYTES_MAX:
        return 1, 0
    return min(len(_items.decode(value)), PROMPTS_MAX), 0


def _positive(raw: msgspec.Raw) -> int | None:
    """An integer > 0, or None for anything else."""
    if raw is NO_FIELD:
        return None
    try:
        value = _integer.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return None
    return min(value, COUNT_MAX) if value > 0 else None
