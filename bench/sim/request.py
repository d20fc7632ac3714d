"""One request exactly as it came."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """Header names and values are the client's bytes."""

    method: str = ""
    target: str = ""
    version: str = "1.1"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    keep_alive: bool = True

    @property
    def line(self) -> str:
        return f"{self.method} {self.target} HTTP/{self.version}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str:
        """The first value of a header, or an empty string."""
        wanted = name.encode()
        return next((v.decode("latin-1") for n, v in self.headers if n.lower() == wanted), "")
