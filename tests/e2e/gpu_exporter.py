"""What tells of GPUs at `gpu_metrics_url`, as a test wants it told."""

import asyncio

from tests.e2e.listening import stop_listening

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
