"""`penstock demo`: a fleet of simulated vLLM servers and the proxy, on loopback."""

import asyncio
import sys
from typing import Final

import aiohttp
import orjson

from bench.sim.server import SimServer
from proxy.app import App
from proxy.source import Source

MODEL: Final = "demo-model"
READY_WITHIN_S: Final = 10.0
PROMPT: Final = "Why does a penstock need a gate?"


async def demo(*, backends: int, port: int, admin_port: int, once: bool) -> int:
    """Run the demo. Returns 0 only if a stream, when asked for once, ended with [DONE]."""
    servers = [SimServer(name=f"sim-{i}", model=MODEL, seed=i) for i in range(max(1, backends))]
    for server in servers:
        await server.start()
    source = Source(
        None,
        {},
        {
            "backends": [server.url for server in servers],
            "listen.host": "127.0.0.1",
            "listen.port": port,
            "admin.port": admin_port,
            "log.access": not once,
        },
    )
    app = App(source, source.load())
    try:
        await app.start()
        async with asyncio.timeout(READY_WITHIN_S):
            await app.monitor.started.wait()
        if once:
            return await _stream_one(app.port)
        app.take_signals()
        _tell(app, len(servers))
        await app.run()
        return 0
    finally:
        await app.close()
        for server in servers:
            await server.stop()


def _body(max_tokens: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "stream": True,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": PROMPT}],
    }


def _tell(app: App, servers: int) -> None:
    print(
        f"""penstock is serving {servers} simulated vLLM servers on http://127.0.0.1:{app.port}

    curl -N http://127.0.0.1:{app.port}/v1/chat/completions \\
      -H 'content-type: application/json' \\
      -d '{orjson.dumps(_body(48)).decode()}'

Its view of the fleet: http://127.0.0.1:{app.admin_port}/api/v1/backends
Its metrics:           http://127.0.0.1:{app.admin_port}/metrics
End it with Ctrl-C. What follows is its access log.
""",
        file=sys.stderr,
        flush=True,
    )


async def _stream_one(port: int) -> int:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    done = False
    async with aiohttp.ClientSession() as session, session.post(url, json=_body(48)) as answer:
        if answer.status != 200:
            print(f"answered {answer.status}: {await answer.text()}", file=sys.stderr)
            return 1
        async for line in answer.content:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                done = True
            elif data:
                for choice in orjson.loads(data)["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
        backend = answer.headers["x-penstock-backend"]
    print(f"\n\nserved by {backend}", "" if done else "(the stream was cut)")
    return 0 if done else 1
