"""The chart and the kustomizations: what helm and kubectl make of them is what Kubernetes takes."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from penstock.conf.load import load
from penstock.proxy import __version__

TOOLS = Path(os.environ.get("TEST_HELM", ".helm")).resolve()
HELM = TOOLS / "helm" / "helm"
pytestmark = pytest.mark.skipif(not HELM.exists(), reason="make lint-deploy has helm")

HERE: Final = Path(__file__).parent
CHART: Final = Path("deploy/chart/penstock")
SETS: Final = sorted(path.stem for path in (HERE / "values").glob("*.yaml"))
KUBERNETES: Final = ("1.33", "1.34", "1.35", "1.36", "1.37")
OVERLAYS: Final = ("base", "overlays/discovery", "overlays/two-replicas")

Object = dict[str, Any]


def run(*command: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, cwd=cwd
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def template(name: str, *options: str) -> str:
    values = HERE / "values" / f"{name}.yaml"
    namespace = ("--namespace", "llm")
    return run(HELM, "template", "p", CHART, "--values", values, *namespace, *options)


def objects(name: str, *options: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(template(name, *options)) if each]


def of_kind(made: list[Object], *kinds: str) -> list[Object]:
    return [each for each in made if each["kind"] in kinds]


def pod(made: list[Object]) -> Object:
    (found,) = of_kind(made, "Deployment", "StatefulSet")
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def validate(manifest: str, folder: Path) -> None:
    """Kubernetes' own schemas of each version, strictly; and those of Prometheus's operator."""
    path = folder / "manifest.yaml"
    path.write_text(manifest)
    command = (".venv/bin/kubernetes-validate", "--strict", "--quiet")
    for version in KUBERNETES:
        run(*command, "-k", version, path)
    made = [each for each in yaml.safe_load_all(manifest) if each]
    own = {each["kind"] for each in made if "monitoring.coreos.com" in each["apiVersion"]}
    script = ("--input-type=module", "--eval", (HERE / "crds.mjs").read_text())
    checked = run("node", *script, stdin=json.dumps(made), cwd=TOOLS)  # its packages are there
    assert set(checked.split()) == own


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_takes_what_the_chart_makes(name: str, tmp_path: Path) -> None:
    run(HELM, "lint", "--strict", CHART, "--values", HERE / "values" / f"{name}.yaml")
    validate(template(name), tmp_path)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_takes_what_a_kustomization_makes(overlay: str, tmp_path: Path) -> None:
    kubectl = TOOLS / "kubectl" / "kubectl"
    validate(run(kubectl, "kustomize", f"deploy/kustomize/{overlay}"), tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_penstock_takes_the_configuration_and_may_be_probed(name: str, tmp_path: Path) -> None:
    made = objects(name)
    (config,) = of_kind(made, "ConfigMap")
    path = tmp_path / "penstock.yaml"
    path.write_text(config["data"]["penstock.yaml"])
    given = [*pod(made)["containers"], *pod(made).get("initContainers", [])]
    (container,) = [each for each in given if each["name"] == "penstock"]
    for mount in container["volumeMounts"]:  # such as api_key_file: secrets/engine-key/key
        key = tmp_path / mount["mountPath"].removeprefix("/etc/penstock").strip("/") / "key"
        key.parent.mkdir(parents=True, exist_ok=True)
        key.write_text("a-key")
    variables = {each["name"]: each.get("value", "given") for each in container["env"]}
    settings = load(path, variables, {}).settings
    assert settings.admin.host == "0.0.0.0"
    drain = settings.drain
    assert pod(made)["terminationGracePeriodSeconds"] > (drain.grace_s or 0) + drain.timeout_s


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        ("defaults", {("llm", "discovery.k8s.io", "endpointslices")}),
        (
            "pods",
            {("llm", "", "pods"), ("search", "discovery.k8s.io", "endpointslices")},
        ),
        ("dns", set()),
        ("sidecar", set()),
    ],
)
def test_penstock_has_the_rights_that_its_sources_need_and_no_others(
    name: str, rights: set[tuple[str, str, str]]
) -> None:
    made, given = objects(name), set()
    for role in of_kind(made, "Role"):
        for rule in role["rules"]:
            assert rule["verbs"] == ["get", "list", "watch"]
            given |= {
                (role["metadata"]["namespace"], group, kind)
                for group in rule["apiGroups"]
                for kind in rule["resources"]
            }
    assert given == rights
    bound = {each["metadata"]["namespace"] for each in of_kind(made, "RoleBinding")}
    assert bound == {namespace for namespace, _, _ in rights}
    assert pod(made)["automountServiceAccountToken"] is bool(rights)


def test_another_configuration_starts_pods_anew_and_other_values_do_not() -> None:
    def checksum(*options: str) -> str:
        (found,) = of_kind(objects("defaults", *options), "Deployment")
        return str(found["spec"]["template"]["metadata"]["annotations"]["penstock/config"])

    assert checksum() == checksum("--set", "service.port=80")
    assert checksum() != checksum("--set", "config.drain.timeout_s=200")


def test_there_is_a_budget_of_disruptions_only_where_another_replica_goes_on() -> None:
    for name, count in (("defaults", 0), ("everything", 1), ("dns", 0), ("sidecar", 0)):
        assert len(of_kind(objects(name), "PodDisruptionBudget")) == count, name


def test_numbers_and_texts_are_durations() -> None:
    for drain in ("grace_s=0", "grace_s=500ms", "timeout_s=5m", "timeout_s=300s"):
        assert pod(objects("defaults", "--set", f"config.drain.{drain}"))


def test_labels_of_pods_cannot_replace_those_that_select_them() -> None:
    made = objects("defaults", "--set", "podLabels.app\\.kubernetes\\.io/name=mine")
    (found,) = of_kind(made, "Deployment")
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "penstock"


def test_an_own_token_and_account_are_used() -> None:
    made = objects("keys")
    assert not of_kind(made, "Secret", "ServiceAccount")
    (container,) = pod(made)["containers"]
    (token,) = [each for each in container["env"] if each["name"] == "PENSTOCK_ADMIN__TOKEN"]
    assert token["valueFrom"]["secretKeyRef"]["name"] == "own-token"
    assert pod(made)["serviceAccountName"] == "own-account"
    paths = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/etc/penstock/secrets/engine-key", "/etc/penstock/secrets/tls.chat"} < paths


@pytest.mark.parametrize("name", SETS)
def test_selectors_find_the_pods_and_not_the_test(name: str) -> None:
    made = objects(name)
    (workload,) = of_kind(made, "Deployment", "StatefulSet")
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    (tests,) = of_kind(made, "Pod")
    for each in of_kind(made, "Service"):
        assert each["spec"]["selector"].items() <= labels
        assert not each["spec"]["selector"].items() <= tests["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("replica=2", "replica"),
        ("config.pools=null", "pools"),
        ("terminationGracePeriodSeconds=300", "set it above 310"),
        ("config.drain.timeout_s=10m", "set it above 610"),
        ("sidecar.enabled=true", "set it above 620"),
        ("service.type=Ingress", "service"),
    ],
)
def test_wrong_values_are_told(option: str, problem: str) -> None:
    command = [str(HELM), "template", "p", str(CHART), "--set", option]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert problem in done.stderr


def test_the_chart_has_the_alerts_and_the_version_of_penstock() -> None:
    assert (CHART / "files/alerts.yml").read_text() == Path("deploy/alerts.yml").read_text()
    told = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert told["appVersion"] == told["version"] == __version__
