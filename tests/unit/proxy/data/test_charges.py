"""The backend's count is the charge. Without a final one, what the answer shows is charged."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.balancing.engine_report import EngineReport
from penstock.proxy.data.account import count_all
from penstock.proxy.data.background import BILL_S
from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, chunk, get, plain, post
from tests.unit.proxy.data.test_budgets import KEY, playing

OTHER = b"authorization: Bearer key-of-other\r\n"


@pytest.fixture
def play() -> Iterator[Play]:
    play = playing(backends=1)
    yield play
    play.close()
    assert not play.plane.budgets.tenants["t"].budget.running


def posts(play: Play, path: str, body: bytes, key: bytes = KEY) -> None:
    play.client.sends(post(path, body, key))


def answered(play: Play) -> int:
    """Completion tokens that the tenant has used. Its budget was charged as much."""
    count_all(play.plane)
    used = [each for name, _, each in play.plane.metrics.usage.items() if name == "t"]
    prompts = sum(each.prompt_tokens - each.cached_tokens for each in used)
    completion = sum(each.completion_tokens for each in used)
    bucket = play.plane.budgets.tenants["t"].budget.tokens["tokens_per_day"]
    assert round(bucket.taken) == prompts + completion
    return completion


def usage(tokens: int, prompt: int = 3) -> bytes:
    return b'"usage":{"prompt_tokens":%d,"completion_tokens":%d}' % (prompt, tokens)


def event(choice: bytes, more: bytes = b"") -> bytes:
    return chunk(b'data: {"id":"c","choices":[{"index":0,%b}]%b}\n\n' % (choice, more))


def said(text: str, more: bytes = b"", name: str = "content") -> bytes:
    text_bytes = b'"delta":{"%b":"%b"},"logprobs":null' % (name.encode(), text.encode())
    return event(text_bytes + b',"finish_reason":null', more)


@pytest.mark.parametrize("limit", ['"max_tokens":5', '"max_output_tokens":1'])
def test_no_limit_of_a_client_makes_the_charge_less_than_the_count(play: Play, limit: str) -> None:
    play.client.sends(chat(limit, head=KEY, stream=False))
    body = b'{"choices":[{"message":{"content":"a"}}],%b}' % usage(400)
    play["b1"].sends(plain("200 OK", body))
    assert answered(play) == 400


def large(after: bytes) -> bytes:
    return b'{"choices":[{"message":{"content":"%b"}}],%b}' % (
        b"a " * (WHOLE_BYTES_MAX // 2),
        after,
    )


def sends(play: Play, data: bytes) -> None:
    """In reads of usual size."""
    for begin in range(0, len(data), 65_000):
        play["b1"].sends(data[begin : begin + 65_000])


@pytest.mark.parametrize(
    "body",
    [
        large(usage(27_000)),
        large(usage(27_000) + b',"prompt_logprobs":null,"more":{"a":[{}]}\n'),
        large(usage(27_000) + b',"prompt_logprobs":[%b0]' % (b"0.25," * 20_000)),
        b"{%b,%b" % (usage(27_000), large(b'"more":[{%b}]' % usage(1))[1:]),
    ],
    ids=["at its end", "before little", "before much", "before its text"],
)
def test_the_usage_of_an_answer_too_large_to_hold_is_read_wherever_it_stands(
    play: Play, body: bytes
) -> None:
    play.client.sends(chat(head=KEY, stream=False))
    sends(play, plain("200 OK", body))
    assert answered(play) == 27_000


def test_a_member_of_another_object_is_no_usage_of_the_answer(play: Play) -> None:
    play.client.sends(chat(head=KEY, stream=False))
    play["b1"].sends(plain("200 OK", large(b'"tools":[{%b}]' % usage(1))))
    assert answered(play) == pytest.approx(WHOLE_BYTES_MAX // 4, rel=0.01)  # its text


def test_many_embeddings_cost_their_count(play: Play) -> None:
    posts(play, "/v1/embeddings", b'{"input":["x","y"]}')
    numbers = b"[%b0]" % (b"0.0123," * (WHOLE_BYTES_MAX // 7))
    whole = b'{"data":[%b],"usage":{"prompt_tokens":5000,"total_tokens":5000}}' % numbers
    play["b1"].sends(plain("200 OK", whole))
    assert answered(play) == 0
    (used,) = [each for name, _, each in play.plane.metrics.usage.items() if name == "t"]
    assert used.prompt_tokens == 5_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"choices":[{"message":{"content":"%b"}}]}'),
        ("/v1/completions", b'{"choices":[{"text":"%b","logprobs":null}]}'),
        ("/v1/responses", b'{"status":"completed","output":[{"content":[{"text":"%b"}]}]}'),
        ("/v1/messages", b'{"stop_reason":"end_turn","content":[{"type":"text","text":"%b"}]}'),
        ("/v1/chat/completions", b'{"choices":[{"message":{"reasoning":"%b","content":null}}]}'),
    ],
)
def test_a_plain_answer_without_a_count_costs_its_text(play: Play, path: str, body: bytes) -> None:
    posts(play, path, b'{"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x"}')
    play["b1"].sends(plain("200 OK", body % (b"four" * 300)))
    assert answered(play) == 300


def tool_call(text: bytes) -> bytes:
    call = b'{"index":0,"function":{"arguments":"%b"}}' % text
    return event(b'"delta":{"tool_calls":[%b]},"logprobs":null,"finish_reason":null' % call)


def likely(number: int) -> bytes:
    tops = b",".join(b'{"token":"x%d","logprob":-1}' % each for each in range(number % 20))
    return b'{"token":"ab","logprob":-1,"top_logprobs":[%b]}' % tops


def of_choice(number: int, data: bytes) -> bytes:
    return data.replace(b'"index":0', b'"index":%d' % number, 1)


COUNTING = '"stream_options":{"include_usage":true,"continuous_usage_stats":true}'
FOUR = "four" * 8
LOGPROBS = b'"delta":{"content":"ab"},"logprobs":{"content":[%b]},"finish_reason":null'
TWICE = b'{"index":0,"delta":{"reasoning":"%b","reasoning_content":"%b"}}' % ((FOUR.encode(),) * 2)
# What is asked for, the events that come before the client leaves, and what they cost.
LEFT: dict[str, tuple[str, list[bytes], int]] = {
    **{
        f"one token an event: {word}": ('"n":1', [said(word)] * 200, 200)
        for word in ("word ", "\\n", "is")
    },
    "one token an event: halves": ('"n":1', [said("\\u4e2d"), said("a")] * 100, 200),
    "the last count": (
        COUNTING,
        [said("a", b"," + usage(45 * number)) for number in range(1, 101)],
        4_500,
    ),
    "counts of each choice": (
        '"n":4,' + COUNTING,
        [
            of_choice(number % 4, said("a b c d ", b"," + usage(8 * (number // 4 + 1))))
            for number in range(400)
        ],
        8 * 400,
    ),
    "two choices": ('"n":2', [of_choice(number % 2, said(FOUR)) for number in range(100)], 800),
    "log probabilities": (
        '"logprobs":true,"top_logprobs":20',
        [event(LOGPROBS % likely(number)) for number in range(100)],
        100,
    ),
    "names around the text": ('"n":1', [said("ab")] * 50 + [tool_call(b"ab")] * 50, 100),
    "reasoning by two names": (
        '"n":1',
        [chunk(b'data: {"choices":[%b]}\n\n' % TWICE)] * 100,
        800,
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_stream_that_is_left_costs_what_its_text_and_counts_show(play: Play, kind: str) -> None:
    fields, events, tokens = LEFT[kind]
    play.client.sends(chat(fields, head=KEY))
    play.streams("b1")
    for each in events:
        play["b1"].sends(each)
    play.client.closes()
    assert answered(play) in (tokens, tokens + (kind == "reasoning by two names"))


def test_a_whole_stream_without_a_count_costs_its_text(play: Play) -> None:
    play.client.sends(chat('"stream_options":{}', head=KEY))
    play["b1"].sends(STREAM, said(FOUR))
    for _ in range(50):
        play["b1"].sends(said("four" * 6), said("four" * 10))
        play["b1"].sends(said(FOUR))
    last = event(b'"delta":{"content":"%b"},"finish_reason":"length"' % FOUR.encode())
    play["b1"].sends(last, DONE, END)
    assert answered(play) == 8 * 152


def test_a_count_that_came_early_is_not_the_last_word(play: Play) -> None:
    play.client.sends(chat(head=KEY))
    play["b1"].sends(STREAM, said("a", b"," + usage(1)))
    for _ in range(100):
        play["b1"].sends(said("a"))
    play["b1"].resets()
    assert answered(play) == 101


def at(play: Play) -> str:
    """The backend that works on the last request."""
    return next(each.name for each in play.backends if each.requests_in_flight)


def test_only_a_count_makes_a_prompt_cheaper_that_may_be_cached() -> None:
    """What a template or `truncate_prompt_tokens` makes of a text, its blocks do not show."""
    play = playing(backends=2, policy="token_cost")
    asks = chat(head=KEY, content="word " * 4_000)
    for _ in range(6):
        play.client.sends(asks)
        play[at(play)].sends(
            STREAM,
            said("a"),
            chunk(b'data: {"choices":[],%b}\n\n' % usage(1, prompt=4_010)),
            DONE,
            END,
        )
    before = charged(play)
    play.client.sends(asks)
    play[at(play)].sends(STREAM, said("a"))
    play.client.closes()
    assert charged(play) - before > 4_000


def test_who_reads_nothing_of_a_stream_pays_for_what_its_engine_had_time_for(play: Play) -> None:
    play.client.sends(chat('"n":8', head=KEY))
    play["b1"].sends(STREAM, said("a"))
    play.client.fills()
    play["b1"].sends(said("b"))
    play.passes(10.0)
    play.client.closes()
    assert answered(play) > 8 * 300


def test_streams_that_are_left_make_no_engine_look_slow(play: Play) -> None:
    """It sends four tokens an event."""
    for _ in range(40):
        play.client.sends(chat(head=KEY))
        play["b1"].sends(STREAM, said("four" * 4))
        for _ in range(20):
            play.passes(0.04)
            play["b1"].sends(said("four" * 4))
        play.client.closes()
        play.client = play.connects()
    itl_s = play.backends[0].decode_speed.itl_s(0)
    assert itl_s == pytest.approx(0.010, rel=0.1)


def test_log_probabilities_of_responses_are_no_text(play: Play) -> None:
    posts(play, "/v1/responses", b'{"input":"x","stream":true}')
    play.streams("b1")
    for number in range(100):
        inner = b'"logprobs":[%b]' % likely(number)
        play["b1"].sends(chunk(DELTAS["/v1/responses"].replace(b'"logprobs":[]', inner) % b"ab"))
    play.client.closes()
    assert answered(play) == 100


DELTAS = {
    "/v1/messages": (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"%b"}}\n\n'
    ),
    "/v1/responses": (
        b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"%b",'
        b'"logprobs":[],"sequence_number":20,"type":"response.output_text.delta"}\n\n'
    ),
}


@pytest.mark.parametrize("path", DELTAS)
def test_text_is_found_in_the_events_of_every_api(play: Play, path: str) -> None:
    posts(play, path, b'{"messages":[],"input":"x","stream":true}')
    play.streams("b1")
    for _ in range(100):
        play["b1"].sends(chunk(DELTAS[path] % (b"four" * 8)))
    if path == "/v1/responses":  # the same once more
        done = b'event: response.output_text.done\ndata: {"type":"x","text":"%b"}\n\n'
        play["b1"].sends(chunk(done % (b"four" * 800)))
    play.client.closes()
    assert answered(play) in (800, 801)


def test_log_probabilities_of_a_plain_answer_are_no_text(play: Play) -> None:
    message = b'"message":{"content":"%b"}' % (b"four" * 100)
    logprobs = b'"logprobs":{"content":[%b]}' % b",".join([b'{"bytes":[1,2],"logprob":-1}'] * 5_000)
    play.client.sends(chat(head=KEY, stream=False))
    sends(play, plain("200 OK", b'{"choices":[{%b,%b}]}' % (message, logprobs)))
    assert 100 <= answered(play) < 300


@pytest.mark.parametrize(("less", "tokens"), [(1, 27_000), (100, WHOLE_BYTES_MAX // 4)])
def test_a_large_answer_that_breaks_off_costs_its_count_or_its_text(
    play: Play, less: int, tokens: int
) -> None:
    play.client.sends(chat(head=KEY, stream=False))
    sends(play, plain("200 OK", large(b" " * 500 + usage(27_000)))[:-less])
    play["b1"].resets()
    assert answered(play) == pytest.approx(tokens, rel=0.01)


def test_a_large_answer_left_early_costs_at_least_what_its_engine_had_time_for(play: Play) -> None:
    """The engine had made all of it before its first byte, whatever stands at its beginning."""
    play.client.sends(chat(head=KEY, stream=False))
    play.passes(4.0)
    numbers = b"0.25," * (WHOLE_BYTES_MAX // 5)
    body = b'{"choices":[{"text":"a"},{"prompt_logprobs":[%b0]},' % numbers
    sends(play, plain("200 OK", body + usage(27_000) + b"]}")[:-20])
    play.client.closes()
    assert answered(play) > 100


def test_a_tenant_cannot_choose_the_id_of_a_response(play: Play) -> None:
    posts(play, "/v1/responses", b'{"input":"x","request_id":"resp_1","background":true}')
    assert "counted 400 nobody" in play.happened()


# In the background ----------------------------------------------------------------------------


def begins(play: Play, number: int = 1, key: bytes = KEY, **fields: Any) -> None:
    more = b"".join(b',"%b":%d' % (name.encode(), value) for name, value in fields.items())
    posts(play, "/v1/responses", b'{"input":"x","background":true%b}' % more, key)
    play["b1"].sends(plain("200 OK", response(number, b"queued")))


def response(number: int, status: bytes, more: bytes = b"") -> bytes:
    return b'{"id":"resp_%d","object":"response","status":"%b","output":[]%b}' % (
        number,
        status,
        more,
    )


COUNTS = b',"usage":{"input_tokens":9,"output_tokens":700}'


def reads(play: Play, number: int = 1, key: bytes = KEY, more: bytes = COUNTS) -> None:
    play.client.sends(get(f"/v1/responses/resp_{number}", key))
    status = b"completed" if more else b"cancelled"
    play["b1"].sends(plain("200 OK", response(number, status, more)))


def charged(play: Play) -> float:
    return play.plane.budgets.tenants["t"].budget.tokens["tokens_per_day"].taken


def test_a_background_response_is_charged_as_its_longest_until_it_is_read(play: Play) -> None:
    begins(play)
    assert charged(play) > 32_000
    assert len(play.plane.budgets.tenants["t"].budget.running) == 1  # one of those under way
    reads(play)
    assert charged(play) == 709
    assert answered(play) == 700
    reads(play)  # nothing more
    assert answered(play) == 700


def test_it_is_settled_also_when_its_place_was_given_back_before(play: Play) -> None:
    begins(play, max_output_tokens=900)
    play.passes(60.0)
    assert not play.plane.budgets.tenants["t"].budget.running
    assert charged(play) >= 900
    reads(play)
    assert answered(play) == 700


PREAMBLE = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
)
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":'
    b'{"id":"resp_1","status":"completed"%b}}\n\n' % COUNTS
)


@pytest.mark.parametrize("preamble", [PREAMBLE, b""], ids=["from its beginning", "from later on"])
def test_one_that_is_read_as_a_stream_is_settled_at_its_end(play: Play, preamble: bytes) -> None:
    begins(play)
    delta = b'event: response.output_text.delta\ndata: {"type":"r.delta","delta":"a"}\n\n'
    head = get("/v1/responses/resp_1?stream=true", KEY)
    leaves = play.connects()
    leaves.sends(head)
    play["b1"].sends(STREAM, chunk(preamble + delta))
    leaves.closes()
    assert charged(play) > 32_000
    assert len(play.plane.background) == 1
    play.client.sends(head)
    play["b1"].sends(STREAM, chunk(preamble + delta), chunk(COMPLETED), END)
    assert charged(play) == 709
    assert answered(play) == 700
    assert not len(play.plane.background)


@pytest.mark.parametrize("reported", [True, False])
def test_a_cancelled_one_costs_what_its_engine_had_time_for(play: Play, reported: bool) -> None:
    """Also once the engine has reported that it is gone."""
    begins(play)
    play.passes(2.0)
    if reported:
        play.backends[0].progress += 1
        play.backends[0].report = EngineReport(at_s=play.loop.now_s)
        play.passes(1.2)
        assert not len(play.plane.background)
    reads(play, more=b"")
    assert 30 < answered(play) < 500


def test_one_that_nobody_reads_costs_its_longest_answer(play: Play) -> None:
    begins(play, max_output_tokens=900)
    play.passes(30.0)
    play.loop.now_s += BILL_S
    play.passes(2.0)
    assert answered(play) == 900


def test_of_two_with_one_id_the_last_is_settled(play: Play) -> None:
    begins(play, max_output_tokens=900)
    begins(play, max_output_tokens=800)
    reads(play)
    assert answered(play) == 900 + 700
    play.passes(60.0)  # the place of the first one


def test_another_tenant_settles_nothing(play: Play) -> None:
    begins(play)
    before = charged(play)
    reads(play, key=OTHER)
    assert charged(play) == before
    play.client.closes()
    play.client = play.connects()
    reads(play)
    assert answered(play) == 700


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_stream_in_the_background_that_is_left_is_settled_too(
    play: Play, cancelled: bool
) -> None:
    posts(play, "/v1/responses", b'{"input":"x","background":true,"stream":true}')
    play["b1"].sends(STREAM, chunk(PREAMBLE), chunk(DELTAS["/v1/responses"] % b"a"))
    play.client.closes()
    assert charged(play) > 32_000
    play.client = play.connects()
    play.passes(2.0)
    reads(play, more=b"" if cancelled else COUNTS)
    assert 30 < answered(play) < 500 if cancelled else answered(play) == 700
