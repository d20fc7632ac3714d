"""What an engine says of itself: its version and models, and whether it is another one than before.

An engine is known by its version and by its base models with their contexts. A restart of the same
engine changes neither. Adapters come and go while it runs, so they do not count.

A hostile list of models of 1 MiB can hold hundreds of thousands of values, and each would become an
object. So only cards of usual size are decoded, one by one, and the loop runs between some of them.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
import orjson

from penstock.balancing.backend import Backend, State
from penstock.health.scrape import TooLarge

VERSION_CHARS_MAX: Final = 64
# The first of these in the order of their names are enough.
BASES_MAX: Final = 16
# Of a list: so many models, cards (one of vLLM has 500 bytes) and commas (some 20 in one).
MODELS_MAX: Final = 1_024
CARD_BYTES_MAX: Final = 16_384
COMMAS_MAX: Final = 32_768
# This much is decoded in one turn of the loop.
TURN_BYTES: Final = 16_384


def read_version(body: bytes) -> str:
    """The version in an answer to `/version`. Empty if it tells none."""
    try:
        told = orjson.loads(body)
    except ValueError:
        return ""
    version = told.get("version") if isinstance(told, dict) else None
    return version[:VERSION_CHARS_MAX] if isinstance(version, str) else ""


class Engine:
    """What engine `backend` was when it was asked last."""

    __slots__ = ("_backend", "_known", "_restarts")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: tuple[str, ...] | None = None
        self._restarts = backend.restarts

    @property
    def restarted(self) -> bool:
        """Whether it was restarted since it was asked."""
        return self._backend.restarts != self._restarts

    @property
    def is_due(self) -> bool:
        """Whether another engine may be there: it is out, unknown, or was restarted."""
        return self.restarted or self._backend.state in (State.STARTING, State.EJECTED)

    def tell(self, version: str, models: Mapping[str, bytes]) -> bool:
        """What it says of itself now. Returns whether it is another one than before."""
        before, self._known = self._known, (version, *_bases(models))
        self._restarts = self._backend.restarts
        return before is not None and before != self._known


def _bases(models: Mapping[str, bytes]) -> list[str]:
    """The base models, with what they are made of and their contexts."""
    found = []
    for name in sorted(models):
        card = orjson.loads(models[name])
        if card.get("parent") is None:
            found.append(f"{name} {card.get('root')} {card.get('max_model_len')}")
        if len(found) == BASES_MAX:
            break
    return found


class _Listed(msgspec.Struct):
    data: list[msgspec.Raw]


_listed = msgspec.json.Decoder(_Listed)

Models = dict[str, bytes]
Contexts = dict[str | None, int]


async def read_models(body: bytes) -> tuple[Models, Contexts]:
    """Each model's card, and its context length if the card tells it.

    Raises TooLarge. Raises ValueError for anything but a list of models, or for an empty list.
    """
    if body.count(b",") > COMMAS_MAX:
        raise TooLarge
    try:
        cards = _listed.decode(body).data[:MODELS_MAX]
    except RecursionError as error:
        raise ValueError from error
    models: Models = {}
    contexts: Contexts = {}
    turn_bytes = 0
    for each in cards:
        card = bytes(each)
        if len(card) > CARD_BYTES_MAX:
            raise TooLarge
        turn_bytes += len(card)
        if turn_bytes > TURN_BYTES:
            turn_bytes = len(card)
            await asyncio.sleep(0)
        _read_card(card, models, contexts)
    if not models:
        raise ValueError
    if contexts:
        contexts[None] = max(tokens for tokens in contexts.values())
    return models, contexts


def _read_card(raw: bytes, models: Models, contexts: Contexts) -> None:
    card = orjson.loads(raw)
    model = card.get("id") if isinstance(card, dict) else None
    if not isinstance(model, str):
        raise ValueError
    try:
        models[model] = orjson.dumps(card)
    except TypeError as error:  # too deeply nested to be written again
        raise ValueError from error
    tokens = card.get("max_model_len")
    if isinstance(tokens, int) and tokens > 0:
        contexts[model] = tokens
