"""The page's own files: open to everybody, because nothing of this proxy is in them.

They are read at the start and served from memory. The policy in the headers lets the page load its
own files and nothing else, and run no text as script.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class _File(NamedTuple):
    body: bytes
    headers: dict[str, str]


class Shell:
    """All files of the page."""

    def __init__(self) -> None:
        self._files = {path.name: _file(path) for path in FOLDER.iterdir()}

    async def index(self, request: web.Request) -> web.Response:
        return self._answer(request, INDEX)

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound
        return self._answer(request, name)

    def _answer(self, request: web.Request, name: str) -> web.Response:
        file = self._files[name]
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return web.Response(status=304, headers=file.headers)
        return web.Response(body=file.body, headers=file.headers)


async def guard_answers(request: web.Request, answer: web.StreamResponse) -> None:
    """Headers of each answer: no cache, no other site, and no guess at its type."""
    answer.headers.setdefault("Cache-Control", "no-store")
    answer.headers.setdefault(
        "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"
    )
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Referrer-Policy"] = "no-referrer"
    answer.headers["Cross-Origin-Resource-Policy"] = "same-origin"


def _file(path: Path) -> _File:
    body = path.read_bytes()
    headers = {
        "Content-Type": _TYPES[path.suffix],
        "Content-Security-Policy": POLICY,
        # Looked at again each time: after an update the files must fit each other.
        "Cache-Control": "no-cache",
        "ETag": f'"{sha256(body).hexdigest()[:32]}"',
    }
    return _File(body, headers)
