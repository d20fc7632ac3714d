"""A copy of objects of an API server, kept through everything that a watch can meet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any, Self, cast

import aiohttp
import orjson
import pytest

from penstock.proxy.discovery.list_watch import EVENT_BYTES_MAX, ListWatch

Told = dict[str, Any]


def thing(name: str, version: int, value: int = 0) -> Told:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def event(kind: str, name: str, version: int, value: int = 0) -> bytes:
    return orjson.dumps({"type": kind, "object": thing(name, version, value)}) + b"\n"


def listed(*things: Told, version: int = 10, more: str = "") -> "Answer":
    metadata = {"resourceVersion": str(version), "continue": more}
    return Answer(200, [orjson.dumps({"metadata": metadata, "items": things})])


class Answer:
    """An answer in parts. A part that is an error is raised."""

    def __init__(self, status: int, parts: list[bytes | Exception]) -> None:
        self.status = status
        self.parts = parts
        self.content = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self) -> bytes:
        return b"".join([part async for part in self.iter_any()])

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part


REFUSED = Answer(403, [b'{"message": "cannot watch"}'])
GONE = Answer(410, [b"{}"])
GONE_EVENT = Answer(200, [b'{"type":"ERROR","object":{"code":410}}\n'])
CUT = aiohttp.ClientPayloadError()


class Server:
    """Answers in this order, and then never again."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[Mapping[str, str]] = []
        self.over = asyncio.Event()
        self.closed = 0

    async def get(self, path: str, query: Mapping[str, str], read_s: float) -> Answer:
        if not self._answers:
            self.over.set()
            await asyncio.Event().wait()
        self.asked.append(dict(query))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed += 1


class NoPauses(Random):
    """Every pause is over at once, and remembered."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


async def followed(*answers: Answer | Exception) -> tuple[Server, list[dict[str, int]], list[str]]:
    """What was asked; each state of the copy; and each problem."""
    server, states, problems = Server(*answers), list[dict[str, int]](), list[str]()

    def changed(items: Mapping[str, Mapping[str, Any]]) -> None:
        states.append({name: each["value"] for name, each in items.items()})

    watch = ListWatch(
        *(cast("Any", server), "/things", {"labelSelector": "a=b"}, changed, problems.append),
        *(NoPauses(1), lambda: 0.0),
    )
    task = asyncio.create_task(watch.follow())
    async with asyncio.timeout(5):
        await server.over.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return server, states, problems


async def test_pages_of_a_list_are_one_state() -> None:
    first, second = listed(thing("a", 3), more="next"), listed(thing("b", 4), version=11)
    server, states, _ = await followed(first, second, Answer(200, []))
    assert states == [{"a": 0, "b": 0}]
    assert [each.get("continue") for each in server.asked] == [None, "next", None]
    assert server.asked[2]["resourceVersion"] == "11"
    assert all(each["labelSelector"] == "a=b" for each in server.asked)


async def test_events_change_the_copy_and_a_bookmark_only_the_version() -> None:
    parts: list[bytes | Exception] = [
        event("ADDED", "b", 11),
        event("MODIFIED", "a", 12, 5) + event("DELETED", "b", 13),
        event("BOOKMARK", "", 40),
    ]
    server, states, problems = await followed(
        listed(thing("a", 3)), Answer(200, parts), Answer(200, [])
    )
    assert states == [{"a": 0}, {"a": 0, "b": 0}, {"a": 5}, {"a": 5}]
    assert server.asked[2]["resourceVersion"] == "40"
    assert not problems


async def test_an_event_may_come_in_pieces_and_be_cut_in_its_middle() -> None:
    whole = event("MODIFIED", "a", 11, 5)
    cut = Answer(200, [whole[:20], whole[20:] + whole[:30], CUT])
    again = Answer(200, [event("MODIFIED", "a", 12, 6)])
    server, states, problems = await followed(listed(thing("a", 3)), cut, again)
    assert states == [{"a": 0}, {"a": 5}, {"a": 6}]
    assert server.asked[2]["resourceVersion"] == "11"
    assert not problems


@pytest.mark.parametrize("gone", [GONE, GONE_EVENT])
async def test_a_version_that_is_too_old_needs_a_new_list(gone: Answer) -> None:
    server, states, problems = await followed(
        listed(thing("a", 3)), gone, listed(thing("b", 30), version=30)
    )
    assert states == [{"a": 0}, {"b": 0}]
    assert [each.get("watch") for each in server.asked] == [None, "1", None]
    assert not problems


async def test_a_page_that_is_too_old_begins_the_list_anew() -> None:
    _, states, _ = await followed(listed(thing("a", 3), more="next"), GONE, listed(thing("b", 4)))
    assert states == [{"b": 0}]


async def test_a_silent_connection_is_given_up_and_told_and_the_copy_stays() -> None:
    silent = Answer(200, [event("ADDED", "b", 11), aiohttp.SocketTimeoutError()])
    server, states, problems = await followed(listed(thing("a", 3)), silent, listed(thing("a", 3)))
    assert problems == ["the API server does not answer: SocketTimeoutError"]
    assert states == [{"a": 0}, {"a": 0, "b": 0}, {"a": 0}]
    assert server.closed == 1  # another connection, and the certificates as they are now


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (REFUSED, "403: cannot watch"),
        (Answer(401, [b"{}"]), "401: no reason is told"),
        (Answer(500, [b"<html>"]), "500: no reason is told"),
        (OSError(), "the API server does not answer: OSError"),
        (Answer(200, [b'{"type":"ERROR","object":{"code":500,"message":"x"}}\n']), "failed: x"),
        (Answer(200, [b"nonsense\n"]), "JSONDecodeError"),
        (Answer(200, [b"a" * (EVENT_BYTES_MAX + 1)]), "more than 8,388,608 bytes"),
    ],
)
async def test_what_fails_is_told_and_tried_again(answer: Answer | Exception, problem: str) -> None:
    _, states, problems = await followed(listed(thing("a", 3)), answer, listed(thing("b", 4)))
    assert problem in problems[0]
    assert states[-1] == {"b": 0}
