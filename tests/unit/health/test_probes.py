"""Answers to probes that are larger than any server's: told as that, and read by small steps."""

import asyncio
import errno
import socket
from collections.abc import Callable
from random import Random

import pytest

from penstock.balancing.backend import Backend, State
from penstock.conf.health import HealthSettings
from penstock.health import engine, monitor, scrape
from penstock.health.engine import CARD_BYTES_MAX, MODELS_MAX, TURN_BYTES, read_models
from penstock.health.probes import Outcome, Prober, Shortage
from penstock.health.scrape import METRICS_BYTES_MAX, SERIES_MAX, TooLarge, read_report
from penstock.health.watch import Watch
from penstock.proxy.errors.backend import ConnectFailed, ConnectionRefused, NoPorts
from penstock.proxy.wire.host import Names, has_way
from penstock.proxy.wire.pool import ConnectionPool, NoDescriptors
from penstock.proxy.wire.questions import Answer
from tests.unit.health.told import Told
from tests.unit.proxy.wire.dialing import by_hand

MIB = 1_048_576
SERIES = b"vllm:num_requests_running{} 1\n"
TOO_LARGE = Answer(reason="too_large")
CARDS: dict[str, bytes | Answer] = {
    "an answer without end": TOO_LARGE,
    "blanks without end": b'{"data":[{"id":"m"}]}' + b" " * MIB,
    "one card": b'{"data":[{"id":"m","x":[' + b"[]," * 20_000 + b"0]}]}",
    "lists in a card": b'{"data":[{"id":"m","x":[' + b"[]," * 340_000 + b"0]}]}",
    "cards": b'{"data":[' + b"{}," * 340_000 + b"{}]}",
    "a text": b'{"data":[{"id":"' + b"m" * MIB + b'"}]}',
}


async def ready(answer: bytes | Answer) -> str:
    return (await Prober(Told(answer)).ready(1.0)).reason


@pytest.mark.parametrize("kind", CARDS)
async def test_a_list_of_models_that_is_too_large_is_told(kind: str) -> None:
    assert await ready(CARDS[kind]) == "too_large"


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
    read_card = engine._read_card

    def counted(card: bytes, listed: dict[str, bytes], contexts: dict[str | None, int]) -> None:
        decoded[-1] += len(card)
        read_card(card, listed, contexts)

    monkeypatch.setattr(engine, "_read_card", counted)
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
    samples = scrape.samples_of

    def counted(text: bytes, name: bytes) -> list[tuple[bytes, float]]:
        names[-1].add(name)
        return samples(text, name)

    monkeypatch.setattr(scrape, "samples_of", counted)
    other = asyncio.create_task(turns_of(lambda: names.append(set())))
    report = await read_report(SERIES + b"# \n" * 600_000, 0.0, 0)
    other.cancel()
    assert report is not None
    assert report.running == 1
    assert max(map(len, names)) == 1
    assert len(set[bytes]().union(*names)) == 13


async def test_more_series_than_a_server_has_are_not_read() -> None:
    report = await read_report(SERIES * SERIES_MAX, 0.0, 0)
    assert report is not None
    assert report.running == SERIES_MAX
    with pytest.raises(TooLarge):
        await read_report(SERIES * (SERIES_MAX + 1), 0.0, 0)
    with pytest.raises(TooLarge):
        await read_report(SERIES.replace(b"1", b"x") * (SERIES_MAX + 1), 0.0, 0)


def watched() -> tuple[Backend, Watch]:
    backend = Backend("b0", "http://b0")
    backend.state = State.READY
    return backend, Watch(backend, [backend], (), HealthSettings(), Random(1))


@pytest.mark.parametrize(
    "answer",
    [SERIES * (METRICS_BYTES_MAX // 30), SERIES + b"#" * METRICS_BYTES_MAX, TOO_LARGE],
)
async def test_metrics_that_are_too_large_are_told_once(
    answer: bytes | Answer, caplog: pytest.LogCaptureFixture
) -> None:
    backend, watch = watched()
    for _ in range(3):
        await monitor._read_report(Told(answer), backend, watch, 1.0, lambda: 0.0)
    assert backend.report is None
    assert backend.state is State.READY
    assert watch.last_probes["metrics"].reason == "too_large"
    assert len(caplog.records) == 1
    assert await Prober(Told(answer)).report(1.0, 0.0) is None


async def test_metrics_that_are_read_again_are_no_longer_told_as_too_large(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend, watch = watched()
    for times in (1, 2):
        await monitor._read_report(Told(TOO_LARGE), backend, watch, 1.0)
        await monitor._read_report(Told(Answer(reason="unreachable")), backend, watch, 1.0)
        assert "metrics" in watch.last_probes
        assert caplog.text.count("metrics are too large") == times
        await monitor._read_report(Told(SERIES), backend, watch, 1.0)
        assert "metrics" not in watch.last_probes
    assert backend.report is not None


NO_ADDRESS = OSError(errno.EADDRNOTAVAIL, "")


async def outcome_of(
    monkeypatch: pytest.MonkeyPatch, *failures: OSError, way: bool = False
) -> Outcome:
    """Of a probe of a backend whose addresses fail so."""
    errors = {f"10.0.0.{number}": error for number, error in enumerate(failures)}
    return await Prober(Dials(monkeypatch, way=way, **errors).pool.questions()).live(1.0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_what_we_lack_ourselves_is_no_answer_of_a_backend(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    own = OSError(number, "")
    outcome = await outcome_of(monkeypatch, own, own)
    assert (outcome.own, outcome.reason) == (True, errno.errorcode[number])
    outcome = await outcome_of(monkeypatch, own, TimeoutError())
    assert (outcome.own, outcome.reason) == (False, "unreachable")
    outcome = await outcome_of(monkeypatch, ConnectionRefusedError())
    assert (outcome.own, outcome.certain) == (False, True)


async def test_no_way_to_an_address_is_the_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """No IPv6 here: other backends may be reached all the same."""
    outcome = await outcome_of(monkeypatch, NO_ADDRESS)
    assert (outcome.own, outcome.certain, outcome.reason) == (False, False, "unreachable")
    outcome = await outcome_of(monkeypatch, NO_ADDRESS, ConnectionRefusedError())
    assert (outcome.own, outcome.certain) == (False, True)


async def test_no_port_left_toward_an_address_says_nothing_of_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its other addresses say: this one may be the one that answers."""
    for errors in (
        [NO_ADDRESS],
        [NO_ADDRESS, ConnectionRefusedError()],
        [ConnectionRefusedError(), NO_ADDRESS],
    ):
        outcome = await outcome_of(monkeypatch, *errors, way=True)
        assert (outcome.own, outcome.certain) == (True, False)
        assert outcome.reason == "EADDRNOTAVAIL"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.EAGAIN])
def test_what_we_lack_to_ask_for_a_way_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(socket, "socket", fail)
    assert has_way("10.0.0.1")


class Dials:
    """A pool of connections to a name with several addresses, each of which does as told."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, way: bool = False, **errors: OSError | None
    ) -> None:
        async def look_up(_: str) -> list[str]:
            return list(errors)

        def dialed(address: str) -> None:
            self.tried.append(address)
            error = errors[address]
            if error is not None:
                raise error

        loop = by_hand(monkeypatch, dialed)
        self.tried: list[str] = []
        self.pool = ConnectionPool(
            loop, "http://b0:8000", connect_timeout_s=1, names=Names(look_up, has_way=lambda _: way)
        )


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS])
async def test_a_dial_that_we_cannot_make_is_no_fault_of_a_backend(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    own = OSError(number, "")
    with pytest.raises(NoDescriptors):
        await Dials(monkeypatch, first=own, second=own).pool.dial()
    dials = Dials(monkeypatch, first=own, second=None)
    for _ in range(2):
        await dials.pool.dial()
    assert dials.tried == ["first", "second"] * 2  # nor are its addresses put in another order


async def test_a_dial_without_a_way_to_the_address_can_be_tried_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConnectFailed) as failed:
        await Dials(monkeypatch, first=NO_ADDRESS).pool.dial()
    assert failed.value.retryable
    assert failed.value.suspicious
    assert not isinstance(failed.value, ConnectionRefused)
    with pytest.raises(ConnectionRefused):
        await Dials(monkeypatch, first=NO_ADDRESS, second=ConnectionRefusedError()).pool.dial()


async def test_a_dial_without_a_port_is_tried_elsewhere_and_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for errors in ({"first": NO_ADDRESS}, {"first": NO_ADDRESS, "second": TimeoutError()}):
        with pytest.raises(NoPorts) as failed:
            await Dials(monkeypatch, way=True, **errors).pool.dial()
        assert (failed.value.retryable, failed.value.suspicious) == (True, False)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EMFILE, "see ulimit -n"),
        (errno.ENOBUFS, "kernel's memory"),
        (errno.EADDRNOTAVAIL, "see net.ipv4.ip_local_port_range"),
    ],
)
def test_what_we_lack_is_told_with_where_to_look(
    caplog: pytest.LogCaptureFixture, number: int, hint: str
) -> None:
    Shortage().tell(errno.errorcode[number], 0.0)
    assert hint in caplog.text
    assert caplog.text.count("see ") == 1
