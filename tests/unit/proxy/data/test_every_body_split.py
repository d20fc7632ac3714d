"""Bodies cut into two reads at every byte: read the same, and sent on as the same bytes.

The recorded requests of all APIs, and mutations of them. An ordinary run takes a few bodies and
every STRIDEth byte; `make splits` takes a thousand at every byte, and prints a digest of what was
read and sent. It is the same for two versions that read the same.
"""

import hashlib
import os
import random
import re
from collections.abc import Iterator

from penstock.balancing.ask import FIELDS
from tests.unit.proxy.data.golden import FOLDER
from tests.unit.proxy.data.playbook import Play
from tests.unit.proxy.data.recorded import ASKED, request_of

STRIDE = int(os.environ.get("TEST_SPLIT_STRIDE", "23"))
BODIES = int(os.environ.get("TEST_SPLIT_BODIES", "60"))
# What mutations put in: what JSON is made of, and what it must not hold.
PIECES = [bytes([each]) for each in b'"\\,}]{[: \n0-e\x00\xff']
PIECES += [b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b"null", b"true", b'"type":"image_url"']
PIECES += [b'"stream":true,', b'"model":"other",', b'"a":' + b"[" * 40 + b"]" * 40 + b","]
PIECES += [b'"text":"' + b"word " * 900 + b'",']


def recorded() -> list[tuple[bytes, bytes]]:
    """(path, body) of each recorded request, once."""
    found = dict.fromkeys(map(request_of, sorted(ASKED)))
    for file in sorted(FOLDER.glob("*.http")):
        head, _, rest = file.read_bytes().partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if length and int(length[1]):
            found[head.split()[1], rest[: int(length[1])]] = None
    return list(found)


def mutated(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        if rng.random() < 0.7:
            data[at:at] = rng.choice(PIECES)
        else:
            del data[at : at + rng.randrange(1, 9)]
    return bytes(data) or b"{}"


def requests() -> Iterator[tuple[bytes, bytes]]:
    rng, known = random.Random(1), recorded()
    for number in range(BODIES):
        path, body = known[number % len(known)]
        yield path, body if number < len(known) else mutated(rng, body)


def outcome(play: Play, request: bytes, cut: int) -> tuple[object, ...]:
    """What was read of a request that comes in two reads, and what was sent to whom."""
    client = play.connects()
    client.sends(request[:cut])
    client.sends(request[cut:])
    exchange = client.protocol._exchange  # type: ignore[attr-defined]
    ask = exchange.request.ask if exchange is not None else None
    read = tuple([getattr(ask, name) for name in FIELDS]) if ask else ()
    lines = play.happened()
    names = [line.split()[0] for line in lines if line.endswith(" got POST")]
    # The policy draws between equal backends, so it does not matter which one it was.
    got = [(play[name].head.replace(b"10.0.0.2", b"10.0.0.1"), play[name].body) for name in names]
    client.resets()
    play.happened()
    return read, client.written.partition(b"\r\n")[0], got


def test_there_are_recorded_requests_of_every_api() -> None:
    assert len(recorded()) >= 20
    assert len({path for path, _ in recorded()}) >= 4


def test_every_split_reads_and_sends_the_same() -> None:
    digest, splits = hashlib.sha256(), 0
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: r\r\ncontent-type: application/json\r\n"
    play = Play(policy="token_cost")
    for path, body in requests():
        request = (head + b"content-length: %d\r\n\r\n%b") % (path, len(body), body)
        begin = len(request) - len(body)
        whole = outcome(play, request, len(request))
        for cut in range(begin + 1, len(request), STRIDE):
            assert outcome(play, request, cut) == whole, (body, cut - begin)
            splits += 1
        digest.update(repr(whole).encode())
    print(f"{BODIES} bodies, {splits} splits, digest {digest.hexdigest()[:16]}")
