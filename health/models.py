"""Reads the models of a `/v1/models` answer, each with its card for clients.

A hostile answer of 1 MiB can hold hundreds of thousands of values, and each would become an object.
So only cards of usual size are decoded, one by one, and the loop runs between some of them.
"""

import asyncio
from typing import Final

import msgspec
import orjson

from penstock.health.scrape import TooLarge

MODELS_MAX: Final = 1_024
# A card of vLLM has 500 bytes.
CARD_BYTES_MAX: Final = 16_384
# A card of vLLM has some 20 commas.
COMMAS_MAX: Final = 32_768
# This much is decoded in one turn of the loop.
TURN_BYTES: Final = 16_384


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
