"""The files that deploy penstock: they load, fit each other, and leave a drain its time."""

import re
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import proxy
from penstock.bench.sim.server import VERSION
from penstock.conf.load import load
from penstock.conf.settings import Settings
from penstock.proxy.commands.admin_client import DEFAULT_PORT, token_of
from penstock.proxy.process.descriptors import needed
from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.wire.sockets import BACKLOG

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
MANIFESTS = {"standalone": "kustomize/base/penstock.yaml", "sidecar": "kubernetes/sidecar.yaml"}
# What the admin port answers without a token, on any address.
OPEN_PATHS = {"/livez", "/readyz", "/metrics"}
# What a drain may take after its timeout: last words, closing, the interpreter's exit.
LEAVING_S = 5.0
MIB = 2**20


def manifest(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / MANIFESTS[name]).read_text()))


def one(name: str, *kinds: str) -> dict[str, Any]:
    (found,) = (each for each in manifest(name) if each["kind"] in kinds)
    return found


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(name, "Deployment", "StatefulSet")["spec"]["template"]["spec"]
    return spec


def penstock(name: str) -> dict[str, Any]:
    """The container that runs penstock."""
    spec = pod(name)
    containers: list[dict[str, Any]] = [*spec["containers"], *spec.get("initContainers", [])]
    (found,) = (each for each in containers if each["name"] == "penstock")
    return found


def environment(name: str) -> dict[str, str]:
    """The variables that penstock's container gets, each of some value."""
    if name == "compose":
        return dict.fromkeys(COMPOSE["services"]["penstock"]["environment"], "given")
    return {each["name"]: "given" for each in penstock(name)["env"]}


def settings(name: str, folder: Path) -> Settings:
    """What a manifest's ConfigMap, or compose's file, configures."""
    if name == "compose":
        return load(DEPLOY / "penstock.yaml", environment(name), {}).settings
    path = folder / "penstock.yaml"
    path.write_text(one(name, "ConfigMap")["data"]["penstock.yaml"])
    return load(path, environment(name), {}).settings


def unit(name: str = "penstock.service") -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys are as written
    parser.read(DEPLOY / name)
    return parser


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("name", ["compose", *MANIFESTS])
def test_probes_and_prometheus_can_reach_the_admin_port(name: str, tmp_path: Path) -> None:
    admin = settings(name, tmp_path).admin
    assert admin.host == "0.0.0.0"
    assert admin.token is not None


@pytest.mark.parametrize("name", ["compose", *MANIFESTS])
def test_commands_in_the_container_have_the_proxys_token(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl exec … penstock status` runs in the same environment."""
    token = settings(name, tmp_path).admin.token
    assert token is not None
    for variable, value in environment(name).items():
        monkeypatch.setenv(variable, value)
    assert token_of(None) == token.get_secret_value()


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_token_comes_from_a_secret_that_the_manifest_tells_to_make(name: str) -> None:
    (variable,) = penstock(name)["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    head = (DEPLOY / MANIFESTS[name]).read_text().partition("apiVersion")[0]
    assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in head


@pytest.mark.parametrize("name", ["compose", *MANIFESTS, "systemd"])
def test_the_drain_ends_before_the_patience_of_who_stops_it(name: str, tmp_path: Path) -> None:
    if name == "systemd":
        drain = Settings.model_fields["drain"].default
        patience_s = seconds(unit()["Service"]["TimeoutStopSec"])
    elif name == "compose":
        drain = settings(name, tmp_path).drain
        patience_s = seconds(COMPOSE["services"]["penstock"]["stop_grace_period"])
    else:
        drain = settings(name, tmp_path).drain
        patience_s = pod(name)["terminationGracePeriodSeconds"]
    if name == "sidecar":  # a sidecar is told after the containers beside it are gone
        (vllm,) = pod(name)["containers"]
        patience_s -= vllm["lifecycle"]["preStop"]["sleep"]["seconds"]
        (shutdown,) = (each for each in vllm["args"] if each.startswith("--shutdown-timeout="))
        patience_s -= seconds(shutdown.partition("=")[2])
    assert drain.grace_s + drain.timeout_s + LEAVING_S <= patience_s


@pytest.mark.parametrize("name", MANIFESTS)
def test_probes_ask_the_admin_port_what_it_answers_without_a_token(name: str) -> None:
    container = penstock(name)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": 8080, "admin": 9321}
    probes = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")
    }
    assert {probe["port"] for probe in probes.values()} == {"admin"}
    assert {probe["path"] for probe in probes.values()} <= OPEN_PATHS
    # Not ready is no reason to restart, and a sidecar's start must not wait for its vLLM.
    assert probes["liveness"]["path"] == probes["startup"]["path"] == "/livez"
    assert probes["readiness"]["path"] == "/readyz"


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_keep_to_the_restricted_profile(name: str) -> None:
    container = penstock(name)
    context = pod(name).get("securityContext", {}) | container["securityContext"]
    assert context == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "USER 65532:65532\n" in DOCKERFILE


@pytest.mark.parametrize("name", MANIFESTS)
def test_memory_holds_all_bodies_and_the_proxy(name: str, tmp_path: Path) -> None:
    resources = penstock(name)["resources"]
    limit_bytes = int(resources["limits"]["memory"].removesuffix("Mi")) * MIB
    # 82 MiB were measured with 2,000 streams (bench/RESULTS.md).
    assert settings(name, tmp_path).limits.bodies_bytes + 128 * MIB <= limit_bytes
    assert "cpu" not in resources["limits"]


def test_each_sidecar_knows_every_server(tmp_path: Path) -> None:
    stateful = one("sidecar", "StatefulSet")
    names = [f"{stateful['metadata']['name']}-{i}" for i in range(stateful["spec"]["replicas"])]
    urls = [f"http://{name}.{stateful['spec']['serviceName']}:8000" for name in names]
    (pool,) = settings("sidecar", tmp_path).pools
    assert [(each.name, each.url) for each in pool.backends] == list(zip(names, urls, strict=True))


@pytest.mark.parametrize("name", MANIFESTS)
def test_selectors_find_the_pods(name: str) -> None:
    workload = one(name, "Deployment", "StatefulSet")["spec"]
    labels = workload["template"]["metadata"]["labels"]
    selectors = [workload["selector"]["matchLabels"]]
    services = [each for each in manifest(name) if each["kind"] == "Service"]
    selectors += [each["spec"]["selector"] for each in services]
    assert len(selectors) >= 2
    assert all(selector.items() <= labels.items() for selector in selectors)


def default(path: str) -> Any:
    """The default of a key."""
    node: Any = {key: field.default for key, field in Settings.model_fields.items()}
    section, *rest = path.split(".")
    node = node[section]
    for key in rest:
        node = getattr(node, key)
    return node


TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "Dockerfile",
        *sorted(path for path in DEPLOY.rglob("*") if path.is_file()),
    ]
}


@pytest.mark.parametrize("name", TEXTS)
def test_numbers_beside_a_key_are_its_default(name: str) -> None:
    """Such as `timeouts.hold_s` (20 s), and drain.grace_s + drain.timeout_s (5 + 300)."""
    text = TEXTS[name]
    for key, number in re.findall(r"\b([a-z]+(?:\.[a-z_]+)+)`? \(([\d,.]+)(?: s)?[),;]", text):
        assert float(number.replace(",", "")) == default(key), key
    for grace, timeout in re.findall(r"\((\d+) \+ (\d+)(?: s)? by default", text):
        assert (float(grace), float(timeout)) == (
            default("drain.grace_s"),
            default("drain.timeout_s"),
        )
    stop_s = default("drain.grace_s") + default("drain.timeout_s") + LEAVING_S
    for patience_s in re.findall(r"--stop-timeout (\d+)", text):
        assert float(patience_s) >= stop_s


def test_ports_are_the_defaults_everywhere() -> None:
    data, admin = default("listen.port"), default("admin.port")
    assert COMPOSE["services"]["penstock"]["ports"] == [
        f"127.0.0.1:{data}:{data}",
        f"127.0.0.1:{admin}:{admin}",
    ]
    assert f"EXPOSE {data} {admin}\n" in DOCKERFILE
    assert f"'PENSTOCK_ADMIN__PORT', '{admin}'" in DOCKERFILE
    assert f"{admin}" in (DEPLOY / "prometheus.yml").read_text()
    for name in MANIFESTS:
        text = (DEPLOY / MANIFESTS[name]).read_text()
        assert f'prometheus.io/port: "{admin}"' in text
    assert str(admin) == DEFAULT_PORT


def test_alerts_go_by_the_name_of_the_scraped_job() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    named = {name for text in TEXTS.values() for name in re.findall(r'job="(\w+)"', text)}
    assert named - {"other"} == {job["job_name"]}


def test_the_servers_are_the_version_that_is_simulated() -> None:
    (vllm,) = pod("sidecar")["containers"]
    assert vllm["image"].endswith(f":v{VERSION}")


def test_files_suffice_for_every_connection() -> None:
    connections = default("limits.connections")
    for files in (
        int(unit()["Service"]["LimitNOFILE"]),
        COMPOSE["services"]["penstock"]["ulimits"]["nofile"],
    ):
        assert files > needed(connections, backends=1_000)


def test_a_configuration_error_is_no_reason_to_start_again() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"


def images() -> Iterator[str]:
    yield from re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    yield from (each["image"] for each in COMPOSE["services"].values())
    for name in MANIFESTS:
        spec = pod(name)
        yield from (
            each["image"] for each in [*spec["containers"], *spec.get("initContainers", [])]
        )


@pytest.mark.parametrize("image", sorted(set(images())))
def test_images_are_pinned_to_a_patch_version(image: str) -> None:
    assert re.search(r":v?\d+\.\d+\.\d+(-|$)", image)
    if image.startswith("penstock:"):
        assert image == f"penstock:{proxy.__version__}"


def test_the_image_tells_the_version_it_holds() -> None:
    assert f'org.opencontainers.image.version="{proxy.__version__}"' in DOCKERFILE
    for text in (DOCKERFILE, (ROOT / "docs" / "deploying.md").read_text()):
        assert set(re.findall(r"penstock:(\d+\.[\w.]+)", text)) == {proxy.__version__}


def test_the_build_looks_at_what_it_installed() -> None:
    """Without -I, Python would import the sources in the working directory."""
    (flags,) = re.findall(r"/app/bin/python (.*)-c .*proxy\.compiled\(\)", DOCKERFILE)
    assert "-I" in flags.split()


def test_both_stages_have_the_same_interpreter() -> None:
    bases = re.findall(r"^FROM python:([\d.]+)(?:-slim)?-(\w+)", DOCKERFILE, re.MULTILINE)
    assert len(bases) == 2
    assert bases[0] == bases[1]


def test_the_build_sees_every_package_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (package,) = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    packages = {package, *(link.name for link in (ROOT / package).iterdir() if link.is_symlink())}
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert allowed == packages | {"LICENSE", "README.md", "pyproject.toml", "hatch_build.py"}
    assert ignore[ignore.index("*") + 1].startswith("!")


def test_no_dependency_brings_a_package_named_as_ours() -> None:
    assert set(packages_distributions().get("penstock", ["penstock"])) == {"penstock"}


def test_alerts_name_only_metrics_and_labels_that_exist() -> None:
    labels: dict[str, set[str]] = {"up": set()}
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    for name, family in FAMILIES.items():
        for ending in endings.get(family.kind, ("",)):
            more = {"le"} if ending == "_bucket" else set()
            labels[f"penstock_{name}{ending}"] = {*family.labels, *more}
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        text = f"{rule['expr']} {rule['annotations']['description']}"
        named = set(re.findall(r"\b(?:penstock_\w+|up\b)", text))
        assert named, rule["alert"]
        assert named <= labels.keys(), rule["alert"]
        used = set(re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"]))
        used = {label.strip() for each in used for label in each.split(",")}
        used |= set(re.findall(r"(\w+)(?:=|=~|!=|!~)\"", rule["expr"]))
        known = set().union(*(labels[name] for name in named)) | {"instance", "job"}
        assert used <= known, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}


def test_the_socket_is_the_data_port_as_it_is_without() -> None:
    held = unit("penstock.socket")["Socket"]
    listen = Settings.model_fields["listen"].default
    assert held["ListenStream"] == f"{listen.host}:{listen.port}"
    assert held["FileDescriptorName"] == "data"
    assert int(held["Backlog"]) == BACKLOG
    # By default it is for the service of the same name, one for all connections.
    assert not {"Service", "Accept"} & set(held)
