"""A request as routes see it: what it asks for, who sends it, and when."""

from collections.abc import Callable

import xxhash

from penstock.balancing.ask import Ask

ReadHeader = Callable[[bytes], bytes | None]


class RouteRequest:
    """One request. What no rule asks for may be left out (`RouteTable.reads`).

    `header` finds the value of a header by its name in lower case. `user`: as the body names it.
    `needs`: bits, as in `wants.py`. `effort`: of reasoning, in the client's word. `label`: what the
    classifier says, None without one. `now_s`: Unix time. `draw`: 64 random bits, for what has no
    key to be held by.
    """

    def __init__(
        self,
        ask: Ask,
        header: ReadHeader,
        *,
        service_class: str = "",
        user: str | None = None,
        needs: int = 0,
        effort: str | None = None,
        label: str | None = None,
        now_s: float = 0.0,
        draw: int = 0,
    ) -> None:
        self.ask = ask
        self._header = header
        # Those that rules have asked for: many rules may ask for one.
        self._headers: dict[bytes, str | None] = {}
        self.service_class = service_class
        self.user = user
        self.needs = needs
        self.effort = effort
        self.label = label
        self.now_s = now_s
        self.draw = draw

    def header(self, name: bytes) -> str | None:
        """The value of a header. None if there is none."""
        if name not in self._headers:
            value = self._header(name)
            self._headers[name] = value.decode("latin-1") if value is not None else None
        return self._headers[name]

    @property
    def session(self) -> str | None:
        """The session key as the client gave it, without its tenant."""
        ask = self.ask
        if ask.session is None or not ask.tenant:
            return ask.session
        return ask.session.removeprefix(ask.tenant + " ")

    def key(self, sticky: str) -> str:
        """By what its target is held (`conf/routes.py`, `sticky`).

        Neither the tenant nor the address stands in for a missing session: one of them may send
        most requests, and a share of 5 % would become none or all of them. Users of two tenants
        are two users.
        """
        held = self._held(sticky)
        return held if held is not None else f"\0{self.draw}"

    def hashed_key(self, sticky: str) -> int | None:
        """The same as a number. None: it has none, so its target is drawn for it alone."""
        held = self._held(sticky)
        if held is None:
            return None
        return xxhash.xxh3_64_intdigest(held.encode("utf-8", "surrogatepass"))

    def _held(self, sticky: str) -> str | None:
        """What it is held by. None: nothing."""
        ask = self.ask
        if sticky == "session":
            return ask.session or self._user_of_tenant()
        if sticky == "user":
            return self._user_of_tenant() or ask.session
        return (ask.client or None) if sticky == "tenant" else None

    def _user_of_tenant(self) -> str | None:
        return f"{self.ask.tenant} {self.user}" if self.user else None
