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
    "escapes of no quote in a file's name": (
        form(part(rb'name="file"; filename="C:\a;b.wav"', b"RIFF"), part(b'name="model"', b"w")),
        "w",
    ),
    "unquoted, as .NET writes": (
        form(
            part(b"name=file; filename=a.wav; filename*=utf-8''a%20b.wav", b"RIFF"),
            part(b"name=model", b"w"),
        ),
        "w",
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
        (b"multipart/form-data; Boundary=----WebKitFormBoundary", b"----WebKitFormBoundary"),
        (b"multipart/form-data; boundary=--=_Part.0'x/1 ; charset=UTF-8", b"--=_Part.0'x/1"),
        (b"application/json; x=multipart/form-data", None),
    ],
)
def test_what_parts_a_form(content_type: bytes, boundary: bytes | None) -> None:
    assert boundary_of([(b"content-type", content_type)]) == boundary


@pytest.mark.parametrize(
    "parameters",
    [
        b"",
        b"x; boundary=b",
        b"=; boundary=b",
        b"; boundary=",
        b'; boundary=""',
        b"; boundary=" + b"b" * 300,
        b"; boundary=b; boundary=c",
        b"; boundary=b; boundary*=c",
        b"; boundary*=utf-8''b",
        rb'; boundary="b\"c"',
        b'; boundary="b" c',
        b"; boundary =b",
        b"; boundary=b; charset=utf-7",
        b"; boundary=b; charset=utf-16",
        b"; boundary=b; a=b",
        b"; boundary=b" + b"; charset=utf-8" * (CONTENT_TYPE_BYTES_MAX // 10),
    ],
)
def test_a_type_that_servers_may_read_otherwise_is_refused(parameters: bytes) -> None:
    kind = (b"content-type", b"multipart/form-data" + parameters)
    plain = (b"content-type", b"multipart/form-data; boundary=b")
    json = (b"content-type", b"application/json")
    assert boundary_of([json, json]) is None
    for headers in ([kind], [plain, plain], [json, plain], [plain, json]):
        with pytest.raises(MalformedAsk, match="Content-Type of a form"):
            boundary_of(headers)


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n" + form(part(b'name="model"', b"w")),  # a preamble
        b"\n" + form(part(b'name="model"', b"w")),
        b"--c\r\n" + form(part(b'name="model"', b"w")),
        form(part(b'name="model"', b"w")).replace(b"\r\n", b"\n"),
        form(part(b'name="model"', b"w")).replace(b"--b\r\n", b"--b \r\n"),
        form(part(b'name="x"', b"v\r\n--bc"), part(b'name="model"', b"w")),
        form(part(b'name="x"', b"v"), part(b'name="model"', b"w")).replace(
            b"v\r\n--b", b"v\r\n--b\t"
        ),
        form(part(b'name="model"', b"v"), part(b'name="model"', b"w")),
        form(part(b'name="model"', b"v"), part(b'name="model"; filename="m"', b"w")),
        form(part(b'name="model"; filename="m"', b"w")),
        form(part(b"name=\"model\"; filename*=utf-8''m", b"w")),
    ],
)
def test_a_form_that_servers_may_read_otherwise_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedAsk):
        finished(model_span(body, b"b"))


def test_a_form_of_more_parts_than_are_taken_is_not_read_on() -> None:
    parts = [part(b'name="x"', b"")] * PARTS_MAX
    assert finished(model_span(form(*parts, part(b'name="model"', b"w")), b"b")) is None


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/json; x=multipart/",
        b"application/json; charset=utf-8; boundary=multipart/form-data",
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


@pytest.mark.parametrize("junk", [b"x-a: b\r\n" * 90, b"x-a:" + b" " * 900 + b"\r\n"])
def test_long_heads_are_read_a_few_at_a_time(junk: bytes) -> None:
    """Else one form of such parts would hold everybody up for seconds."""
    part = b"\r\n--b\r\n" + junk + b'content-disposition: form-data; name="x"\r\n\r\nx'
    steps = sum(1 for _ in model_span(part * 1_000 + b"\r\n--b--", b"b"))
    assert steps >= 1_000 * len(junk) // 5_000
    with pytest.raises(MalformedAsk):
        finished(model_span(part.replace(junk, junk * 8) + b"\r\n--b--", b"b"))


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
        rb'content-disposition: form-data; name="mo\del"',
        rb'content-disposition: form-data; name="x"; filename="\"; name=\"model"',
        rb'content-disposition: form-data; name="x\"; filename="; name=model"',
        b'content-disposition: form-data; name="x"; name="model"',
        b'content-disposition: form-data; name="x"; NAME="model"',
        b'content-disposition: form-data; name ="model"; name="x"',
        b'content-disposition: form-data; name="model"; filename="a"; filename="b"',
        b'content-disposition: form-data; name="x" ; name',
        b'content-disposition: form-data; name="x"; a=b',
        b'content-disposition: attachment; name="model"',
        b'content-disposition : form-data; name="model"',
        b'content-disposition: form-data;\r\n name="model"',
        b'content-disposition: form-data; name="x"\ncontent-disposition: form-data; name="model"',
        b'content-disposition: form-data; name="x"\rname="model"',
        b'content-disposition: form-data; name="mo\0del"',
        b"content-disposition: form-data",
        b"content-type: text/plain",
        b"",
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
