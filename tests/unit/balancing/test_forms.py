"""The model of a multipart form: what vLLM's own reading of it takes, and no more work for it."""

import pytest

from penstock.balancing.forms import (
    CONTENT_TYPE_BYTES_MAX,
    PARTS_MAX,
    MalformedAsk,
    boundary_of,
    model_at,
    model_span,
)
from penstock.balancing.outline import finished
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import TokenEstimator

FILE = b'name="file"; filename="a; name=model"\r\nContent-Type: audio/wav'


def part(parameters: bytes, value: bytes) -> bytes:
    return b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (parameters, value)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b--\r\n"


SOUND = b"\x00\xff--b\r\n-b" * 100_000
FORMS: dict[str, tuple[bytes, str | None]] = {
    "before the file": (form(part(b'name="model"', b"w"), part(FILE, b"RIFF")), "w"),
    "after a large file": (form(part(FILE, SOUND), part(b'name="model"', b"w")), "w"),
    "bare name": (form(part(b"name=model", b"w")), "w"),
    "other case of header and name": (
        b"--b\r\nCONTENT-DISPOSITION:form-data; NAME=model\r\n\r\nw\r\n--b--",
        "w",
    ),
    "the last of two": (form(part(b'name="model"', b"v"), part(b'name="model"', b"w")), "w"),
    "a file instead": (
        form(part(b'name="model"', b"v"), part(b'name="model"; filename="m"', b"w")),
        None,
    ),
    "empty": (form(part(b'name="model"', b"")), None),
    "only in a file's name": (form(part(FILE, b"RIFF")), None),
    "in another header": (
        b'--b\r\nX: form-data; name="model"\r\nContent-Disposition: form-data; name="x"\r\n\r\nw'
        b"\r\n--b--",
        None,
    ),
    "in a file's bytes": (form(part(FILE, b'name="model"\r\n\r\nw')), None),
    "after the end": (form() + part(b'name="model"', b"w") + form(), None),
    "no end": (b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nw', None),
    "a preamble's line": (b"\r\n" + form(part(b'name="model"', b"w")), "w"),
    "nothing": (b"", None),
}


@pytest.mark.parametrize(("body", "model"), FORMS.values(), ids=FORMS)
def test_the_model_of_a_form(body: bytes, model: str | None) -> None:
    assert model_at(body, finished(model_span(body, b"b"))) == model
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        assert Reader(TokenEstimator()).read(path, headers, body, GENERATION).model == model


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=b", b"b"),
        (b'Multipart/Form-Data; charset=utf-8;boundary="a b"', b"a b"),
        (b"multipart/form-data; Boundary=----WebKitFormBoundary; x=y", b"----WebKitFormBoundary"),
        (b"multipart/form-data", b""),
        (b"multipart/form-data; boundary=" + b"b" * 300, None),
        (b"multipart/mixed; boundary=b", None),
        (b"application/json; x=multipart/form-data", None),
    ],
)
def test_what_parts_a_form(content_type: bytes, boundary: bytes | None) -> None:
    assert boundary_of([(b"content-type", content_type)]) == boundary


def test_a_form_of_more_parts_than_are_taken_is_not_read_on() -> None:
    parts = [part(b'name="x"', b"")] * PARTS_MAX
    assert finished(model_span(form(*parts, part(b'name="model"', b"w")), b"b")) is None


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/json; x=multipart/",
        b"application/json; charset=utf-8; boundary=multipart/form-data",
        b"multipart/form-data; boundary=b",
        b"text/plain",
        b"",
    ],
)
def test_no_content_type_hides_a_json_body(content_type: bytes) -> None:
    body = b'{"model":"m","stream":true,"previous_response_id":"resp_1","input":"x"}'
    seen = Reader(TokenEstimator()).read(
        "/v1/responses", [(b"content-type", content_type)], body, GENERATION
    )
    assert (seen.model, seen.stream, seen.response_id) == ("m", True, "resp_1")


@pytest.mark.parametrize("junk", [b";a=model" * 120, b';a="' + rb"\"" * 470 + b'"; b=model'])
def test_heads_of_many_parameters_are_read_a_few_at_a_time(junk: bytes) -> None:
    """Else one form of such parts would hold everybody up for seconds."""
    part = b"\r\n--b\r\ncontent-disposition: form-data" + junk + b"\r\n\r\nx"
    steps = sum(1 for _ in model_span(part * 1_000 + b"\r\n--b--", b"b"))
    assert steps >= 1_000 * len(junk) // 5_000
    long = b"\r\n--b\r\ncontent-disposition: form-data" + junk * 8 + b'; name="model"\r\n\r\nx'
    with pytest.raises(MalformedAsk):
        finished(model_span(long + b"\r\n--b--", b"b"))


def test_a_type_of_a_great_many_parameters_is_not_read() -> None:
    """32 KB of them held the loop for 17 ms."""
    kind = b"multipart/form-data; boundary=b"
    assert boundary_of([(b"content-type", kind)]) == b"b"
    assert boundary_of([(b"content-type", kind + b"; a=b" * (CONTENT_TYPE_BYTES_MAX // 5))]) is None


def form_with(head: bytes) -> bytes:
    """A form that names a model, and then has a part with this head."""
    last = b"--b\r\n%b\r\n\r\nv\r\n--b--" % head
    return form(part(b'name="model"', b"w")).replace(b"--b--", last)


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data; name="x"\r\ncontent-disposition: form-data; name="model"',
        b"content-disposition: form-data; name*=utf-8''m%6fdel",
        b'content-disposition: form-data; name*0="mo"; name*1="del"',
        b'x-pad: %b\r\ncontent-disposition: form-data; name="model"' % (b"p" * 1_100),
    ],
)
def test_a_part_that_backends_may_read_otherwise_is_refused(head: bytes) -> None:
    """Else a tenant would be counted for one model, and get another."""
    with pytest.raises(MalformedAsk):
        finished(model_span(form_with(head), b"b"))


def test_a_file_name_may_be_written_in_the_newer_way() -> None:
    head = b"content-disposition: form-data; name=\"file\"; filename*=utf-8''a%20b"
    body = form_with(head)
    assert model_at(body, finished(model_span(body, b"b"))) == "w"
