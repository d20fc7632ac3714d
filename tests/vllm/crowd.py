"""Clients of several tenants that ask at a rate of their own, whatever becomes of their requests.

Each request has an id, so that what penstock and the servers say of it can be found. Prompts are
token ids, no two alike: their lengths are known, and no cache has any of them.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import aiohttp
import orjson

from tests.vllm.server import MODEL

PATH: Final = "/v1/completions"
EVENT, DONE, ERROR = b"data: {", b"data: [DONE]", b'data: {"error"'
# Of prompts and of answers, around the mean.
SPREAD: Final = 0.5


@dataclass(frozen=True, slots=True)
class Wish:
    """What the requests of one tenant are like. `patience_s`: its clients leave within that time.

    `stays`: a client leaves only once it has read so many events, whatever its patience.
    """

    tenant: str
    prompt_tokens: int = 200
    answer_tokens: int = 150
    streamed: float = 1.0
    patience_s: float = math.inf
    reads: int = 0


@dataclass(slots=True)
class Seen:
    """One request, as its client saw it. Times are since it was sent; 0.0: never."""

    request_id: str
    tenant: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    began_s: float = 0.0
    status: int = 0
    retry_after: str = ""
    ttft_s: float = 0.0
    took_s: float = 0.0
    events: int = 0
    left: bool = False
    error: str = ""
    usage: dict[str, Any] | None = None  # of a whole answer

    @property
    def cached_tokens(self) -> int:
        assert self.usage is not None
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


class Crowd:
    """All that clients have asked of one proxy."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._rng = Random(seed)
        self._asking: set[asyncio.Task[Seen]] = set()
        self.seen: list[Seen] = []

    async def __aenter__(self) -> "Crowd":
        # Without a limit of connections, and none is kept: a client that leaves closes its own.
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._asking:
            each.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._session.close()

    async def closed(self, wish: Wish, clients: int, seconds: float) -> list[Seen]:
        """Clients that each ask again when their answer is there: what the fleet can do."""
        until_s = time.monotonic() + seconds
        first = len(self.seen)

        async def client() -> None:
            while time.monotonic() < until_s:
                await self.ask(wish)

        await asyncio.gather(*[client() for _ in range(clients)])
        return self.seen[first:]

    async def open(self, wishes: Sequence[tuple[Wish, float]], seconds: float) -> list[Seen]:
        """So many requests of each kind a second, at random times. Waits for none of them."""
        arrivals: list[tuple[float, Wish]] = []
        for wish, per_s in wishes:
            at_s = self._rng.expovariate(per_s)
            while at_s < seconds:
                arrivals.append((at_s, wish))
                at_s += self._rng.expovariate(per_s)
        arrivals.sort(key=lambda each: each[0])
        first, began_s = len(self.seen), time.monotonic()
        for at_s, wish in arrivals:
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            task = asyncio.create_task(self.ask(wish))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return self.seen[first:]

    async def answered(self, within_s: float) -> None:
        """Wait until nobody asks any more."""
        async with asyncio.timeout(within_s):
            while self._asking:
                await asyncio.wait(set(self._asking))

    async def ask(self, wish: Wish) -> Seen:
        rng = self._rng
        ids = [rng.randrange(100, 4_000) for _ in range(_about(wish.prompt_tokens, rng))]
        most, stream = _about(wish.answer_tokens, rng), rng.random() < wish.streamed
        body: dict[str, Any] = {"model": MODEL, "prompt": ids, "max_tokens": most}
        body |= {"ignore_eos": True, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        request_id = f"{wish.tenant}-{len(self.seen)}"
        seen = Seen(request_id, wish.tenant, len(ids), most, stream, time.monotonic())
        self.seen.append(seen)
        patience_s = wish.patience_s * rng.random() if wish.patience_s < math.inf else None
        try:
            async with asyncio.timeout(patience_s):
                await self._read(seen, body, wish.reads)
        except TimeoutError:
            seen.left = True
        except aiohttp.ClientError as error:
            seen.error = seen.error or type(error).__name__
        seen.took_s = time.monotonic() - seen.began_s
        return seen

    async def _read(self, seen: Seen, body: dict[str, Any], reads: int) -> None:
        headers = {"authorization": f"Bearer key-{seen.tenant}", "x-request-id": seen.request_id}
        headers["content-type"] = "application/json"
        got, read = b"", 0
        async with self._session.post(
            self._url + PATH, data=orjson.dumps(body), headers=headers
        ) as answer:
            seen.status = answer.status
            seen.retry_after = answer.headers.get("retry-after", "")
            async for piece in answer.content.iter_any():
                got += piece
                if ERROR in piece:  # the last one of this stream; then its connection closes
                    seen.error = orjson.loads(piece[piece.index(ERROR) + 6 :].split(b"\n")[0])[
                        "error"
                    ]["code"]
                if seen.stream:
                    # An event may be cut in two; what is whole is counted.
                    seen.events += got.count(EVENT, read)
                    read = max(read, len(got) - len(EVENT) + 1)
                    if seen.events and not seen.ttft_s:
                        seen.ttft_s = time.monotonic() - seen.began_s
                    if reads and seen.events >= reads:
                        seen.left = True
                        answer.close()
                        return
        if seen.status != 200:
            seen.error = orjson.loads(got)["error"]["code"]
            return
        if not seen.stream:
            seen.usage = orjson.loads(got)["usage"]
        elif got.rstrip().endswith(DONE):
            seen.usage = _usage(got)
        else:
            seen.error = f"ended as {got[-100:]!r}"


def _usage(got: bytes) -> dict[str, Any]:
    """Of the last event of a stream that was asked for it."""
    events = [line for line in got.split(b"\n") if line.startswith(EVENT)]
    usage: dict[str, Any] = orjson.loads(events[-1].removeprefix(b"data: "))["usage"]
    return usage


def _about(mean: int, rng: Random) -> int:
    return max(1, round(mean * rng.uniform(1.0 - SPREAD, 1.0 + SPREAD)))


def quantile(values: Sequence[float], part: float) -> float:
    """0.5: the median. Of no values 0.0."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
