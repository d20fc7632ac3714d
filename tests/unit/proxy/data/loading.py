"""Backends that load adapters when a test says so."""

import asyncio
from typing import Any

import orjson

from penstock.balancing.backend import Backend
from penstock.health.probes import Outcome
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Client, Play, chat, token


def route(name: str) -> dict[str, Any]:
    """Requests for this model get an adapter of its own."""
    target = {"pool": "p", "model": f"{name}-1", "lora_path": f"/adapters/{name}"}
    return {"name": name, "match": {"model": name}, "to": [target]}


SQL, LAW = route("sql"), route("law")
FALLS_BACK = SQL | {"fallbacks": [{"pool": "p", "model": "base", "on": ["no_backend"]}]}


class Loading(Play):
    """Backends that list their base model only. A load hangs until the test ends it."""

    def __init__(self, *routes: dict[str, Any], backends: int = 2, **settings: Any) -> None:
        super().__init__(backends, routes=list(routes or (SQL, LAW)), **settings)
        self.hangs: dict[tuple[str, str], asyncio.Future[Outcome]] = {}
        for backend in self.backends:
            backend.models = {"base": b"{}"}
            backend.contexts = {"base": 4_096, None: 4_096}

    async def load_adapter(self, backend: Backend, name: str, path: str) -> Outcome:
        self.happens(f"{backend.name} loads {name} of {path}")
        hang: asyncio.Future[Outcome] = self.loop.create_future()
        self.hangs[backend.name, name] = hang
        return await hang

    @property
    def loading(self) -> list[str]:
        return [name for _, name in self.hangs]

    def loaded(self, backend: str, name: str) -> None:
        """The backend lists it from now on."""
        (found,) = [each for each in self.backends if each.name == backend]
        found.models = {**(found.models or {}), name: b"{}"}
        self.hangs.pop((backend, name)).set_result(Outcome())
        self.turns()

    def fails(self, backend: str, name: str) -> None:
        self.hangs.pop((backend, name)).set_result(Outcome("status_404"))
        self.turns()

    def asks(self, model: str = "sql", head: bytes = b"") -> Client:
        """A client does, after the last one has left."""
        if self.client.connection._exchange is not None or self.client.written:
            self.client.closes()
            self.client = self.connects()
        client = self.client
        client.sends(chat(f'"model":"{model}"', head=head))
        return client


def code(client: Client) -> tuple[int, str, str]:
    """The status, the code and the message of an error."""
    head, _, body = client.written.partition(b"\r\n\r\n")
    error = orjson.loads(body)["error"]
    return int(head[9:12]), error["code"], error["message"]


def sent_after(play: Loading, client: Client) -> None:
    """The adapter is loaded, and then the client's request waits for another one's end."""
    play.backends[0].max_requests = 1
    play.connects().sends(chat('"model":"base"'))
    first = play["b1"]
    play.loaded("b1", "sql-1")
    play.passes(0.5)
    assert not client.written
    first.sends(STREAM, token("a"), DONE, END)
    play.passes(0.2)
    assert play.model("b1") == "sql-1"
    play.answers("b1")
    assert b"[DONE]" in client.written
