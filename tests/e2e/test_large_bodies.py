"""How much of the memory one client's whole bodies may take while they wait for their answers."""

import asyncio
import io
from contextlib import AsyncExitStack, suppress

import aiohttp

from tests.e2e.process import Serve
from tests.e2e.raw_backend import RawBackend, answer

MIB = 2**20
SMALL = b'{"prompt":"x"}'


async def test_one_clients_bodies_leave_room_for_others(serve: Serve) -> None:
    """The limit by default is 1 GiB, which is far more than the memory."""
    backend = RawBackend()
    await backend.start()
    slow = asyncio.Event()
    whole = answer(b'{"choices":[]}')
    backend.always = lambda raw: (slow, whole) if len(raw) > MIB else (whole,)
    idle_bytes = (await serve([backend.url])).resident_bytes
    limits = {"memory_bytes": (idle_bytes + 90 * MIB) * 10 // 9}
    # The large prompts look like a minute of work. Nobody shall be refused for that here.
    penstock = await serve([backend.url], limits=limits, admission={"enabled": False})
    url = f"{penstock.url}/v1/completions"
    large = b'{"prompt":"%b"}' % (b"x" * (16 * MIB))

    async def send(address: str, body: bytes) -> int:
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        with suppress(aiohttp.ClientError):  # a refusal amid the body
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(url, data=io.BytesIO(body)) as reply,
            ):
                return reply.status
        return 429

    async with AsyncExitStack() as stack:
        stack.push_async_callback(backend.stop)
        sending = [asyncio.create_task(send("127.0.0.2", large)) for _ in range(8)]
        await asyncio.sleep(1.0)
        others = []
        for _ in range(20):
            others.append(await send("127.0.0.1", SMALL))
            await asyncio.sleep(0.05)
        slow.set()
        assert set(await asyncio.gather(*sending)) == {200, 429}
    assert others == [200] * 20
