"""A Kubernetes API server, as far as lists and watches of one kind go."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Self

import orjson
from aiohttp import web

Object = dict[str, Any]


def endpoint_slice(name: str, service: str, *endpoints: Object, port: int = 8000) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


def gone(code: int = 410) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "too old resource version" if code == 410 else "forbidden: cannot list",
        "reason": "Expired" if code == 410 else "Forbidden",
        "code": code,
    }


BOOKMARK = "BOOKMARK"
GROUP = {"groupVersion": "discovery.k8s.io/v1", "version": "v1"}
# What kubectl asks first: which kinds there are.
KINDS: dict[str, Object] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {"name": "discovery.k8s.io", "versions": [GROUP], "preferredVersion": GROUP},
        ],
    },
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis/discovery.k8s.io/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "discovery.k8s.io/v1",
        "resources": [
            {
                "name": "endpointslices",
                "singularName": "endpointslice",
                "namespaced": True,
                "kind": "EndpointSlice",
                "verbs": ["get", "list", "watch"],
            }
        ],
    },
}


class ApiServer:
    """Objects by name. Every change has a version, and a watch tells those after its own.

    `oldest`: watches from before this version get 410. `refuses`: the status of every answer.
    `token`: that requests must show. `deaf`: watches hear nothing more and are not closed.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 100
        self.oldest = 0
        self.refuses = 0
        self.token = ""
        self.deaf = False
        self.lists = self.watches = 0
        self.url = ""
        self._events: list[tuple[int, Object]] = []
        self._news = asyncio.Condition()
        self._open: set[web.StreamResponse] = set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        path = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        app.router.add_get(path, self._get)
        for known in KINDS:
            app.router.add_get(known, self._kinds)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        (address,) = self._runner.addresses
        self.url = f"http://127.0.0.1:{address[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self.cut()
        await self._runner.cleanup()

    async def put(self, *objects: Object) -> None:
        for each in objects:
            name = each["metadata"]["name"]
            await self._tell("MODIFIED" if name in self.objects else "ADDED", each)
            self.objects[name] = each

    async def delete(self, name: str) -> None:
        await self._tell("DELETED", self.objects.pop(name))

    async def bookmark(self) -> None:
        await self._tell(BOOKMARK, {"kind": "EndpointSlice", "metadata": {}})

    async def _tell(self, kind: str, told: Object) -> None:
        self.version += 1
        told["metadata"]["resourceVersion"] = str(self.version)
        self._events.append(
            (self.version, orjson.loads(orjson.dumps({"type": kind, "object": told})))
        )
        async with self._news:
            self._news.notify_all()

    async def cut(self, *, midway: bool = False) -> None:
        """End all watches, in the middle of an event or not."""
        for each in list(self._open):
            if midway:
                with suppress(ConnectionError, RuntimeError):
                    await each.write(b'{"type":"MODIFIED","object":{"metadata":{"na')
            if (transport := each._req.transport if each._req else None) is not None:
                transport.abort() if midway else transport.close()

    async def _kinds(self, request: web.Request) -> web.Response:
        return web.json_response(KINDS[request.path])

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.json_response(gone(401), status=401)
        if self.refuses:
            return web.json_response(gone(self.refuses), status=self.refuses)
        if request.query.get("watch"):
            return await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        self.lists += 1
        limit = int(request.query.get("limit", 10**9))
        begin = int(request.query.get("continue") or 0)
        items = list(self._selected(request))
        more = str(begin + limit) if begin + limit < len(items) else ""
        metadata = {"resourceVersion": str(self.version), "continue": more}
        return web.json_response(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSliceList",
                "metadata": metadata,
                "items": items[begin : begin + limit],
            }
        )

    def _selected(self, request: web.Request) -> Iterator[Object]:
        return (each for each in self.objects.values() if _is_selected(request, each))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        told = int(request.query["resourceVersion"])
        selected = partial(_is_selected, request)
        bookmarks = request.query.get("allowWatchBookmarks") == "true"
        if told < self.oldest and request.headers.get("x-late") is None and self.watches % 2:
            return web.json_response(gone(), status=410)
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        if told < self.oldest:  # the other way of saying so
            await answer.write(orjson.dumps({"type": "ERROR", "object": gone()}) + b"\n")
            return answer
        self._open.add(answer)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", 1_800))):
                while True:
                    news = [each for each in self._events if each[0] > told]
                    if news and not self.deaf:
                        told = news[-1][0]
                        wanted = [
                            each
                            for _, each in news
                            if (bookmarks if each["type"] == BOOKMARK else selected(each["object"]))
                        ]
                        lines = [orjson.dumps(event) + b"\n" for event in wanted]
                        await answer.write(b"".join(lines))
                    async with self._news:
                        if not [each for each in self._events if each[0] > told] or self.deaf:
                            await self._news.wait()
        except (TimeoutError, ConnectionError, RuntimeError):
            pass
        finally:
            self._open.discard(answer)
        return answer


def _is_selected(request: web.Request, told: Object) -> bool:
    key, _, value = request.query.get("labelSelector", "").partition("=")
    return not key or told["metadata"].get("labels", {}).get(key) == value
