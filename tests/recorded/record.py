"""Record streams of the simulated server as the recordings of a real one are: request, answer.

`python -m tests.recorded.record` writes them all anew, beside this file. The server's clock
stands still and ids follow the request's, so that they change only when the server does.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.bench.sim.server import SimServer

FOLDER: Final = Path(__file__).parent
TEXT: Final = 'Tell me of rivers, 水 and "bridges".'
TURNS: Final = [{"role": "user", "content": TEXT}]
BODIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 24}),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 24}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 24}),
    "messages": ("/v1/messages", {"messages": TURNS, "max_tokens": 24}),
}
USAGE: Final = {"stream_options": {"include_usage": True}}
SEVERAL: Final = {"prompt": ["one", "two", TEXT], "n": 2, "max_tokens": 5, **USAGE}
# Each in every API; the fault's own options beside its kind.
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "crlf": {"kind": "crlf"},
    "multi": {"kind": "multi_token", "tokens": 7},
    "cut": {"kind": "cut_mid_stream", "tokens": 4},
    "error": {"kind": "error_event", "status": 500, "tokens": 4},
}


async def record(server: SimServer, name: str, path: str, body: dict[str, Any]) -> None:
    """One request and all that came until the connection's end."""
    raw = orjson.dumps({"model": "sim-model", "stream": True, **body})
    head = (
        f"POST {path} HTTP/1.1\r\nhost: vllm\r\nx-request-id: recorded\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n"
        "connection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.encode() + raw)
    answer = await reader.read(-1)
    writer.close()
    (FOLDER / f"{name}.http").write_bytes(head.encode() + raw + answer)


async def main() -> None:
    """All of them."""
    server = await SimServer(profile="instant", clock=lambda: 1_700_000_000.0).start()
    for fault, options in FAULTS.items():
        server.faults.clear()
        if options:
            server.faults.set(**options)
        for name, (path, body) in BODIES.items():
            asked = body | USAGE if path.endswith("completions") else body
            await record(server, f"{name}_{fault}", path, asked)
    server.faults.clear()
    await record(server, "completions_several", "/v1/completions", SEVERAL)
    await record(server, "chat_no_usage", *BODIES["chat"])
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
