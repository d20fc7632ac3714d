"""Probes: what is asked of a backend to know that it lives and is ready.

Live: `GET /health` answers 200. Ready: `GET /v1/models` lists what it serves,
which also tells the balancing where a model is. Each is one request on a fresh
connection, bounded in time and size; an outcome is a value, never an exception.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson

MODELS_BYTES_MAX: Final = 1_048_576
MODELS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a probe ended. `reason` is empty when it passed."""

    reason: str = ""
    refused: bool = False
    models: dict[str, bytes] | None = None

    @property
    def passed(self) -> bool:
        return not self.reason


async def live(session: aiohttp.ClientSession, url: str, timeout_s: float) -> Outcome:
    """Ask whether the server answers and believes its engine alive."""
    return await _get(session, url + "/health", timeout_s, read=False)


async def ready(session: aiohttp.ClientSession, url: str, timeout_s: float) -> Outcome:
    """Ask which models are served; none is not ready."""
    return await _get(session, url + "/v1/models", timeout_s, read=True)


async def _get(
    session: aiohttp.ClientSession, url: str, timeout_s: float, *, read: bool
) -> Outcome:
    try:
        async with asyncio.timeout(timeout_s), session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                return Outcome(f"status_{answer.status}")
            if not read:
                return Outcome()
            body = await answer.content.read(MODELS_BYTES_MAX)
            while not answer.content.at_eof() and len(body) < MODELS_BYTES_MAX:
                body += await answer.content.read(MODELS_BYTES_MAX - len(body))
    except TimeoutError:
        return Outcome("timeout")
    except aiohttp.ClientConnectorError as error:
        return Outcome("unreachable", refused=isinstance(error.os_error, ConnectionRefusedError))
    except (aiohttp.ClientError, OSError, ValueError):
        return Outcome("unreachable")
    return _read_models(body)


def _read_models(body: bytes) -> Outcome:
    """The models of a /v1/models answer, each with its card."""
    try:
        cards = orjson.loads(body)["data"]
        models = {card["id"]: orjson.dumps(card) for card in cards[:MODELS_MAX]}
    except (ValueError, KeyError, TypeError):
        return Outcome("no_models")
    if not models or not all(isinstance(model, str) for model in models):
        return Outcome("no_models")
    return Outcome(models=models)
