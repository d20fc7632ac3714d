"""Whose adapter is loaded next, of those that wait for that and those held elsewhere meanwhile."""

from typing import Any

from penstock.balancing.backend import State
from penstock.health.probes import Outcome
from tests.unit.proxy.data.loading import Loading
from tests.unit.proxy.data.playbook import Client, chat

MANY = 8


def _pool(name: str, backend: int) -> dict[str, Any]:
    backends = [{"name": f"b{backend}", "url": f"http://10.0.0.{backend}:1"}]
    return {"name": name, "policy": "round_robin", "backends": backends}


def _routes(name: str) -> list[dict[str, Any]]:
    """To an adapter of pool `p`: at once, and as the fall-back of pool `own`."""
    loads = {"pool": "p", "model": f"{name}-1"}
    own = {"match": {"model": f"own-{name}"}, "to": [{"pool": "own", "model": "base"}]}
    return [
        {"name": name, "match": {"model": name}, "to": [loads | {"lora_path": f"/{name}"}]},
        own | {"name": f"own-{name}", "fallbacks": [loads | {"on": ["no_backend"]}]},
    ]


class Turns(Loading):
    """Tenants a, b, c and v. One backend of pool `p` loads, two at a time. `own` has none."""

    def __init__(self) -> None:
        names = [*(f"ad{number}" for number in range(MANY)), "v", "w"]
        super().__init__(
            *[each for name in names for each in _routes(name)],
            pools=[_pool("own", 1), _pool("p", 2)],
            tenants=[{"name": name, "keys": [{"key": f"key-of-tenant-{name}"}]} for name in "abcv"],
            admission={"hold_for_backend_s": 300},
        )
        for backend in self.backends:
            backend.state = State.EJECTED
        self.clients: list[Client] = []

    def comes(self, tenant: str, model: str) -> Client:
        self.clients.append(self.connects())
        head = f"authorization: Bearer key-of-tenant-{tenant}\r\n".encode()
        self.clients[-1].sends(chat(f'"model":"{model}"', head=head))
        return self.clients[-1]

    def crowd(self, way: str = "") -> None:
        """Tenants a and b want many adapters."""
        for number in range(MANY):
            self.comes("ab"[number % 2], f"{way}ad{number}")

    def begins(self) -> None:
        """The backend that loads is back."""
        self.backends[1].state = State.READY

    def next_after(self, name: str) -> list[str]:
        """What begins to load when this one is loaded, before anything is looked at again."""
        before = set(self.hangs)
        self.loaded("b2", name)
        return [each for _, each in self.hangs if ("b2", each) not in before]

    def end(self) -> None:
        for each in self.clients:
            each.closes()
        self.plane.adapters.close()
        self.turns()
        self.close()


def held_before_a_crowd() -> tuple[Turns, Client]:
    """One is held, and its fall-back is back. Then many come that wait for loads there."""
    play = Turns()
    victim = play.comes("v", "own-v")
    play.passes(1.0)
    play.begins()
    play.crowd()
    play.passes(2.0)
    return play, victim


def test_one_that_is_held_has_its_turn_among_those_that_wait() -> None:
    play, _ = held_before_a_crowd()
    assert [name for _, name in play.hangs] == ["ad0-1", "ad1-1"]
    assert play.next_after("ad0-1") == ["v-1"]
    play.end()


def test_and_among_others_that_are_held() -> None:
    play = Turns()
    play.crowd("own-")
    play.comes("v", "own-v")
    play.passes(1.0)
    play.begins()
    play.passes(2.0)
    first = [name for _, name in play.hangs]
    assert len(first) == 2
    assert "v-1" not in first
    assert play.next_after(first[0]) == ["v-1"]
    play.end()


def test_one_that_was_held_and_left_takes_no_turn() -> None:
    play, victim = held_before_a_crowd()
    victim.closes()
    assert play.next_after("ad0-1") == ["ad2-1"]
    play.end()


def test_nor_does_one_whose_own_pool_is_back() -> None:
    play, _ = held_before_a_crowd()
    play.backends[0].state = State.READY
    play.passes(1.0)
    assert play["b1"].body
    assert play.next_after("ad0-1") == ["ad2-1"]
    play.end()


def test_when_it_leaves_another_one_of_its_client_waits_in_its_place() -> None:
    play = Turns()
    first = play.comes("v", "own-v")
    play.comes("v", "own-v")
    play.passes(1.0)
    play.begins()
    play.crowd()
    play.passes(2.0)
    first.closes()
    play.passes(2.0)
    assert play.next_after("ad0-1") == ["v-1"]
    play.end()


def test_who_comes_in_the_moment_in_which_a_load_ends_comes_after_those_that_wait() -> None:
    play = Turns()
    play.begins()
    play.crowd()
    late = play.connects()
    play.clients.append(late)
    play.turns()
    backend, head = play.backends[1], b"authorization: Bearer key-of-tenant-c\r\n"
    backend.models = {**(backend.models or {}), "ad0-1": b"{}"}
    data = chat('"model":"w"', head=head)
    play.hangs.pop(("b2", "ad0-1")).set_result(Outcome())
    play.loop.call_soon(late.connection.data_received, data)
    play.turns()
    assert [name for _, name in play.hangs] == ["ad1-1", "ad2-1"]
    play.passes(1.0)
    play.loaded("b2", "ad1-1")
    play.loaded("b2", "ad2-1")
    assert [name for _, name in play.hangs] == ["ad3-1", "ad4-1"]
    assert play.next_after("ad3-1") == ["w-1"]
    play.end()
