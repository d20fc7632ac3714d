"""What went over both wires while a case ran, judged with the referees' help."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.http.case import CUT, Case, echo
from tests.http.referees import REFEREES, Message, Refused, h11_answers

# Asked last on a connection that must still serve: its answer comes after all others.
MARKER = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Verdict(StrEnum):
    """What may go wrong, worst first."""

    CRASH = "crash"
    SMUGGLED = "smuggled"
    LEAK = "leak"
    DESYNC = "desync"
    HANG = "hang"
    BAD_RESPONSE = "bad-response"
    REFUSED_CORRECT = "refused-correct"


@dataclass
class Seen:
    """What one case's connections carried."""

    client: bytes
    upstream: Sequence[bytes]
    timed_out: bool = False


Judgement = tuple[Verdict, str] | None


def judge(case: Case, seen: Seen) -> Judgement:
    """What is wrong with what was seen, or None."""
    return _upstream(case, seen) or _client_side(case, seen)


def answered(case: Case, client: bytes) -> bool:
    """Whether all answers of a case are there."""
    try:
        answers = h11_answers(client, _methods(case)[:-1], eof=False)
    except Refused:
        return True
    return len(answers) == len(case.answers) and all(each.whole for each in answers)


def _methods(case: Case) -> list[bytes]:
    """Of the requests that are answered; the last is the marker."""
    count = len(case.answers) + (not case.closes)
    return [*case.methods, *[b"POST"] * count][:count]


# What arrived at the backend -------------------------------------------------------------


def _upstream(case: Case, seen: Seen) -> Judgement:
    try:
        first, second = (
            [message for connection in seen.upstream for message in referee(connection)]
            for referee in REFEREES.values()
        )
    except Refused as error:
        return Verdict.SMUGGLED, f"a referee refuses {seen.upstream!r}: {error}"
    if first != second:
        return Verdict.SMUGGLED, f"the referees differ: {first} {second}"
    wanted = [(body, case.target) for body in case.arrive]
    got = [(each.body, each.target) for each in first]
    cut = [each for each in first if case.early and not each.whole]
    if any(not _begins(each, case) for each in cut):
        return Verdict.SMUGGLED, f"arrived, though only in part: {got}"
    rest = [each for each in first if each not in cut]
    strange = any((each.body, each.target) not in wanted for each in rest)
    if strange or len(got) > len(wanted) * (1 + case.twice):
        return Verdict.SMUGGLED, f"arrived: {got}"
    if not all(each.whole for each in rest):
        return Verdict.DESYNC, f"half a request arrived: {first}"
    if len(got) < len(wanted):
        worst = Verdict.REFUSED_CORRECT if case.correct else Verdict.BAD_RESPONSE
        return worst, f"{len(wanted) - len(got)} did not arrive; the client got {seen.client!r}"
    return next((found for each in first if (found := _headers(case, each))), None)


def _begins(message: Message, case: Case) -> bool:
    """Whether what arrived is the beginning of a body: an early answer ends the sending."""
    wanted = any(body.startswith(message.body) for body in case.arrive)
    return wanted and message.target == case.target


def _headers(case: Case, message: Message) -> Judgement:
    for name, value in message.headers:
        line = name + b": " + value.lower()
        if any(each in line for each in case.never):
            return Verdict.LEAK, f"upstream: {line!r}"
    missing = [each for each in case.headers if each not in message.headers]
    if missing:
        return Verdict.REFUSED_CORRECT, f"did not arrive: {missing}"
    return None


# What arrived at the client --------------------------------------------------------------


def _client_side(case: Case, seen: Seen) -> Judgement:
    told = f"{seen.client[:600]!r}"
    if any(each in seen.client.lower() for each in case.never):
        return Verdict.LEAK, f"at the client: {told}"
    if seen.timed_out:
        return Verdict.HANG, told
    try:
        answers = h11_answers(seen.client, _methods(case), eof=True)
    except Refused as error:
        answers = error.before
        if CUT not in case.answers or len(answers) != len(case.answers) - 1:
            extra = "after the last" in str(error)
            return Verdict.DESYNC if extra else Verdict.BAD_RESPONSE, f"{error}: {told}"
    served_again = bool(answers) and b'{"status":' in answers[-1].body
    if served_again:
        answers.pop()
    found = _answers(case, answers)
    if found is not None:
        return found[0], f"{found[1]}: {told}"
    if case.closes == served_again:
        return Verdict.DESYNC, f"the connection was {'kept' if served_again else 'lost'}: {told}"
    return None


def _answers(case: Case, answers: list[Message]) -> Judgement:
    if any(each.status == 500 and b"internal_error" in each.body for each in answers):
        return Verdict.CRASH, "internal error"
    if [each.status for each in answers] != [status for status in case.answers if status != CUT]:
        worst = Verdict.REFUSED_CORRECT if case.correct else Verdict.BAD_RESPONSE
        return worst, f"not {case.answers}"
    if case.body is not None and answers[0].body != case.body:
        return Verdict.BAD_RESPONSE, f"not {case.body!r}"
    echoes = [each.body for each in answers if b'"sha256"' in each.body]
    if not case.script and echoes != [echo(body) for body in case.arrive]:
        return Verdict.DESYNC, "answers to other requests"
    return None
