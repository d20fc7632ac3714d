"""The corpus: a scripted raw client, the real process, a scripted raw backend.

After every case the next client on a connection of its own gets its own answer, the counters
are at zero and the process has logged no fault; at the end all verdicts are told at once.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, finish
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
CASES_MIN = 150
TIMEOUTS = {"client_head_s": 1.0, "client_body_s": 1.0, "first_byte_s": 1.0, "idle_s": 1.0}
PATHS = ["GET /raw", "POST /raw"]


@pytest.fixture
async def backend() -> AsyncIterator[RawBackend]:
    backend = RawBackend()
    await backend.start()
    yield backend
    await backend.stop()


@pytest.mark.parametrize(
    "cases", [REQUESTS, HEADERS, ANSWERS], ids=["requests", "headers", "answers"]
)
async def test_the_corpus(
    serve: Serve, backend: RawBackend, cases: Sequence[Case], record_property: object
) -> None:
    penstock = await serve(
        [backend.url],
        timeouts=TIMEOUTS,
        limits={"head_bytes": 16_384, "body_bytes": 262_144},
        paths=PATHS,
    )
    found: dict[str, str] = {}
    for case in cases:
        verdict = await run(case, penstock, backend)
        if verdict is not None:
            found[case.name] = f"{verdict[0]}: {verdict[1]}"
    for name, why in found.items():
        print(name, "=>", why[:300])
    assert not found, Counter(each.partition(":")[0] for each in found.values())


def test_the_corpus_is_large_enough() -> None:
    names = [case.name for cases in (REQUESTS, HEADERS, ANSWERS) for case in cases]
    assert len(set(names)) == len(names) >= CASES_MIN


async def run(case: Case, penstock: Penstock, backend: RawBackend) -> Judgement:
    backend.expect(*case.script, early=case.early)
    seen = await talk(case, penstock)
    backend.script.clear()
    backend.early = False
    after = f"after {case.name}"
    next_one = accepted(after, raw(body_of(after)))
    arrived = backend.arrived
    backend.expect()
    follow = await talk(next_one, penstock)
    try:
        await penstock.until_at_rest()
    except AssertionError as error:
        return Verdict.HANG, f"not at rest: {error}"
    seen.upstream = arrived
    follow.upstream = backend.arrived
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
