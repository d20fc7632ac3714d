"""Where a pod finds the API server of its cluster."""

from pathlib import Path

import pytest

from penstock.proxy.discovery.cluster import Cluster, NoCluster


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.96.0.1", "https://10.96.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")],
)
def test_a_pod_is_told_the_address(host: str, url: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
    assert Cluster(None, environ).url == url
    assert Cluster("http://127.0.0.1:8001", environ).url == "http://127.0.0.1:8001"


def test_what_is_no_pod_is_told_what_to_do() -> None:
    with pytest.raises(NoCluster, match="give api_url"):
        _ = Cluster(None, {}).url


def test_the_namespace_is_that_of_the_pod(tmp_path: Path) -> None:
    cluster = Cluster(None, {}, tmp_path)
    with pytest.raises(NoCluster, match="no namespace is given or mounted: No such file"):
        cluster.namespace()
    (tmp_path / "namespace").write_text("llm\n")
    assert cluster.namespace() == "llm"
