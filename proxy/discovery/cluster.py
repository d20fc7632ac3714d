"""How a pod asks the API server of its cluster: its address, certificates and token."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp

from penstock.proxy.discovery.beside import beside

FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_S: Final = 5.0


class NoCluster(Exception):
    """This is no pod of a cluster. The text is for people."""


class Cluster:
    """The API server. `folder` has the pod's token, CA and namespace."""

    def __init__(
        self,
        api_url: str | None,
        environ: Mapping[str, str] = os.environ,
        folder: Path = FOLDER,
    ) -> None:
        """`api_url`: in place of the cluster's own, such as that of `kubectl proxy`."""
        self._api_url = api_url
        self._environ = environ
        self._folder = folder
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Raises NoCluster."""
        if self._api_url is not None:
            return self._api_url
        host = self._environ.get("KUBERNETES_SERVICE_HOST")
        port = self._environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise NoCluster("there is no KUBERNETES_SERVICE_HOST: this is no pod; give api_url")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def namespace(self) -> str:
        """The pod's own. Raises NoCluster."""
        try:
            return (self._folder / "namespace").read_text().strip()
        except OSError as error:
            raise NoCluster(f"no namespace is given or mounted: {error.strerror}") from None

    def _token(self) -> str | None:
        """As it is now: the kubelet writes another one each hour."""
        try:
            return (self._folder / "token").read_text().strip()
        except OSError:
            return None

    def _certificates(self) -> ssl.SSLContext:
        ca = self._folder / "ca.crt"
        return ssl.create_default_context(cafile=str(ca) if ca.exists() else None)

    async def get(
        self, path: str, query: Mapping[str, str], read_s: float
    ) -> aiohttp.ClientResponse:
        """An answer whose body is not read yet. `read_s`: the longest silence.

        Raises NoCluster, aiohttp.ClientError, OSError, TimeoutError.
        """
        secure = self.url.startswith("https:")
        token = await beside(self._token) if secure else None
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=read_s)
        if self._session is None:
            certificates = await beside(self._certificates) if secure else True
            connector = aiohttp.TCPConnector(ssl=certificates)
            self._session = aiohttp.ClientSession(connector=connector)
        return await self._session.get(
            self.url + path, params=query, headers=headers, timeout=timeout
        )

    async def close(self) -> None:
        """The next question opens a connection, and reads the certificates again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
