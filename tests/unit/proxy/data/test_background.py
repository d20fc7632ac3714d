"""A response that is made in the background keeps its place at its backend until it is over."""

import gc
from collections.abc import Callable, Iterator

import pytest

from penstock.balancing.backend import State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.proxy.data.background import CLIENT_MAX
from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from tests.unit.proxy.data.playbook import END, STREAM, Client, Play, chat, chunk, get, plain, post

LIMIT_TOKENS = 2_000


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play(backends=1)
    yield play
    play.passes(60.0)
    assert not len(play.plane.background)
    play.close()


def begins(play: Play, name: bytes = b"resp_1", status: bytes = b"queued") -> None:
    """A client asks for a response, and is told that it is made later."""
    begun(play, LIMIT_TOKENS)
    play["b1"].sends(plain("200 OK", response(name, status)))


UNKNOWN = plain("404 Not Found", b'{"error":{"message":"not found"}}')


def asks(play: Play, name: bytes, status: bytes, path: bytes = b"", answer: bytes = b"") -> None:
    """It asks for that response and is told so."""
    at = f"/v1/responses/{name.decode()}{path.decode()}"
    play.client.sends(post(at, b"") if path else get(at))
    play["b1"].sends(answer or plain("200 OK", response(name, status)))


def begun(play: Play, most: int = 9, client: Client | None = None) -> None:
    """A response is asked for, and nothing is said of it yet."""
    body = b'{"input":"x","background":true,"max_output_tokens":%d}' % most
    (client or play.client).sends(post("/v1/responses", body))


def response(name: bytes, status: bytes) -> bytes:
    return b'{"id":"%b","object":"response","status":"%b","output":[]}' % (name, status)


def running(play: Play) -> int:
    return play.backends[0].own.requests


ENDS: dict[str, Callable[[Play], object]] = {
    "completed": lambda play: asks(play, b"resp_1", b"completed"),
    "failed": lambda play: asks(play, b"resp_1", b"failed"),
    "incomplete": lambda play: asks(play, b"resp_1", b"incomplete"),
    "cancelled": lambda play: asks(play, b"resp_1", b"cancelled"),
    "cancelled now": lambda play: asks(play, b"resp_1", b"cancelled", b"/cancel"),
    "unknown to its engine": lambda play: asks(play, b"resp_1", b"", answer=UNKNOWN),
    "its backend is out": lambda play: play.ejects("b1"),
    "its engine has restarted": lambda play: play.backends[0].restarted(),
}


@pytest.mark.parametrize("how", ENDS)
def test_it_is_over_when_its_backend_says_so_or_has_lost_it(play: Play, how: str) -> None:
    begins(play)
    assert running(play) == 1
    asks(play, b"resp_1", b"in_progress")
    play.passes(1.5)
    assert running(play) == 1
    ENDS[how](play)
    play.passes(1.5)
    assert running(play) == 0
    play.ejects()


def test_what_another_one_becomes_says_nothing_of_it(play: Play) -> None:
    begins(play, b"resp_1")
    begins(play, b"resp_2")
    asks(play, b"resp_2", b"completed")
    assert running(play) == 1


def test_it_is_over_when_there_was_time_for_its_longest_answer(play: Play) -> None:
    begins(play)
    backend = play.backends[0]
    longest_s = LIMIT_TOKENS * backend.decode_speed.itl_s(0)
    play.passes(0.9 * longest_s)
    assert running(play) == 1
    play.passes(longest_s)
    assert running(play) == 0


def test_two_with_one_id_are_two(play: Play) -> None:
    """Clients of vLLM may choose the ids of their responses."""
    begins(play)
    begins(play)
    assert running(play) == 2
    asks(play, b"resp_1", b"completed")
    assert running(play) == 1


@pytest.mark.parametrize("whole", [True, False], ids=["whole at once", "refused"])
def test_what_begins_no_work_leaves_nothing(play: Play, whole: bool) -> None:
    begun(play)
    told = plain("200 OK", response(b"resp_1", b"completed"))
    play["b1"].sends(told if whole else plain("400 Bad Request", b'{"error":{"message":"no"}}'))
    assert running(play) == 0


def test_of_one_client_only_so_many_are_kept(play: Play) -> None:
    for number in range(CLIENT_MAX + 5):
        begins(play, b"resp_%d" % number)
    assert running(play) == len(play.plane.background) == CLIENT_MAX
    asks(play, b"resp_0", b"completed")
    begins(play, b"resp_again")
    assert running(play) == CLIENT_MAX


def test_the_clients_leaving_changes_nothing(play: Play) -> None:
    begins(play)
    play.client.closes()
    assert running(play) == 1


def leases() -> int:
    gc.collect()
    return sum(isinstance(each, Lease) for each in gc.get_objects())


def test_of_those_that_are_over_nothing_is_kept(play: Play) -> None:
    """Their time would have lasted for minutes."""
    before = leases()
    for number in range(50):
        begins(play, b"resp_%d" % number)
        asks(play, b"resp_%d" % number, b"cancelled", b"/cancel")
    assert leases() <= before + 1  # the connection's last one


def test_a_long_conversation_stays_as_long_when_it_is_asked_for(play: Play) -> None:
    begins(play)
    owners, now_s = play.plane.gate.owners, play.loop.now_s
    tokens = owners.tokens_of("resp_1", "", now_s)
    assert tokens > 0
    asks(play, b"resp_1", b"completed")
    assert owners.tokens_of("resp_1", "", now_s) == tokens


def reports(play: Play, running: int, *, works: bool = True, number: int = 0) -> None:
    """The engine's metrics were read. `works`: it has made tokens since they were read last."""
    backend = play.backends[number]
    before = backend.report.generated_tokens if backend.report is not None else 0
    now_s, tokens = play.loop.now_s, before + works
    backend.take(EngineReport(now_s, running, kv_tokens=100_000, generated_tokens=tokens))


def test_it_is_over_when_the_engine_has_fewer_requests(play: Play) -> None:
    """Nobody asks for them: as many end as it surely has no more, the oldest first."""
    for number in range(5):
        begins(play, b"resp_%d" % number)
    reports(play, running=5)
    play.passes(2.0)
    reports(play, running=5)
    play.passes(1.5)
    assert running(play) == 5
    reports(play, running=2)
    play.passes(1.5)
    assert running(play) == 2
    asks(play, b"resp_4", b"completed")
    assert running(play) == 1
    reports(play, running=0)
    play.passes(1.5)
    assert running(play) == 0


def test_an_engine_that_makes_no_token_has_ended_nothing(play: Play) -> None:
    """It hangs, and its API server tells of the requests that its engine knew."""
    reports(play, running=0)
    begins(play)
    play.passes(2.0)
    reports(play, running=0, works=False)
    play.passes(1.5)
    assert running(play) == 1
    reports(play, running=0)
    play.passes(1.5)
    assert running(play) == 0


def test_a_hung_engine_with_places_of_one_client_gets_no_more_than_its_share() -> None:
    play = Play(2, policy="token_cost")
    hung, sound = play.backends
    for each in range(2):
        reports(play, running=0, number=each)
    for number in range(20):
        before = hung.requests_total
        begun(play, 3_000)
        name = "b1" if hung.requests_total > before else "b2"
        play[name].sends(plain("200 OK", response(b"resp_%d" % number, b"queued")))
    assert hung.own.requests == sound.own.requests == 10
    play.passes(2.0)
    reports(play, running=0, number=0, works=False)
    reports(play, running=4, number=1)
    play.passes(1.5)
    assert (hung.own.requests, sound.own.requests) == (10, 4)
    victims = [play.connects() for _ in range(2)]
    for victim in victims:
        victim.sends(chat())
    assert (hung.own.requests, sound.own.requests) == (11, 5)  # they cost the same: in turn
    for victim in victims:
        victim.closes()
    hung.state = State.EJECTED
    reports(play, running=0, number=1)
    play.passes(1.5)
    reports(play, running=0, number=1)
    play.passes(1.5)


def test_a_report_from_before_it_was_sent_says_nothing(play: Play) -> None:
    reports(play, running=0)
    begins(play)
    play.passes(1.5)
    assert running(play) == 1


def streams(play: Play, *, background: bool = True) -> None:
    told = b"true" if background else b"false"
    body = b'{"input":"x","background":%b,"stream":true,"max_output_tokens":900}' % told
    play.client.sends(post("/v1/responses", body))


CREATED = chunk(
    b'event: response.created\ndata: {"type":"response.created",'
    b'"response":{"id":"resp_1","object":"response","status":"queued"}}\n\n'
)
OVER = chunk(
    b'event: response.completed\ndata: {"type":"response.completed",'
    b'"response":{"id":"resp_1","status":"completed","output":[1],'
    b'"usage":{"input_tokens":5,"output_tokens":1,"total_tokens":6}}}\n\n'
)


@pytest.mark.parametrize(
    ("told", "background", "left"),
    [
        (b"", True, 1),
        (STREAM, True, 1),
        (STREAM + CREATED, True, 1),
        (STREAM + CREATED, False, 0),
        (STREAM + CREATED + OVER + END, True, 0),
    ],
)
def test_a_stream_in_the_background_goes_on_without_its_client_until_it_is_whole(
    play: Play, told: bytes, background: bool, left: int
) -> None:
    streams(play, background=background)
    if told:
        play["b1"].sends(told)
    play.client.closes()
    assert running(play) == left


def test_an_answer_that_is_too_large_to_hold_goes_on(play: Play) -> None:
    begun(play)
    large = response(b"resp_1", b"queued").replace(b"[]", b'["%b"]' % (b"a" * WHOLE_BYTES_MAX))
    play["b1"].sends(plain("200 OK", large))
    assert running(play) == 1
    asks(play, b"resp_1", b"completed")
    assert running(play) == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_that_nobody_sees_it_shows_no_life_of_its_engine(play: Play, leaves: bool) -> None:
    backend = play.backends[0]
    before = backend.progress, backend.answered_s
    if leaves:
        begun(play)
        play.passes(0.1)
        play.client.closes()
    else:
        begins(play)
    play.turns()
    assert running(play) == 1
    assert (backend.progress, backend.answered_s) == before
    assert backend.own.queued_prefill_tokens == 0


def test_a_report_ends_the_older_one_though_it_was_kept_later(play: Play) -> None:
    backend, other = play.backends[0], play.connects()
    begun(play, 9_000, other)
    play.passes(5.0)
    begins(play)
    other.closes()
    older, younger = sorted(play.plane.background._kept, key=lambda each: each.began_s)
    play.passes(0.5)
    backend.report = EngineReport(play.loop.now_s, running=0)
    backend.progress += 1
    play.passes(1.1)
    assert older.ended
    assert not younger.ended
