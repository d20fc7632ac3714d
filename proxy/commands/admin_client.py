"""Asks the admin port one question over HTTP. Its errors say what to do."""

import http.client
import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import orjson

from penstock.proxy.commands.plain_text import plain, plain_texts

T = TypeVar("T")
DEFAULT_PORT: Final = "9321"
DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
# The proxy's own settings. They help when a command runs on the same machine.
PORT_VARIABLE: Final = "PENSTOCK_ADMIN__PORT"
TOKEN_VARIABLE: Final = "PENSTOCK_ADMIN__TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE_VARIABLE: Final = "PENSTOCK_ADMIN__TOKEN_FILE"  # noqa: S105 - a variable's name
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 67_108_864
_NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})


class AdminError(Exception):
    """The admin port did not do what was asked. The text is for the user."""


class Invalid(AdminError):
    """The configuration has errors: `issues`, a line each."""

    def __init__(self, message: str, issues: list[str]) -> None:
        super().__init__(message)
        self.issues = issues


# The next process loads its configuration, and asks each backend once.
RESTART_S: Final = 70.0


class AdminClient:
    """Asks the admin port at `url`, with a token if there is one, which is in `headers`.

    What it returns and raises is for a terminal: clients and backends have named much of it.
    """

    def __init__(self, url: str, token: str | None, *, exact: bool = False) -> None:
        """`exact`: for programs, with each character. Raises AdminError when `url` is no URL."""
        scheme, _, rest = url.partition("//") if "//" in url else ("http:", "", url)
        try:  # the text before an @ may be a password, with any character
            parts = urlsplit(f"{scheme}//{rest.rpartition('@')[2]}")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        host, secure = parts.hostname, parts.scheme == "https"
        if not host or port == 0 or parts.scheme not in ("http", "https"):
            raise AdminError(
                f"--admin must be a URL such as {DEFAULT_URL}, got {url.rpartition('@')[2]!r}"
            )
        self.url = f"{parts.scheme}://{parts.netloc}"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=TIMEOUT_S)
        self._exact = exact
        self.headers = {"authorization": f"Bearer {token}"} if token else {}

    def listed(self, name: str, query: Mapping[str, str] = _NO_TEXTS) -> list[dict[str, Any]]:
        """The list that `/api/v1/NAME` tells."""
        found: list[dict[str, Any]] = self._ask("GET", f"{name}?{urlencode(query)}", list)
        return found

    def told(self, name: str) -> dict[str, Any]:
        """What `/api/v1/NAME` tells of one thing."""
        return self._dict("GET", name)

    def requests_with_id(self, request_id: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Those with this id, the latest first."""
        return self.listed(f"requests/{quote(request_id, '')}", query)

    def set_state(self, name: str, state: str) -> dict[str, Any]:
        """Set a backend's admin state. Returns the backend's description."""
        return self._dict("POST", f"backends/{quote(name, '')}/{state}")

    def reload(self) -> dict[str, Any]:
        """Read the configuration again. Returns what changed. Raises Invalid."""
        return self._dict("POST", "reload")

    def restart(self) -> None:
        """Have the next process take over. Returns when it does."""
        self._connection.timeout = RESTART_S
        self._dict("POST", "restart")
        self._connection.timeout = TIMEOUT_S

    def tell_canary(self, route: str, word: str) -> dict[str, Any]:
        """Promote, abort or restart a route's canary. Returns where it stands now."""
        return self._dict("POST", f"canaries/{quote(route, '')}/{word}")

    def explain(
        self,
        body: bytes,
        path: str | None,
        tenant: str | None,
        headers: Mapping[str, str],
        label: str | None = None,
    ) -> dict[str, Any]:
        """Where a request of that tenant would go, if the classifier gave it this label."""
        given = {"path": path, "tenant": tenant, "label": label}
        query = urlencode({name: value for name, value in given.items() if value})
        return self._dict("POST", f"explain?{query}", body, headers)

    def _dict(
        self,
        method: str,
        name: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_TEXTS,
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(method, name, dict, body, headers)
        return found

    def _ask(
        self,
        method: str,
        name: str,
        kind: type[object],
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_TEXTS,
    ) -> Any:
        try:
            self._connection.request(method, f"/api/v1/{name}", body, {**headers, **self.headers})
            answer = self._connection.getresponse()
            content = orjson.loads(answer.read(ANSWER_BYTES_MAX))
        except (OSError, http.client.HTTPException) as error:
            said = plain(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            raise AdminError(
                f"no answer from the admin port {self.url}: {said}; is penstock running, and is"
                " this the address of its admin port (--admin URL)?"
            ) from None
        except orjson.JSONDecodeError:
            raise AdminError(f"{self.url} is not an admin port of penstock") from None
        finally:
            self._connection.close()
        told = plain_texts(content)
        if answer.status == 200 and isinstance(content, kind):
            return content if self._exact else told
        refusal = told.get("error") if isinstance(told, dict) else None
        if not isinstance(refusal, dict) or refusal.get("code") == "unknown_path":
            raise AdminError(f"{self.url} is not an admin port of penstock, or of another version")
        if "issues" in refusal:
            raise Invalid(refusal["message"], refusal["issues"])
        hint = (
            f" (--token-file, or {TOKEN_VARIABLE}; is {self.url} the admin port?)"
            if answer.status == 401
            else ""
        )
        raise AdminError(f"{refusal.get('message')}{hint}")


def add_arguments(
    parser: ArgumentParser, command: Callable[[Namespace], int], *, with_json: bool = False
) -> None:
    """Add the arguments that every command on the admin port has. `with_json`: `--json`, too."""
    parser.set_defaults(command=command)
    if with_json:
        parser.add_argument("--json", action="store_true", help="print all fields, as JSON")
    parser.add_argument(
        "--admin",
        metavar="URL",
        help=f"admin port (default {DEFAULT_URL}, or the port in {PORT_VARIABLE})",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the admin token (default: {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE})",
    )


def client_of(parsed: Namespace) -> AdminClient:
    """The client for a command's arguments. Raises AdminError."""
    port = os.environ.get(PORT_VARIABLE, DEFAULT_PORT)
    url = parsed.admin or f"http://127.0.0.1:{port}"
    return AdminClient(url, token_of(parsed.token_file), exact=getattr(parsed, "json", False))


def show(parsed: Namespace, found: T, text: Callable[[T], str]) -> int:
    """Print what was found, for people or with `--json` for programs. Returns 0.

    The JSON is exact, and all that a terminal might take for a command is escaped.
    """
    print(json.dumps(found, indent=2) if parsed.json else text(found))
    return 0


def token_of(file: Path | None) -> str | None:
    """The token in `file`, or else in the environment. Raises AdminError."""
    token = os.environ.get(TOKEN_VARIABLE)
    if file is None and not token and TOKEN_FILE_VARIABLE in os.environ:
        file = Path(os.environ[TOKEN_FILE_VARIABLE])
    if file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            said = getattr(error, "strerror", None) or "not text"
            raise AdminError(f"cannot read {file}: {said}") from None
    if token and not (token.isascii() and token.isprintable()):
        raise AdminError("the admin token must be one line of printable ASCII")
    return token
