"""What is written in C reads what its twins in Python read, wherever it stops between."""

import json
import random
from typing import Any

import msgspec
import pytest
import xxhash

from penstock.balancing.fields import Fields
from penstock.balancing.media import _MEDIA_PART
from penstock.balancing.members import GivenTwice, PlacesFound, names_of
from penstock.balancing.outline import finished, without_blanks
from penstock.balancing.prefix_cache.blocks import BLOCK_BYTES, BLOCKS_MAX, prompt_blocks
from penstock.balancing.tokens import kinds_of
from tests.unit.c_module import COMPILER, c_module

NAMES = [field.name for field in msgspec.structs.fields(Fields)]
KEYS = tuple(name.encode() for name in NAMES)
DECODER = msgspec.json.Decoder(Fields)
ENOUGH = 10**9

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture(scope="module", params=[(), ("-DPENSTOCK_PORTABLE",)], ids=["usual", "portable"])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module as any machine builds it, and as machines without SSE2 do."""
    return c_module("balancing", tmp_path_factory.mktemp("native"), *request.param)


def scanned(
    native: Any, body: bytes, steps: random.Random | None = None
) -> dict[str, bytes] | None:
    """The fields that a scan finds, at once or in steps of any size. None: it is not clean."""
    scan = native.Scan(body, KEYS)
    outcome = native.MORE
    while outcome == native.MORE:
        outcome = scan.go_on(steps.randrange(1, 30) if steps else ENOUGH)
    if outcome != native.WHOLE:
        return None
    return {key.decode(): body[begin:end] for key, begin, end in scan.places()}


def decoded(body: bytes) -> dict[str, bytes] | None:
    """The same by msgspec. None also for a name that is given twice."""
    noted = PlacesFound(names_of(Fields))
    try:
        fields = DECODER.decode(body)
        begin = body.index(b"{") + 1
        noted.add_all(body[begin : body.rindex(b"}")], begin, fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, GivenTwice):
        return None
    found = {key.decode(): body[begin:end] for key, begin, end in noted.places}
    names = [name for name in NAMES if bytes(getattr(fields, name))]
    assert found == {name: bytes(getattr(fields, name)) for name in names}
    return found


TEXTS = [
    "",
    "a",
    "x" * 70,
    'say "hi"\n',
    "\\",
    "\\\\" * 9,
    "é河😀",
    "\x7f",
    "tab\there",
    "type",
    "{[,:]}",
]
KINDS = ["text", "image_url", "image", "file", "input_file", "video", "string", "imag", "documents"]


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 5 else 6)
    if kind < 3:
        return rng.choice(TEXTS) * rng.choice([1, 1, 40])
    if kind == 3:
        return rng.choice([0, -1, 7, 10**20, 1.5, -2.5e-9, 1e300])
    if kind == 4:
        return rng.choice([True, False, None])
    if kind == 5:
        return {"type": rng.choice(KINDS)}
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice([*TEXTS, "k"]): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def document(rng: random.Random) -> bytes:
    """One JSON object, in any of the ways in which clients write it."""
    names = [*NAMES, "other", "seed", *TEXTS]
    body = {rng.choice(names): value(rng) for _ in range(rng.randrange(7))}
    indent = rng.choice([None, None, None, 2, "\t"])
    separators = rng.choice([None, (",", ":"), (" , ", " : ")])
    ascii_only = rng.choice([True, False])
    text = json.dumps(body, indent=indent, separators=separators, ensure_ascii=ascii_only)
    if rng.random() < 0.2 and body:  # a key twice
        text = text[:-1].rstrip() + f', "{rng.choice(NAMES)}": {json.dumps(value(rng))}}}'
    return text.encode()


def mutated(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(3)
        if what == 0:
            data[at:at] = rng.choice(
                [b'"', b"\\", b",", b"}", b"]", b":", b"0", b"-", b"\\u", b"\x01"]
            )
        elif what == 1:
            del data[at : at + rng.randrange(1, 5)]
        elif at < len(data):
            data[at] = rng.randrange(256)
    return bytes(data)


def test_a_scan_finds_what_msgspec_finds(native: Any) -> None:
    rng = random.Random(1)
    for _ in range(4_000):
        body = document(rng)
        found = decoded(body)
        assert scanned(native, body) == found or any(b"\\" in key for key in keys_of(body))
        assert scanned(native, body, rng) == scanned(native, body)


def keys_of(body: bytes) -> list[bytes]:
    """The keys at the top, as they are written. A scan leaves escaped ones to others."""
    return [json.dumps(key).encode() for key in json.loads(body)]


def test_a_scan_takes_nothing_that_msgspec_refuses(native: Any) -> None:
    rng = random.Random(2)
    taken = refused = 0
    for _ in range(20_000):
        body = mutated(rng, document(rng))
        found = scanned(native, body, rng)
        assert found is None or found == decoded(body)
        if found is None:
            refused += decoded(body) is not None and b"\\" not in body
        taken += found is not None
    assert taken > 2_000
    assert refused == 0, "msgspec takes them, and no key is escaped"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"1", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b'{"a":[1,]}'),
        *(b'{"a":1}}', b'{"a":01}', b'{"a":1.}', b'{"a":+1}', b'{"a":1e}', b'{"a":"\\q"}'),
        *(b'{"a":"\\u12g4"}', b'{"a":"\\ud800"}', b'{"a":"\\ud800\\u0041"}', b'{"a":"\\udc00"}'),
        *(b'{"a":"\n"}', b'{"a":tru}', b'{"a":"x', b'{"a":"x\\', b'{"a":"x\\"', b"\xef\xbb\xbf{}"),
        *(b"{}\x00", b'{"a":[}]}', b"{1:2}", b'{"\\u006dodel":"m"}', b'{"a":1 "b":2}'),
        *(b'{"a":' + b"[" * 600 + b"]" * 600 + b"}", b'{"a":' + b"1" * 2_000 + b"}"),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_not_plainly_right_is_left_to_others(native: Any, body: bytes) -> None:
    assert scanned(native, body) is None
    assert scanned(native, body, random.Random(3)) is None


def test_a_step_has_its_work_and_not_much_more(native: Any) -> None:
    """So that no shape of a body holds the loop for longer than another."""
    for unit in (
        b"[],",
        b'"",',
        b'{"a":1},',
        b" ",
        b'"\\n\\n\\n\\n\\n\\n",',
        b"1" * 999 + b",",
        b'"%b",' % (b"x" * 999),
    ):
        body = b'{"messages":[' + unit * (1_000_000 // len(unit)) + b"0]}"
        scan, steps = native.Scan(body, KEYS), 0
        while scan.go_on(1_000) == native.MORE:
            steps += 1
        assert steps >= len(body) / 1_000 / 5
        assert scan.places() == [(b"messages", 12, len(body) - 1)]


@pytest.mark.parametrize("body", [b'{"a":tru}', b'{"a":"\\q"}', b'{"a":1}', b'{"model":"m"}x', b""])
def test_after_its_end_a_scan_goes_no_further(native: Any, body: bytes) -> None:
    scan = native.Scan(body, KEYS)
    outcomes = {scan.go_on(ENOUGH) for _ in range(3)}
    assert outcomes in ({native.WHOLE}, {native.UNCLEAN})
    scan.places()


def test_named_media_are_seen(native: Any) -> None:
    rng = random.Random(4)
    seen = 0
    for _ in range(3_000):
        body = document(rng)
        scan = native.Scan(body, KEYS)
        while (outcome := scan.go_on(rng.randrange(1, 50))) == native.MORE:
            pass
        if outcome != native.WHOLE:
            continue  # left to others
        assert scan.names_media() == (_MEDIA_PART.search(body) is not None), body
        seen += scan.names_media()
    assert seen > 300


def test_blocks_are_those_of_xxhash(native: Any) -> None:
    rng = random.Random(5)
    for size in (0, 1, 511, 512, 513, 5_000, 70_000, BLOCK_BYTES * (BLOCKS_MAX + 3)):
        text, root = rng.randbytes(size), rng.randbytes(9)
        hasher = native.BlockHashes(xxhash.xxh3_64_intdigest(root))
        at = 0
        while at < size:
            more = rng.choice([1, 30, 512, 700, 40_000])
            hasher.add(memoryview(text)[at : at + more], False)
            at += more
        assert hasher.hashes() == prompt_blocks(root, text)
    assert not hasher.add(b"more", False)


def test_squeezed_text_is_what_msgspec_writes(native: Any) -> None:
    rng = random.Random(6)
    for _ in range(2_000):
        body = b"[" + b",".join([document(rng) for _ in range(3)]) + b"]"
        wanted = msgspec.json.format(body, indent=-1)
        assert finished(without_blanks(body)) == wanted
        hasher = native.BlockHashes(0)
        at = 0
        while at < len(body):
            more = rng.choice([1, 2, 33, 700])
            hasher.add(body[at : at + more], True)
            at += more
        assert hasher.size_bytes() == len(wanted)
        chained, hashes = 0, []
        for end in range(BLOCK_BYTES, len(wanted) + 1, BLOCK_BYTES):
            chained = xxhash.xxh3_64_intdigest(wanted[end - BLOCK_BYTES : end], chained)
            hashes.append(chained)
        assert hasher.hashes() == tuple(hashes)


def test_kinds_of_bytes_are_counted_as_in_python(native: Any) -> None:
    rng = random.Random(7)
    for _ in range(3_000):
        body = document(rng)
        for text in (body, mutated(rng, body), rng.randbytes(40), b"\\u00e9a\\u12g4\\ud83d" * 3):
            assert native.kinds_of(memoryview(text)) == kinds_of(text)
    texts = [rng.randbytes(400) for _ in range(200)]
    for odd in (b"\\u00e9", b"\\", b"\\u00e", b"\\\\u00e9", b" ", b"9", b"\xc3\xa9", b"\x7f", b"~"):
        texts += [b"a" * before + odd + b"b" * 40 for before in range(40)]
        texts += [b"a" * before + odd for before in range(40)]
    for text in texts:
        assert native.kinds_of(memoryview(text)) == kinds_of(text), text


def test_wrong_arguments_are_errors(native: Any) -> None:
    wrong: list[tuple[Any, ...]] = [("text", KEYS), (b"{}", [b"a"]), (b"{}", ("a",)), (b"{}",)]
    for arguments in [*wrong, (b"{}", (b"k",) * 129)]:
        with pytest.raises((TypeError, ValueError)):
            native.Scan(*arguments)
    with pytest.raises(TypeError):
        native.Scan(b"{}", KEYS).go_on("1")
    with pytest.raises((TypeError, OverflowError)):
        native.BlockHashes("1")
    with pytest.raises(TypeError):
        native.BlockHashes(1).add("text", True)
    with pytest.raises(TypeError):
        native.BlockHashes(1).add(b"text")
