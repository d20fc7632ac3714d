"""Which clients do not take what came for them: told for each pool, whoever else is connected."""

import pytest

from penstock.proxy.admin.verdicts import CLIENTS_MAX, UNTAKEN_BYTES, Reading, SlowClients
from penstock.proxy.data.ending import EndingConnection
from tests.unit.proxy.data.playbook import STREAM, Play, chat, plain, text, token

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def look(slow: SlowClients, play: Play) -> Reading:
    """The second of two looks."""
    play.loop.run_until_complete(slow.look())
    return play.loop.run_until_complete(slow.look()).get("p", Reading())


def test_a_client_that_takes_nothing_is_slow_at_the_second_look(play: Play) -> None:
    slow = SlowClients(play.plane)
    play.client.sends(chat())
    play["b1"].sends(STREAM, token("a"))
    assert look(slow, play) == Reading(clients=1)
    play.client.fills()
    play["b1"].sends(token("a" * UNTAKEN_BYTES))
    first = play.loop.run_until_complete(slow.look())["p"]
    assert (first.clients, first.slow) == (1, 0)
    assert look(slow, play).slow == 1
    (kept,) = play.plane.clients
    assert isinstance(kept, EndingConnection)
    assert kept.request is not None
    record = kept.request.record
    play.passes(2.0)
    look(slow, play)
    assert record.stalled_since_s
    assert record.behind_s == 0.0  # its stall is counted already
    record.flows(play.loop.time())
    play.passes(2.0)
    look(slow, play)
    assert record.behind_s == 2.0
    record.received_s = play.loop.time() + 1.5  # as if it were the next one of its connection
    play.passes(2.0)
    look(slow, play)
    assert record.behind_s == 2.5
    play.client.drains()


@pytest.mark.parametrize("served", [False, True])
def test_connections_that_ask_for_nothing_hide_nobody(play: Play, *, served: bool) -> None:
    """Nor do those that were served before, as a gateway keeps many."""
    slow = SlowClients(play.plane)
    others = [play.connects() for _ in range(CLIENTS_MAX + 10)]
    for other in others:
        other.sends(chat(stream=False) if served else HEALTH)
        if served:
            play["b1"].sends(plain("200 OK", text("a")))
    client = play.connects()
    client.sends(chat())
    play["b1"].sends(STREAM, token("a"))
    client.fills()
    play["b1"].sends(token("a" * UNTAKEN_BYTES))
    found = look(slow, play)
    assert (found.clients, found.slow) == (1, 1)
    client.drains()
    for each in (*others, client):
        each.closes()
