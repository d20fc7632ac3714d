"""What a body asks for beyond text, as routes see it."""

from time import thread_time

import orjson
import pytest

from penstock.balancing.outline import SLICE_BYTES, finished
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.session_key import SessionKeys
from penstock.balancing.tokens import TokenEstimator
from penstock.balancing.wants import WantedFields, Wants, media_needs, named

CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILM = {"type": "video_url", "video_url": {"url": "http://x/y.mp4"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
LONG = {"json_schema": {"name": "x" * 9_000}, "type": "json_schema"}


def wants(body: object, path: str = CHAT) -> Wants:
    reader = Reader(TokenEstimator(), sessions=SessionKeys((), ("user",), WantedFields), wants=True)
    found = reader.read(path, (), orjson.dumps(body), GENERATION).wants
    assert found is not None
    return found


def said(*parts: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}


TEXT = {"type": "text", "text": 'an "image_url" and "tools"'}


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        (said(TEXT), []),
        (said(TEXT, IMAGE), ["images"]),
        (said(SOUND), ["audio"]),
        (said(FILM, IMAGE), ["images", "video"]),
        (said(TEXT) | {"tools": [{"type": "function"}]}, ["tools"]),
        (said(TEXT) | {"tools": [], "functions": None}, []),
        (said(TEXT) | {"functions": [{"name": "f"}]}, ["tools"]),
        (said(TEXT) | {"response_format": {"type": "text"}}, []),
        (said(TEXT) | {"response_format": {"type": "json_object"}}, ["structured_output"]),
        (said(TEXT) | {"response_format": SCHEMA}, ["structured_output"]),
        (said(TEXT) | {"response_format": LONG}, ["structured_output"]),
        (said(TEXT) | {"response_format": "odd"}, []),
        (said(TEXT) | {"guided_regex": "a+"}, ["structured_output"]),
        (said(TEXT) | {"structured_outputs": {"choice": ["a"]}}, ["structured_output"]),
        (said(TEXT) | {"text": {"format": SCHEMA}}, ["structured_output"]),
        (said(TEXT) | {"text": {"format": {"type": "text"}}}, []),
        (said(TEXT) | {"text": {"verbosity": "low"}}, []),
        (said(TEXT) | {"output_config": {"format": SCHEMA}}, ["structured_output"]),
        (said(TEXT) | {"logprobs": True}, ["logprobs"]),
        (said(TEXT) | {"logprobs": False}, []),
        (said(TEXT) | {"logprobs": 0}, ["logprobs"]),
        (said(TEXT) | {"top_logprobs": 3}, ["logprobs"]),
        (said(TEXT) | {"include": ["message.output_text.logprobs"]}, ["logprobs"]),
        (said(TEXT) | {"reasoning_effort": "none"}, []),
        (said(TEXT) | {"reasoning_effort": "high"}, ["reasoning"]),
        (said(TEXT) | {"reasoning": {"effort": "low", "summary": "auto"}}, ["reasoning"]),
        (said(TEXT) | {"reasoning": {"effort": None}}, []),
        (said(TEXT) | {"thinking": {"type": "enabled", "budget_tokens": 5}}, ["reasoning"]),
        (said(TEXT) | {"thinking": {"type": "disabled"}}, []),
    ],
)
def test_needs(body: object, needs: list[str]) -> None:
    assert named(wants(body).needs) == needs


@pytest.mark.parametrize(
    ("more", "effort", "user"),
    [
        ({}, None, None),
        ({"reasoning_effort": "high", "user": "ann"}, "high", "ann"),
        ({"reasoning": {"effort": "low"}, "safety_identifier": "bob"}, "low", "bob"),
        ({"output_config": {"effort": "max"}, "user": ""}, "max", None),
        ({"reasoning_effort": 5, "user": {"id": 1}}, None, None),
        ({"user": "x" * 600}, None, None),
    ],
)
def test_effort_and_user(more: dict[str, object], effort: str | None, user: str | None) -> None:
    found = wants(said(TEXT) | more)
    assert (found.effort, found.user) == (effort, user)


def test_nothing_is_read_where_no_route_asks() -> None:
    reader = Reader(TokenEstimator())
    body = orjson.dumps(said(IMAGE) | {"tools": [{"type": "function"}]})
    assert reader.read(CHAT, (), body, GENERATION).wants is None


NAMED = b'{"messages":[{"role":"user","content":[{"type":"document"}]},'
LONG_BODIES = {
    "many quotes": NAMED + b'"ima","inp","vid",' * 500_000 + b'""]}',
    "one picture": NAMED + b'"data:image/png;base64,' + b"A" * 8_000_000 + b'"]}',
    "many tools": b'{"messages":[],"tools":[' + b'"ab",' * 1_600_000 + b'""]}',
}
STEP_S = 0.02


@pytest.mark.alone
@pytest.mark.parametrize("body", LONG_BODIES.values(), ids=LONG_BODIES)
def test_no_step_of_a_long_body_holds_the_loop(body: bytes) -> None:
    reader = Reader(TokenEstimator(), sessions=SessionKeys((), (), WantedFields), wants=True)
    steps = reader.reading(CHAT, (), body, GENERATION, "", "")
    took_s, more = [], True
    while more:
        began_s = thread_time()
        more = next(steps, steps) is not steps
        took_s.append(thread_time() - began_s)
    assert max(took_s) < STEP_S


@pytest.mark.parametrize("before", range(SLICE_BYTES - 40, SLICE_BYTES + 10))
def test_media_are_found_where_a_slice_ends(before: int) -> None:
    part = b'["' + b"x" * before + b'",{"type":"input_audio"},{"type":"image_url"}]'
    assert named(finished(media_needs([part, b"[]"]))) == ["images", "audio"]
