"""The little traffic of `penstock demo`: conversations that keep its page alive."""

import asyncio
from random import Random
from typing import Final

import aiohttp

# So many conversations go on at once: enough to see something, a few percent of a core.
TALKERS: Final = 4
TURNS: Final = (1, 5)
PAUSE_S: Final = (0.5, 4.0)
ANSWER_TOKENS: Final = (24, 220)
DOCUMENT_WORDS: Final = (40, 2_500)
_WORDS: Final = ("water", "gate", "river", "turbine", "pressure", "valve", "lake", "power", "pipe")


class Traffic:
    """Clients of the proxy at `url`, until `stop`."""

    def __init__(self, url: str, model: str, rng: Random) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._rng = rng
        self._talking: list[asyncio.Task[None]] = []

    def start(self, talkers: int, key: str, tokens: tuple[int, int] = ANSWER_TOKENS) -> None:
        """Add clients with this key. `tokens`: the shortest and the longest of their answers."""
        talk = [asyncio.create_task(self._talk(key, tokens)) for _ in range(talkers)]
        self._talking += talk

    async def stop(self) -> None:
        for each in self._talking:
            each.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    async def _talk(self, key: str, tokens: tuple[int, int]) -> None:
        """One conversation after another. Each turn sends all that was said before it."""
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                messages = [
                    {"role": "system", "content": self._text(self._rng.randint(*DOCUMENT_WORDS))}
                ]
                for _ in range(self._rng.randint(*TURNS)):
                    messages.append({"role": "user", "content": self._text(12)})
                    await self._ask(session, messages, self._rng.randint(*tokens))
                    messages.append({"role": "assistant", "content": self._text(60)})
                    await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    async def _ask(
        self, session: aiohttp.ClientSession, messages: list[dict[str, str]], max_tokens: int
    ) -> None:
        body = {
            "model": self._model,
            "stream": True,
            "max_tokens": max_tokens,
            "messages": messages,
        }
        try:
            async with session.post(self._url, json=body) as answer:
                async for _ in answer.content.iter_any():
                    pass
        except aiohttp.ClientError:
            await asyncio.sleep(1.0)  # the demo's user tries something, or it ends

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choices(_WORDS, k=words))
