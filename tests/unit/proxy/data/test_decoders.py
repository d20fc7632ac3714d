"""The thread that decodes request bodies, in turns of their holders."""

import asyncio
import gzip

from penstock.proxy.data.decoders import Decoding
from penstock.proxy.data.turn_thread import TurnThread

MOST_BYTES = 10_000


async def test_holders_have_turns_and_what_nobody_wants_is_left_out() -> None:
    decoders = TurnThread(asyncio.get_running_loop(), "decoding")
    told: list[bytes | Exception] = []
    over = asyncio.Event()

    def then(found: bytes | Exception) -> None:
        told.append(found)
        if len(told) == 4:
            over.set()

    def adds(holder: str, text: bytes) -> Decoding:
        job = Decoding(b"gzip", gzip.compress(text), MOST_BYTES, then)
        decoders.add(holder, job)
        return job

    for text in (b"a1", b"a2", b"a3"):
        adds("a", text)
    adds("b", b"b1").end()
    adds("c", b"c1")
    await over.wait()
    assert told == [b"a1", b"a2", b"c1", b"a3"]
    decoders.close()
