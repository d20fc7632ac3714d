"""An end of asyncio's servers that leaves no connection behind."""

import asyncio


async def stop_listening(*servers: asyncio.Server) -> None:
    """Close them while clients still connect.

    `Server.close` alone between an accept and the making of its transport fails in `_attach`
    (Python 3.11). Nobody closes that transport then.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())
    await asyncio.sleep(0)  # what was accepted gets its transport
    for server in servers:
        server.close()
