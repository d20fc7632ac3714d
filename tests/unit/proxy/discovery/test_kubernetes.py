"""Which pods of a cluster are backends."""

from random import Random
from typing import Any

import pytest

from penstock.conf.pools import KubernetesSettings
from penstock.proxy.discovery.cluster import Cluster
from penstock.proxy.discovery.found import Allowed, Entries
from penstock.proxy.discovery.kubernetes import KubernetesSource, of_pod, of_slice

PORTS = [{"name": "metrics", "port": 9100}, {"name": "http", "port": 8000}]


def endpoint(pod: str | None = "vllm-0", address: str = "10.0.0.1", **conditions: Any) -> Any:
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    return made | {"targetRef": {"kind": "Pod", "name": pod}} if pod else made


def urls(*endpoints: Any, ports: Any = PORTS, port: int | str | None = "http") -> list[Any]:
    return [each["url"] for each in of_slice({"ports": ports, "endpoints": endpoints}, port)]


@pytest.mark.parametrize(
    ("conditions", "taken"),
    [
        ({}, True),
        ({"ready": None}, True),
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "terminating": True}, False),  # with publishNotReadyAddresses
    ],
)
def test_an_endpoint_is_taken_that_is_ready_and_does_not_terminate(
    conditions: dict[str, Any], taken: bool
) -> None:
    assert bool(urls(endpoint(**conditions))) is taken


@pytest.mark.parametrize(
    ("port", "number"), [("http", 8000), (8080, 8080), (None, 9100), ("grpc", None)]
)
def test_the_port_is_a_number_a_name_or_the_first(port: int | str | None, number: int) -> None:
    wanted = [f"http://10.0.0.1:{number}"] if number else []
    assert urls(endpoint(), port=port) == wanted


def test_addresses_of_both_families() -> None:
    assert urls(endpoint(address="fd00::1")) == ["http://[fd00::1]:8000"]


def test_a_backend_has_the_name_of_its_pod_if_there_is_one() -> None:
    told = {"ports": PORTS, "endpoints": [endpoint("p" * 80), endpoint(None, "10.0.0.2")]}
    first, second = [each.get("name") for each in of_slice(told, "http", "chat.")]
    assert str(first).startswith("chat.pppp")
    assert len(str(first)) == 63
    assert second is None


def test_an_object_that_cannot_be_read_loses_itself_only() -> None:
    settings = KubernetesSettings(service="vllm")
    source = KubernetesSource(settings, Entries(Allowed([])), Cluster("http://api"), Random(1))
    whole = {"ports": PORTS, "endpoints": [endpoint()]}
    told = source._found({"a": {"endpoints": [None], "ports": PORTS}, "b": whole})
    assert [each.name for each in told.backends] == ["vllm-0"]
    assert told.faults == ("a cannot be read",)
    assert told.whole


@pytest.mark.parametrize("told", [{}, {"ports": None, "endpoints": None}, {"endpoints": [{}]}])
def test_a_slice_without_endpoints_or_ports_tells_none(told: Any) -> None:
    assert list(of_slice(told, None)) == []


def pod(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": "vllm-0", "labels": {"app": "vllm"}},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return {name: made[name] | changes.get(name, {}) for name in made}


def test_a_pod_that_is_ready_is_a_backend() -> None:
    (entry,) = of_pod(pod(), "http")
    assert entry == {"url": "http://10.0.0.1:8000", "name": "vllm-0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"deletionTimestamp": "2026-11-30T16:00:00Z"}},
        {"status": {"podIP": None}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"conditions": None}},
        {"spec": {"containers": [{}]}},
    ],
)
def test_other_pods_are_none(changes: dict[str, Any]) -> None:
    assert list(of_pod(pod(**changes), "http")) == []


@pytest.mark.parametrize(("label", "weight"), [("0.1", 0.1), ("5", 5.0), ("much", "much")])
def test_a_label_is_the_weight_of_a_pod(label: str, weight: object) -> None:
    (entry,) = of_pod(pod(metadata={"labels": {"penstock/weight": label}}), None)
    assert entry["weight"] == weight
