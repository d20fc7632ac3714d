"""HTTP that is broken, hostile or odd, through the real process, judged by two other parsers."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, finish
from tests.e2e.wire import Client, Guard, numbered
from tests.http.answers import ANSWERS
from tests.http.case import Case, Steps
from tests.http.framing import FRAMING
from tests.http.headers import HEADERS
from tests.http.lines import LINES
from tests.http.message import accepted, body_of, raw
from tests.http.sequences import SEQUENCES
from tests.http.verdict import MARKER, Judgement, Seen, Verdict, answered, judge

REQUESTS = [*FRAMING, *LINES, *SEQUENCES]
WITHIN_S = 6.0
TIMEOUTS = {"client_head_s": 1.0, "client_body_s": 1.0, "first_byte_s": 1.0, "idle_s": 1.0}
PATHS = ["GET /raw", "POST /raw"]


@pytest.mark.parametrize(
    "cases", [REQUESTS, HEADERS, ANSWERS], ids=["requests", "headers", "answers"]
)
async def test_the_corpus(serve: Serve, raw_backend: RawBackend, cases: Sequence[Case]) -> None:
    penstock = await serve(
        [raw_backend.url],
        timeouts=TIMEOUTS,
        limits={"head_bytes": 16_384, "body_bytes": 262_144},
        paths=PATHS,
    )
    found: dict[str, str] = {}
    for case in cases:
        verdict = await run(case, penstock, raw_backend)
        if verdict is not None:
            found[case.name] = f"{verdict[0]}: {verdict[1]}"
    for name, why in found.items():
        print(name, "=>", why[:300])
    assert not found, Counter(each.partition(":")[0] for each in found.values())


async def run(case: Case, penstock: Penstock, raw_backend: RawBackend) -> Judgement:
    raw_backend.expect(*case.script, early=case.early)
    seen = await talk(case, penstock)
    raw_backend.script.clear()
    raw_backend.early = False
    after = f"after {case.name}"
    next_one = accepted(after, raw(body_of(after)))
    arrived = raw_backend.arrived
    raw_backend.expect()
    follow = await talk(next_one, penstock)
    try:
        await penstock.until_at_rest()
    except AssertionError as error:
        return Verdict.HANG, f"not at rest: {error}"
    seen.upstream = arrived
    follow.upstream = raw_backend.arrived
    if penstock.process.returncode is not None or b"Traceback" in b"".join(penstock.log):
        return Verdict.CRASH, b"".join(penstock.log).decode()
    found = judge(case, seen)
    if found is None and (found := judge(next_one, follow)) is not None:
        return found[0], f"the next client: {found[1]}"
    return found


async def talk(case: Case, penstock: Penstock) -> Seen:
    """Play the client's side and collect what it is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    seen = Seen(b"", ())
    playing = asyncio.create_task(_play(case.send, writer))
    asked = False
    try:
        async with asyncio.timeout(WITHIN_S):
            while data := await reader.read(65_536):
                seen.client += data
                if not (asked or case.closes) and answered(case, seen.client):
                    asked = True
                    await playing
                    writer.write(MARKER)
            await playing
    except TimeoutError:
        seen.timed_out = True
    except OSError:
        pass  # a reset is an end too
    finally:
        playing.cancel()
        writer.transport.abort()
    return seen


async def _play(steps: Steps, writer: asyncio.StreamWriter) -> None:
    for step in steps:
        if isinstance(step, bytes):
            writer.write(step)
        elif isinstance(step, str):
            await finish(writer, step)
        else:
            await asyncio.sleep(step)


async def test_a_pipelined_requests_clocks_start_at_its_turn(guard: Guard) -> None:
    """Its time limits are not used up by the request ahead of it."""
    limits = {"client_head_s": 0.6, "client_body_s": 0.6, "total_s": 1.6}
    _, penstock = await guard("steady-50", timeouts=limits)
    first, second = [numbered(i, max_tokens=50) for i in range(2)]  # a second each

    async def ask_twice(ahead: int) -> None:
        client = await Client.open(penstock, first + second[:ahead])
        assert (await client.answer()).status == 200
        client.send(second[ahead:])
        assert (await client.answer()).status == 200

    await asyncio.gather(ask_twice(len(second)), ask_twice(30))
