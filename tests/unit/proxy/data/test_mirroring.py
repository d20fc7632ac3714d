"""Transcripts of requests that are copied to a mirror, and of what the copies must not touch."""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from penstock.balancing.backend import State
from penstock.proxy.data.mirrors import (
    CLIENT_BYTES_MAX,
    CLIENT_MAX,
    REST_S,
    ROUTE_MAX,
    SENDER,
    Mirrors,
)
from penstock.proxy.telemetry.metrics import Metrics
from tests.unit.proxy.data.playbook import (
    DONE,
    END,
    STREAM,
    Client,
    Play,
    chat,
    chunk,
    keyed,
    plain,
    pool,
    post,
    tenants,
    token,
)

TENANTS = tenants("a", "v")  # the attacker and the victim


def usage(tokens: int) -> bytes:
    text = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n' % tokens
    return chunk(text)


class Mirrored(Play):
    """Pool `now` with b1, and `next` with b2, which gets copies."""

    def __init__(self, *, mirror: dict[str, Any] | None = None, **settings: Any) -> None:
        pools = [pool("now", 1, policy="token_cost"), pool("next", 2, policy="token_cost")]
        target = {"pool": "next", "share": 1.0} | (mirror or {})
        route = {"name": "r", "to": [{"pool": "now"}], "mirror": target}
        settings = {"routes": [route]} | settings
        super().__init__(2, pools=pools, **settings)

    def results(self) -> dict[str, int]:
        """What became of copies, by result."""
        return {labels[1]: count for labels, count in self.metrics.mirror_requests.items()}

    @property
    def copied(self) -> dict[str, Any]:
        """The last body that the mirror got."""
        return dict(orjson.loads(self["b2"].body))


@pytest.fixture
def play() -> Mirrored:
    return Mirrored()


def asks(play: Mirrored, *fields: str, client: Client | None = None, **how: Any) -> Client:
    client = client or play.client
    client.sends(chat('"model":"m"', *fields, **how))
    return client


def begins(play: Mirrored, *fields: str, **how: Any) -> None:
    """Its answer does, and so its copy is sent."""
    asks(play, *fields, **how)
    play.streams("b1", "one")


# -- what is copied


def test_a_copy_goes_out_after_the_answer_has_begun_and_is_thrown_away(play: Mirrored) -> None:
    asks(play)
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    play.streams("b1", "one")
    assert play.happened() == ["client got 200, one", "b2 dialed", "b2 got POST"]
    play.answers("b2", "two")
    assert play.happened() == []
    play.ends("b1", "more")
    assert play.happened() == ["client got more [DONE]", "client got end", "counted 200 b1"]
    assert play.results() == {"ok": 1}


def test_a_plain_answer_is_copied_when_it_is_whole(play: Mirrored) -> None:
    asks(play, stream=False)
    play["b1"].sends(plain("200 OK", b'{"choices":[{"text":"x"}]}'))
    assert "stream" not in play.copied
    play["b2"].sends(plain("200 OK", b'{"choices":[{"text":"y"}]}'))
    assert play.results() == {"ok": 1}


def test_what_the_original_was_refused_is_not_copied(play: Mirrored) -> None:
    asks(play)
    play["b1"].sends(plain("400 Bad Request", b'{"error":{"message":"no"}}'))
    assert play.results() == {}


def test_the_mirror_gets_its_own_model() -> None:
    play = Mirrored(mirror={"model": "m2"})
    begins(play)
    assert play.copied["model"] == "m2"


def test_nothing_is_stored_at_a_mirror_or_made_in_the_background(play: Mirrored) -> None:
    begins(play, '"store":true', '"background":true')
    assert (play.copied["store"], play.copied["background"]) == (False, False)


@pytest.mark.parametrize("stored", [b"", b',"previous_response_id":"resp_1"'])
def test_a_response_is_not_stored_and_none_that_goes_on_from_one_is_copied(
    play: Mirrored, stored: bytes
) -> None:
    play.client.sends(post("/v1/responses", b'{"model":"m","input":"x","stream":true%b}' % stored))
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'
    play["b1"].sends(STREAM, chunk(delta))
    lines = play.happened()
    assert any("client got 200" in line for line in lines)
    assert any(line.startswith("b2") for line in lines) is not bool(stored)
    assert stored or play.copied["store"] is False


# -- keys and marks


def test_no_key_of_a_client_comes_to_the_mirror() -> None:
    play = Mirrored(tenants=TENANTS)
    begins(play, head=keyed("v") + b"cookie: c=sk-1\r\nx-goog-api-key: sk-2\r\naccept: */*\r\n")
    head = play["b2"].head
    assert b"sk-" not in head
    assert b"key-of" not in head
    assert b"accept: */*" in head


def test_copies_of_all_clients_use_one_connection() -> None:
    """None of them has a credential, so none needs a connection of its own."""
    play = Mirrored(tenants=TENANTS)
    for name in "av":
        asks(play, head=keyed(name))
        play.answers("b1", "one")
        play.answers("b2", "two")
        play.passes(0.1)
    lines = play.happened()
    assert (lines.count("b1 dialed"), lines.count("b2 dialed")) == (2, 1)


def test_a_key_is_sent_if_the_mirror_and_its_pool_say_so() -> None:
    play = Mirrored(mirror={"forward_authorization": True})
    begins(play, head=b"authorization: Bearer sk-1\r\ncookie: c=sk-2\r\n")
    assert b"authorization: Bearer sk-1" in play["b2"].head
    assert b"sk-2" not in play["b2"].head


def test_a_copy_has_a_mark_and_the_lowest_priority(play: Mirrored) -> None:
    asks(play, head=b"x-request-id: mine\r\ntraceparent: 00-1\r\n")
    assert b"x-penstock-mirror" not in play["b1"].head
    play.streams("b1", "one")
    head = play["b2"].head
    assert b"x-penstock-mirror: 1" in head
    assert b"x-request-id: mine-mirror" in head
    assert b"x-vllm-priority: %b" % play.plane.classes.told[-1][1] in head
    assert b"traceparent" not in head


def test_what_is_a_copy_already_is_not_copied_and_no_client_passes_the_mark_on(
    play: Mirrored,
) -> None:
    begins(play, head=b"x-penstock-mirror: 1\r\n")
    assert b"x-penstock-mirror" not in play["b1"].head
    assert not any(line.startswith("b2") for line in play.happened())


# -- what a copy must not touch


def test_a_failed_copy_fails_nobody_and_is_no_failure_of_its_backend(play: Mirrored) -> None:
    begins(play)
    play["b2"].resets()
    play.ends("b1")
    lines = play.happened()
    assert lines[-3:] == ["client got [DONE]", "client got end", "counted 200 b1"]
    assert not [line for line in lines if "failed" in line]
    mirror = play.backends[1]
    assert (mirror.failures_total, mirror.failures_in_row) == (0, 0)
    assert play.results() == {"failed": 1}


def test_after_a_failure_the_client_is_not_copied_for_a_while() -> None:
    """A prompt that kills the mirror's engine would kill it again and again."""
    play = Mirrored(tenants=TENANTS)
    play.down["b2"] = 111
    asks(play, head=keyed("a"))
    play.answers("b1", "one")
    del play.down["b2"]
    for name in ("a", "v"):
        asks(play, head=keyed(name))
        play.answers("b1", "one")
    assert play.results() == {"failed": 1, "no_room": 1}
    assert len(play.plane.mirrors) == 1
    play.passes(REST_S)
    asks(play, head=keyed("a"))
    play.answers("b1", "one")
    assert len(play.plane.mirrors) == 2


def test_a_copy_is_counted_as_load_and_teaches_nothing(play: Mirrored) -> None:
    mirror = play.backends[1]
    before = mirror.prefill_speed.work_per_s
    begins(play, '"user":"u"')
    assert mirror.own.requests == 1
    assert mirror.own.queued_prefill_tokens > 0
    (copy,) = play.plane.mirrors._running
    ask = copy.lease.ask
    assert (ask.client, ask.tenant, ask.session, ask.blocks) == (SENDER, "", None, ())
    assert copy.lease.held_up  # its times say nothing
    play.passes(1.0)
    play.streams("b2", "two")
    assert mirror.own.queued_prefill_tokens == 0
    play["b2"].sends(usage(9), DONE, END)
    assert mirror.own.idle
    assert mirror.prefill_speed.work_per_s == before
    assert mirror.cache.index.turns == 0
    assert play.metrics.estimate_ratio.total == 0.0
    play.ends("b1")
    assert "next" not in {name for name, pool in play.metrics.pools.items() if pool.requests}


def test_a_copy_charges_nobody() -> None:
    limits = {"tokens_per_day": 1_000_000}
    play = Mirrored(tenants=[TENANTS[0] | {"limits": limits}])
    asks(play, '"max_tokens":100', head=keyed("a"))
    play["b1"].sends(STREAM, token("one"), usage(1), DONE, END)
    budget = play.plane.budgets.tenants["a"].budget.tokens["tokens_per_day"]
    left = budget.level(play.loop.now_s)
    play["b2"].sends(STREAM, token("two"), usage(100), DONE, END)
    assert budget.level(play.loop.now_s) == left < 1_000_000
    assert play.results() == {"ok": 1}


def test_where_the_original_left_its_copy_ends(play: Mirrored) -> None:
    begins(play)
    play.client.closes()
    assert "b2 dropped" in play.happened()
    assert play.results() == {"left": 1}


def test_a_reload_and_a_drain_end_copies(play: Mirrored) -> None:
    begins(play)
    play.plane.use(play.plane.configuration)  # as when other backends were found
    assert play.results() == {}
    play.plane.use(replace(play.plane.configuration, origins={}))
    assert play.results() == {"ended": 1}
    play.ends("b1")
    play.plane.draining = True
    asks(play)
    play.answers("b1", "one")
    assert play.results() == {"ended": 1, "no_room": 1}


def test_a_copy_that_takes_too_long_ends() -> None:
    play = Mirrored(timeouts={"first_byte_s": 2, "first_byte_s_per_1k_tokens": 0, "idle_s": 5})
    asks(play)
    play.answers("b1", "one")
    play.passes(1.0)
    assert play.results() == {}
    play.passes(2.0)
    assert play.results() == {"late": 1}


@pytest.mark.parametrize("reason", ["memory", "lag", ""])
def test_no_copy_is_made_while_the_process_is_overloaded_or_bodies_take_half_of_their_room(
    play: Mirrored, reason: str
) -> None:
    asks(play)
    held = 0 if reason else play.plane.bodies_bytes // 2
    play.plane.overload.reason = reason
    play.plane.bodies.held_bytes += held
    play.answers("b1", "one")
    play.plane.bodies.held_bytes -= held
    assert play.results() == {"no_room": 1}


def test_no_copy_is_made_where_the_mirror_has_no_room_or_serves_nobody() -> None:
    play = Mirrored(admission={"enabled": True})
    play.backends[1].max_requests = 0
    asks(play)
    play.answers("b1", "one")
    play.backends[1].max_requests = None
    play.backends[1].state = State.EJECTED
    asks(play)
    play.answers("b1", "one")
    assert play.results() == {"no_backend": 2}


# -- attacker and victim


def test_one_whose_copies_all_stall_takes_no_copies_and_no_time_from_others() -> None:
    """The mirror answers the attacker's copies never, and the victim's at once."""
    play = Mirrored(tenants=TENANTS)
    attackers = [play.connects() for _ in range(2 * CLIENT_MAX)]
    for client in attackers:
        asks(play, client=client, head=keyed("a"))
        play.streams("b1", "one")
    assert play.results() == {"no_room": CLIENT_MAX}
    assert len(play.plane.mirrors) == CLIENT_MAX
    play.happened()
    begins(play, head=keyed("v"))
    victims_copy = play["b2"]
    play.ends("b1")
    lines = play.happened()
    assert "client got 200, one" in lines
    assert "client got end" in lines
    victims_copy.sends(STREAM, token("two"), DONE, END)
    assert play.results() == {"no_room": CLIENT_MAX, "ok": 1}
    for client in attackers:
        client.closes()


def test_places_and_the_bodies_of_copies_are_bounded() -> None:
    loop = asyncio.new_event_loop()
    room = Mirrors(loop, Metrics([]), lambda: 0.0)
    seats = [room.seat("r", f"c{number}", 1) for number in range(ROUTE_MAX + 1)]
    assert seats[-1] is None  # many clients take the places of one route only
    assert room.seat("other", "c0", 1) is not None
    room = Mirrors(loop, Metrics([]), lambda: 0.0)
    half = CLIENT_BYTES_MAX // 2 + 1
    assert room.seat("r", "a", half) is not None
    assert room.seat("r", "a", half) is None
    assert [room.seat("r", f"c{number}", half) for number in range(8)].count(None) == 2
    loop.close()


# -- comparisons


def test_answers_are_compared_when_both_are_whole(play: Mirrored) -> None:
    asks(play, '"max_tokens":8')
    play.passes(0.1)
    play.streams("b1", "one")
    play.passes(0.2)
    play["b2"].sends(STREAM, token("two"), usage(4), DONE, END)
    assert not play.metrics.mirror_tokens
    play["b1"].sends(usage(8), DONE, END)
    play.passes(1.0)
    assert play.metrics.mirror_tokens["r"].total == 0.5
    assert play.metrics.mirror_first_token["r"].total == pytest.approx(2.0)
    assert play.metrics.mirror_ends["r", "original_cut"] == 1
