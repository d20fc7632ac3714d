"""What a running process tells in /metrics, an exporter of GPU metrics, and a request."""

import asyncio
from collections.abc import Callable

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.process import Penstock
from tests.e2e.raw_backend import stop_listening

PROMPT = {"prompt": "Once upon a time", "max_tokens": 4}
Samples = dict[str, float]


def samples_of(text: str) -> Samples:
    """Values by name and labels, as `name{a=1,b=2}` in the order of the labels' names."""
    return {
        f"{each.name}{{{','.join(f'{k}={v}' for k, v in sorted(each.labels.items()))}}}": each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


async def told(penstock: Penstock) -> Samples:
    return samples_of(await penstock.metrics())


async def until_told(
    penstock: Penstock, holds: Callable[[Samples], bool], within_s: float
) -> Samples:
    found: Samples = {}
    try:
        async with asyncio.timeout(within_s):
            while not holds(found := await told(penstock)):
                pass  # `metrics` waits
    except TimeoutError:
        pytest.fail(str({name: value for name, value in found.items() if "backend=b" in name}))
    return found


async def complete(
    penstock: Penstock,
    session: aiohttp.ClientSession,
    path: str = "/v1/completions",
    **fields: object,
) -> int:
    async with session.post(f"{penstock.url}{path}", json=PROMPT | fields) as answer:
        await answer.read()
        return answer.status


MIB = 1 << 20


class FakeExporter:
    """Answers each connection with `answer`; None: with nothing, for ever."""

    def __init__(self) -> None:
        self.answer: bytes | None = b""
        self.asked: list[bytes] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    def tell(self, utilization: float) -> None:
        body = (
            b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} %.1f\n'
            b'DCGM_FI_DEV_FB_USED{gpu="0"} 70000\nDCGM_FI_DEV_FB_FREE{gpu="0"} 1000\n' % utilization
        )
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def start(self, **options: object) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        await stop_listening(self._server)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
