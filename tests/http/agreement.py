"""Whether penstock and the referees read the same requests out of the same bytes."""

from collections import Counter

from tests.http.referees import REFEREES, Message, Refused, all_h11_answers

# Ours on the way upstream.
_WRITTEN = frozenset(
    (
        b"host",
        b"accept-encoding",
        b"via",
        b"x-forwarded-for",
        b"x-request-id",
        b"x-vllm-priority",
        b"content-length",
    )
)


class Disagreement(AssertionError):
    """Penstock and a referee read differently."""


class Agreement:
    """Compares, request by request, and counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def check(self, data: bytes, client: bytes, upstream: list[bytes]) -> None:
        """`data` came from a client. Raises Disagreement."""
        self.counts["sent"] += 1
        forwarded = [_arrived(each) for each in upstream if each]
        self.counts["requests forwarded"] += len(forwarded)
        self.counts["with a request forwarded"] += bool(forwarded)
        _answered(client, len(forwarded))
        if not forwarded:
            return
        refusals = 0
        for name, referee in REFEREES.items():
            try:
                seen, refuses = referee(data), False
            except Refused as error:
                seen, refuses = error.before, True
            refused = self._compare(name, forwarded, seen, refuses)
            self.counts[f"of these refused by {name} alone"] += refused
            refusals += refused
        if refusals == len(REFEREES):
            raise Disagreement(f"penstock alone accepts {forwarded}")

    def _compare(
        self, name: str, forwarded: list[Message], seen: list[Message], refuses: bool
    ) -> bool:
        """Each forwarded request must be one that the referee saw."""
        rest = [each for each in seen if each.whole]
        for message in forwarded:
            found = next((each for each in rest if _same(message, each)), None)
            if found is not None:
                rest.remove(found)
                _headers_agree(name, message, found)
            elif refuses:
                return True
            else:
                raise Disagreement(f"{name} saw {seen}, penstock {message}")
        return False


def _arrived(data: bytes) -> Message:
    """The one request on a backend's connection, on which the referees must agree."""
    first, second = (_all(name, data) for name in REFEREES)
    if first != second or len(first) != 1 or not first[0].whole:
        raise Disagreement(f"upstream: {first} {second} of {data!r}")
    return first[0]


def _all(name: str, data: bytes) -> list[Message]:
    try:
        return REFEREES[name](data)
    except Refused as error:
        raise Disagreement(f"upstream: {name} refuses {data!r}: {error}") from None


def _same(ours: Message, theirs: Message) -> bool:
    target = theirs.target
    if target[:7].lower() == b"http://" or target[:8].lower() == b"https://":
        target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") > 2 else b"/"
    return (ours.method, ours.target, ours.body) == (theirs.method, target, theirs.body)


def _headers_agree(name: str, ours: Message, theirs: Message) -> None:
    for field in ours.headers:
        if field[0] not in _WRITTEN and field not in theirs.headers:
            raise Disagreement(f"{name} did not see {field}: {theirs.headers}")


def _answered(client: bytes, forwarded: int) -> None:
    """What the client got must be whole answers, at least one for each request forwarded."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    try:
        answers = all_h11_answers(client.removesuffix(interim))
    except Refused as error:
        raise Disagreement(f"answered {client!r}: {error}") from None
    if any(not each.whole or each.status == 500 for each in answers):
        raise Disagreement(f"answered {client!r}")
    if len(answers) < forwarded:
        raise Disagreement(f"{forwarded} forwarded, {len(answers)} answered")
