import asyncio, time
from tests.e2e.test_bad_input import *
from tests.e2e.test_bad_input import numbered, Client

async def test_x(guard: Guard) -> None:
    limits = {"client_head_s": 0.3, "client_body_s": 0.3, "total_s": 0.8}
    server, penstock = await guard("steady-50", timeouts=limits)
    second = numbered(1, max_tokens=25)
    t=time.monotonic()
    client = await Client.open(penstock, numbered(0, max_tokens=25) + second)
    a = await client.answer(); print(time.monotonic()-t)
    a = await client.answer(); print(time.monotonic()-t, a)
    print(server.seen[-1])
    t=time.monotonic()
    client = await Client.open(penstock, numbered(0, max_tokens=75))
    a = await client.answer(); print(time.monotonic()-t, a.status)
    await asyncio.sleep(0.3)
    print([ (l["duration_ms"], l["status"]) for l in penstock.access_lines])
