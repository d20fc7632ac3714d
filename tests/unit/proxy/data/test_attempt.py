"""Transcripts of one attempt: when it dials, how long it waits for what, and when it ends."""

from tests.unit.proxy.data.playbook import Play, chat, plain

ELSEWHERE = ["b2 dialed", "b2 got POST"]
WHOLE = ["client got 200, a [DONE]", "client got end"]


def asked(play: Play, *fields: str, head: bytes = b"") -> None:
    play.client.sends(chat(*fields, head=head))
    assert play.happened() == ["b1 dialed", "b1 got POST"]


def answered(play: Play) -> None:
    """One request is answered by the only backend, whose connection rests."""
    asked(play)
    play.answers("b1")
    assert play.happened() == [*WHOLE, "counted 200 b1"]


def test_a_request_whose_time_is_over_is_dialed_no_longer() -> None:
    play = Play(timeouts={"connect_s": 20, "total_s": 3})
    play.down["b1"] = None
    play.client.sends(chat())
    assert play.after(2.9) == ["b1 dialed"]
    play.passes(0.2)
    told = ["client got 504, backend_timeout", "counted 504 b1"]
    assert play.happened() == ["b1 failed: out_of_time", *told]
    assert play.backends[0].prefill_speed.recent.count == 0  # never sent


def test_a_client_that_takes_a_little_is_not_dropped_for_a_large_write() -> None:
    """Most of the write follows after the first piece of it has paused the backend."""
    play = Play(timeouts={"client_stall_s": 20})
    asked(play)
    play.streams("b1", "a")
    play.happened()
    play.client.unsent_bytes = 20_000
    play.client.connection.pause_writing()
    play.client.unsent_bytes = 300_000
    play.turns()
    for _ in range(3):
        play.client.unsent_bytes -= 10_000
        play.passes(19.9)
    assert play.happened() == ["b1 is not read"]
    play.passes(20.1)
    assert play.happened()[0] == "client dropped"


def sends_large(play: Play, choice: bytes) -> None:
    """The first backend sends a plain answer in short reads, all in this turn."""
    body = b'{"choices":[%b],"pad":[%b{}]}' % (choice, b"{}," * 40_000)
    data = plain("200 OK", body)
    for at in range(0, len(data), 2_000):
        play["b1"].protocol.data_received(data[at : at + 2_000])


def test_the_end_of_a_large_plain_answer_is_read_in_turns() -> None:
    play = Play(backends=1)
    play.client.sends(chat(stream=False))
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    sends_large(play, b'{"text":"a"}')
    assert play.happened() == []
    play.passes(1)
    got = play.happened()
    assert (got[0], got[-1]) == ("client got 200, a", "counted 200 b1")
    play.client.sends(chat())
    assert play.happened() == ["b1 got POST"]


def test_clients_take_turns_with_the_ends_of_large_answers() -> None:
    play = Play(backends=1)
    play.client.sends(chat(stream=False))
    sends_large(play, b'{"text":"a"}')
    scheduler = play.plane.answer_reads.scheduler
    assert scheduler.knows(play.client.connection.holder)
    assert not scheduler.knows("b1")


def test_a_client_that_leaves_meanwhile_leaves_the_connection() -> None:
    play = Play(backends=1)
    play.client.sends(chat(stream=False))
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    sends_large(play, b'{"text":"a"}')
    play.client.closes()
    assert play.happened() == ["client dropped", "counted 499 b1"]
    play.passes(1)
    play.client = play.connects()
    play.client.sends(chat(stream=False))
    assert play.happened() == ["b1 got POST"]


def test_a_large_plain_answer_that_was_given_up_is_tried_elsewhere(play: Play) -> None:
    play.client.sends(chat(stream=False))
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    sends_large(play, b'{"text":"a","finish_reason":"abort"}')
    play.turns()
    assert play.happened() == ["b1 failed: aborted", *ELSEWHERE]
