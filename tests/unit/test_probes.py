"""Answers to probes that are larger than any server's: told as that, and read by small steps."""

import asyncio
import errno
from collections.abc import Callable
from random import Random

import pytest

from balancing.backend import Backend, State
from conf.settings import HealthSettings
from health import models, monitor, scrape
from health.line import Answer, Line, Overlong
from health.models import CARD_BYTES_MAX, MODELS_MAX, TURN_BYTES, read_models
from health.probes import Prober
from health.questions import BODY_BYTES_MAX, Questions
from health.scrape import METRICS_BYTES_MAX, SERIES_MAX, TooLarge, read_report
from health.watch import Watch
from proxy.connection_pool import ConnectionPool, NoDescriptors

MIB = 1_048_576
SERIES = b"vllm:num_requests_running{} 1\n"
CARDS = {
    "one card": b'{"data":[{"id":"m","x":[' + b"[]," * 20_000 + b"0]}]}",
    "lists in a card": b'{"data":[{"id":"m","x":[' + b"[]," * 340_000 + b"0]}]}",
    "cards": b'{"data":[' + b"{}," * 340_000 + b"{}]}",
    "a text": b'{"data":[{"id":"' + b"m" * MIB + b'"}]}',
}


class Told(Questions):
    """Whatever is asked, this is the answer, cut where a line would cut it."""

    def __init__(self, answer: bytes | OSError) -> None:
        self._answer = answer

    async def get(self, path: bytes, limit_bytes: int = BODY_BYTES_MAX) -> Answer:
        if isinstance(self._answer, OSError):
            raise self._answer
        body = self._answer
        return Answer(200, body[:limit_bytes], whole=len(body) <= limit_bytes)


async def ready(answer: bytes | OSError) -> str:
    return (await Prober(Told(answer)).ready(1.0)).reason


@pytest.mark.parametrize("kind", CARDS)
async def test_a_list_of_models_that_is_too_large_is_told(kind: str) -> None:
    assert await ready(CARDS[kind]) == "too_large"


async def test_an_answer_without_end_is_told() -> None:
    assert await ready(Overlong()) == "too_large"
    assert await ready(b'{"data":[{"id":"m"}]}' + b" " * MIB) == "too_large"


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":[{"id":"m","x":' + b"[" * 500_000 + b"]" * 500_000 + b"}]}",
        b'{"data":[{"id":"m","x":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'{"data":[{"id":"m","x":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}",
        b'{"data":[{"id":"\xff"}]}',
        b'{"data":[{"id":1}]}',
        b'{"data":[[]]}',
        b'{"data":[]}',
        b'{"data":{}}',
        b"[]",
        b"",
    ],
)
async def test_what_is_no_list_of_models_is_none(body: bytes) -> None:
    assert await ready(body) == "no_models"


async def turns_of(step: Callable[[], None]) -> None:
    """Call `step` in each turn of the loop, for ever."""
    while True:
        step()
        await asyncio.sleep(0)


async def test_so_much_of_the_cards_is_decoded_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = [0]
    read_card = models._read_card

    def counted(card: bytes, listed: dict[str, bytes], contexts: dict[str | None, int]) -> None:
        decoded[-1] += len(card)
        read_card(card, listed, contexts)

    monkeypatch.setattr(models, "_read_card", counted)
    other = asyncio.create_task(turns_of(lambda: decoded.append(0)))
    card = b'{"id":"%%d","x":"%b"}' % (b"x" * 500)
    body = b'{"data":[' + b",".join(card % number for number in range(2_000)) + b"]}"
    listed, _ = await read_models(body)
    other.cancel()
    assert len(listed) == MODELS_MAX
    assert sum(decoded) > MODELS_MAX * 500
    assert max(decoded) <= TURN_BYTES
    assert TURN_BYTES <= CARD_BYTES_MAX


async def test_of_metrics_one_name_is_read_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[set[bytes]] = [set()]
    samples = scrape._samples

    def counted(text: bytes, name: bytes) -> list[tuple[bytes, float]]:
        names[-1].add(name)
        return samples(text, name)

    monkeypatch.setattr(scrape, "_samples", counted)
    other = asyncio.create_task(turns_of(lambda: names.append(set())))
    report = await read_report(SERIES + b"# \n" * 600_000, 0.0, 0)
    other.cancel()
    assert report is not None
    assert report.running == 1
    assert max(map(len, names)) == 1
    assert len(set[bytes]().union(*names)) == 8


async def test_more_series_than_a_server_has_are_not_read() -> None:
    report = await read_report(SERIES * SERIES_MAX, 0.0, 0)
    assert report is not None
    assert report.running == SERIES_MAX
    with pytest.raises(TooLarge):
        await read_report(SERIES * (SERIES_MAX + 1), 0.0, 0)
    with pytest.raises(TooLarge):
        await read_report(SERIES.replace(b"1", b"x") * (SERIES_MAX + 1), 0.0, 0)


@pytest.mark.parametrize(
    "answer",
    [SERIES * (METRICS_BYTES_MAX // 30), SERIES + b"#" * METRICS_BYTES_MAX, Overlong()],
)
async def test_metrics_that_are_too_large_are_told_once(
    answer: bytes | OSError, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend("b0", "http://b0")
    backend.state = State.READY
    watch = Watch(backend, [backend], (), HealthSettings(), Random(1))
    for _ in range(3):
        await monitor._read_report(Told(answer), backend, watch, 1.0)
    assert backend.report is None
    assert backend.state is State.READY
    assert watch.last_probes["metrics"].reason == "too_large"
    assert len(caplog.records) == 1
    assert await Prober(Told(answer)).report(1.0, 0.0) is None


class Lacks(Questions):
    """Connects to addresses that fail so."""

    def __init__(self, *errors: OSError) -> None:
        self._errors = {f"10.0.0.{number}": error for number, error in enumerate(errors)}
        super().__init__("http://b0", self)

    async def addresses(self) -> list[str]:
        return list(self._errors)

    async def _open(self, address: str) -> Line:
        raise self._errors[address]


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL]
)
async def test_what_we_lack_ourselves_is_no_answer_of_a_backend(number: int) -> None:
    own = OSError(number, "")
    outcome = await Prober(Lacks(own, own)).live(1.0)
    assert (outcome.own, outcome.reason) == (True, errno.errorcode[number])
    outcome = await Prober(Lacks(own, TimeoutError())).live(1.0)
    assert (outcome.own, outcome.reason) == (False, "unreachable")
    outcome = await Prober(Lacks(ConnectionRefusedError())).live(1.0)
    assert (outcome.own, outcome.certain) == (False, True)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
async def test_a_dial_that_we_cannot_make_is_no_fault_of_a_backend(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    loop = asyncio.get_running_loop()

    async def connect(*_: object, **__: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(loop, "create_connection", connect)
    pool = ConnectionPool(loop, "http://10.0.0.1:8000", connect_timeout_s=1)
    with pytest.raises(NoDescriptors):
        await pool.dial()
