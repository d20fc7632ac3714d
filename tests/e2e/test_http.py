"""HTTP that is broken, hostile or odd, through the real process, judged by two other parsers."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import LENGTH, RawBackend, finish
from tests.e2e.wire import Client, Guard, numbered
from tests.http.agreement import Agreement
from tests.http.answers import ANSWERS
from tests.http.case import Case, Steps
from tests.http.framing import FRAMING
from tests.http.headers import HEADERS
from tests.http.lines import LINES
from tests.http.message import accepted, body_of, raw
from tests.http.mutator import Mutator
from tests.http.referees import Refused, all_h11_answers
from tests.http.rig import Loop, Rig
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


# The ordinary suite plays a few; `make fuzz` sets more.
MUTATIONS = int(os.environ.get("FUZZ_PROCESS_REQUESTS", "300"))
SEED = int(os.environ.get("FUZZ_SEED", "21"))
ANSWERED_WITHIN_S = 10.0
Played = tuple[bytes, bytes, bool, list[bytes]]


def played() -> list[Played]:
    """Requests with what the classes without sockets answer to each and send upstream."""
    mutator = Mutator(SEED)
    loop = Loop()
    rig = Rig(loop)
    mutated = islice(iter(mutator.next, None), MUTATIONS)
    cases = [(data, *loop.run_until_complete(rig.play([data]))) for data in mutated]
    loop.close()
    return cases


@pytest.mark.timeout(1_200)
async def test_mutated_requests_are_read_alike(serve: Serve, raw_backend: RawBackend) -> None:
    cases = await asyncio.to_thread(played)
    penstock = await serve([raw_backend.url], paths=["GET /raw", "POST /raw"])
    agreement = Agreement()
    for data, wanted, closed, upstream in cases:
        raw_backend.expect()
        got = await _send(penstock, data, len(all_h11_answers(wanted)), closed=closed)
        arrived = [request for each in raw_backend.arrived for request in _requests(each)]
        agreement.check(data, got, arrived)
        assert _bodies(got) == _bodies(wanted), data
        assert len(arrived) == sum(map(bool, upstream)), data
    print(dict(agreement.counts))


async def _send(penstock: Penstock, data: bytes, answers: int, *, closed: bool) -> bytes:
    """What comes of a request until it is answered, or closed where it must be."""
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    writer.write(data)
    got = b""
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        while closed or len(_whole(got)) < answers:
            more = await reader.read(65_536)
            if not more:
                break
            got += more
    writer.transport.abort()
    return got


def _whole(got: bytes) -> list[bytes]:
    """The bodies of the answers that are whole so far."""
    try:
        answers = all_h11_answers(got)
    except Refused as error:  # the last is cut across reads
        answers = error.before
    return [each.body for each in answers if each.whole]


def _bodies(got: bytes) -> list[tuple[int, bytes]]:
    return [(each.status, each.body) for each in all_h11_answers(got)]


def _requests(connection: bytes) -> list[bytes]:
    """The requests on one connection to the backend, which are all canonical."""
    found = []
    while connection:
        end = connection.index(b"\r\n\r\n") + 4
        match = LENGTH.search(connection, 0, end)
        size = end + (int(match[1]) if match else 0)
        found.append(connection[:size])
        connection = connection[size:]
    return found


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
