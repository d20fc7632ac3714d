"""The settings of pools, of their backends, and of where more backends are found."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from penstock.conf.kinds import (
    RELATIVE,
    Amount,
    BackendUrl,
    DnsName,
    FilePath,
    MetricsUrl,
    Models,
    Name,
    Networks,
    Policy,
    PortNumber,
    Price,
    Secret,
    Section,
    Selector,
    Server,
    Weight,
)


class KubernetesSettings(Section):
    """Which pods of a cluster are backends: those of a Service, or those with some labels."""

    namespace: Name | None = Field(
        default=None, description="Namespace of the Service or the pods. null: penstock's own."
    )
    service: Name | None = Field(
        default=None,
        description="Name of a Service: its endpoints are the backends. The role needs get, list"
        " and watch on endpointslices of discovery.k8s.io. null: pods by `selector`.",
    )
    selector: Selector | None = Field(
        default=None,
        description="Labels of the pods, such as `app=vllm,model=llama`. The role needs get, list"
        " and watch on pods. The label penstock/weight is a pod's weight. null: a Service.",
    )
    port: PortNumber | Name | None = Field(
        default=None,
        description="Number or name of the port. null: the first one of the Service or the pod.",
    )
    api_url: BackendUrl | None = Field(
        default=None,
        description="The API server, such as http://127.0.0.1:8001 of `kubectl proxy`. null: the"
        " one of penstock's own cluster.",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if (self.service is None) == (self.selector is None):
            raise ValueError("give either service or selector")
        return self


class DiscoverSettings(Section):
    """Where the backends of a pool are found. Those that are listed stay beside them."""

    file: FilePath | None = Field(
        default=None,
        description="YAML or JSON file with a list of backends, or of Prometheus's `targets`. It is"
        " looked at each second. null: no file." + RELATIVE,
    )
    dns: DnsName | None = Field(
        default=None,
        description="Name of which every address is a backend (IPv4, or IPv6 if it has no other),"
        " with a port, such as vllm.llm.svc.cluster.local:8000; or whose SRV records name them,"
        " such as _http._tcp.vllm.llm.svc.cluster.local. It must be a full name: no search domain"
        " is added."
        " https:// before the name selects https. null: none.",
    )
    kubernetes: KubernetesSettings | None = Field(
        default=None, description="Pods of a Kubernetes cluster. null: none."
    )
    resolver: Server | None = Field(
        default=None,
        description="DNS server that is asked, such as 127.0.0.1:8600. null: the system's.",
    )
    allow: Networks = Field(
        default=(),
        description="Networks in which found backends may be, such as 10.0.0.0/8. An empty list:"
        " any address but those of this machine and link-local ones.",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if [self.file, self.dns, self.kubernetes].count(None) != 2:
            raise ValueError("name one source: file, dns or kubernetes")
        if self.resolver is not None and self.dns is None:
            raise ValueError("resolver is for dns only: remove it")
        return self


class BackendSettings(Section):
    """One vLLM server."""

    name: Name = Field(
        description="Name in metrics, headers and commands. No two backends share one."
    )
    url: BackendUrl = Field(
        description="Scheme, host and port, such as http://10.0.0.1:8000. Everything is asked below"
        " its path if it has one, such as http://ingress/llama; without /v1."
    )
    weight: Weight = Field(
        default=1.0,
        description="Share of the work. Leave it at 1 with `token_cost`, which measures speeds.",
    )

    api_key_file: FilePath | None = Field(
        default=None,
        description="File with this backend's own API key, in place of the pool's." + RELATIVE,
    )
    api_key: Secret | None = Field(
        default=None, description="That key itself. Prefer `api_key_file` or `${VAR}`."
    )

    max_requests: Amount | None = Field(
        default=None,
        description="Most requests of this proxy at the backend at the same time. Others wait or go"
        " elsewhere; without admission they get 429. null: no limit.",
    )
    gpu_metrics_url: MetricsUrl | None = Field(
        default=None,
        description="DCGM exporter of the backend's GPUs, such as http://10.0.0.1:9400/metrics. All"
        " GPUs that it tells of count as the backend's. It gets no key; with https the pool's `tls`"
        " counts. null: none.",
    )


class PoolTlsSettings(Section):
    """Which certificates the pool's https backends must have, and which one they are shown."""

    ca_file: FilePath | None = Field(
        default=None,
        description="PEM file with the certificate authorities that may sign the backends'"
        " certificates. They replace those of the system. null: the system's." + RELATIVE,
    )
    cert_file: FilePath | None = Field(
        default=None,
        description="PEM file with the certificate that penstock shows to the backends."
        " Intermediate certificates follow it in the same file. null: none." + RELATIVE,
    )
    key_file: FilePath | None = Field(
        default=None,
        description="PEM file with its private key, not encrypted." + RELATIVE,
    )

    @model_validator(mode="after")
    def _has_both_or_neither(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("give both cert_file and key_file, or neither")
        return self


class PoolSettings(Section):
    """Backends that serve the same model and version."""

    name: Name = Field(description="Name in metrics. No two pools share one.")
    policy: Policy = Field(
        default="token_cost", description="How a backend is chosen for a request."
    )
    models: Models = Field(
        default=(),
        description="Models that clients may ask for. An empty list means: the models that the"
        " backends list in /v1/models, or any model while that list cannot be read.",
    )
    api_key_file: FilePath | None = Field(
        default=None,
        description="File with the backends' API key. Probes use it. Requests use it when the"
        " client's key is not forwarded." + RELATIVE,
    )
    api_key: Secret | None = Field(
        default=None, description="The backends' API key itself. Prefer `api_key_file` or `${VAR}`."
    )
    forward_authorization: Literal["client", "pool", "none"] | None = Field(
        default=None,
        description="Which key a request carries to a backend. `client`: the client's key, or"
        " the pool's key if the client sent none. `pool`: the pool's key. `none`: no"
        " key. null: `pool` if `tenants` are listed, otherwise `client`.",
    )
    tls: PoolTlsSettings | None = Field(
        default=None,
        description="TLS to https backends. null: certificates that the system accepts, and none"
        " is shown.",
    )
    max_requests: Amount | None = Field(
        default=None,
        description="Most requests of this proxy in the pool at the same time. Others wait; without"
        " admission they get 429. null: no limit.",
    )
    admission: bool = Field(
        default=True,
        description="Whether requests wait in the proxy for this pool. false: each is sent at once,"
        " and waits in the engine.",
    )
    cost_per_hour: Price | None = Field(
        default=None,
        description="What each backend of the pool costs in an hour, in any currency, also while it"
        " is idle. For metrics only. null: unknown.",
    )
    discover: DiscoverSettings | None = Field(
        default=None,
        description="Where further backends of the pool are found. null: only `backends` are.",
    )
    backends: Annotated[tuple[BackendSettings, ...], Field(strict=False)] = Field(
        default=(),
        max_length=4096,
        validate_default=True,
        description="The backends of the pool. Without `discover` there must be one.",
    )

    @field_validator("backends")
    @classmethod
    def _are_listed_or_found(
        cls, backends: tuple[BackendSettings, ...], info: ValidationInfo
    ) -> tuple[BackendSettings, ...]:
        if not backends and info.data.get("discover", "refused") is None:
            raise ValueError("must have at least 1 entry, unless `discover` finds some")
        return backends
