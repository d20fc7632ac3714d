"""Bodies that are dear to read, of any size: valid JSON, as any client may send it."""

from collections.abc import Callable
from typing import Final

HEAD: Final = b'{"model":"m","stream":true,'


def _run(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def _keys(size: int) -> bytes:
    return b",".join([b'"k%d":1' % number for number in range(size // 13)])


def _chat(inside: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: HEAD + b'"messages":[%b0]}' % inside(size)


def _prompt(inside: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: HEAD + b'"prompt":[%b]}' % inside(size)


SHAPES: Final[dict[str, Callable[[int], bytes]]] = {
    "one string": lambda size: HEAD + b'"prompt":"%b"}' % (b"a" * size),
    "escaped lines": lambda size: HEAD + b'"prompt":"%b"}' % _run(b"\\n", size),
    "escaped quotes": lambda size: HEAD + b'"prompt":"%b"}' % _run(b'\\"', size),
    "escaped letters": lambda size: HEAD + b'"prompt":"%b"}' % _run(b"\\u00e9", size),
    "wide letters": lambda size: HEAD + b'"prompt":"%b"}' % _run("\u6cb3".encode(), size),
    "data urls": _chat(lambda size: b'{"type":"image"},' + _run(b'"data:;base64,",', size)),
    "half data urls": _chat(lambda size: b'{"type":"image"},' + _run(b'"data:",', size)),
    "parts": _chat(lambda size: _run(b'{"type":"image"},', size)),
    "images": _chat(
        lambda size: _run(b'{"type":"image_url","url":"data:;base64,%b"},' % (b"A" * 60_000), size)
    ),
    "deep": _chat(lambda size: _run(b"[" * 400 + b"]" * 400 + b",", size)),
    "deep objects": _chat(lambda size: _run(b'{"":' * 400 + b"0" + b"}" * 400 + b",", size)),
    "empty objects": _chat(lambda size: _run(b"{},", size)),
    "small objects": _chat(lambda size: _run(b'{"a":1},', size)),
    "blanks between": _chat(lambda size: _run(b'{ "a" : "b" } , ', size)),
    "blanks": _chat(lambda size: b" " * size),
    "numbers": _chat(lambda size: _run(b"1.25e-7,", size)),
    "empty keys": lambda size: HEAD + _run(b'"":1,', size) + b'"prompt":"x"}',
    "own keys": lambda size: HEAD + _keys(size) + b',"prompt":"x"}',
    "repeated keys": lambda size: HEAD + _run(b'"k":1,', size) + b'"prompt":"x"}',
    "long key": lambda size: HEAD + b'"%b":1,"prompt":"x"}' % (b"k" * size),
    "options": lambda size: HEAD + b'"stream_options":{%b}}' % _keys(size),
    "repeated options": lambda size: HEAD + _run(b'"options":{},', size) + b'"a":1}',
    "prompts": _prompt(lambda size: _run(b'"",', size) + b'"x"'),
    "token ids": _prompt(lambda size: _run(b"1,", size) + b"1"),
    "lists of ids": _prompt(lambda size: _run(b"[1],", size) + b"[1]"),
    "model": lambda size: b'{"stream":true,"prompt":"x","model":"%b"}' % (b"m" * size),
    "response id": lambda size: HEAD + b'"previous_response_id":"%b"}' % (b"r" * size),
    "digits": lambda size: HEAD + b'"prompt":"x","max_tokens":%b}' % (b"1" * size),
    "trailing blanks": lambda size: HEAD + b'"prompt":"x"}' + b" " * size,
}
