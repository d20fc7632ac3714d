"""The settings of pools and their backends."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from penstock.conf.discover import DiscoverSettings
from penstock.conf.kinds import (
    RELATIVE,
    Amount,
    BackendUrl,
    FilePath,
    MetricsUrl,
    Models,
    Name,
    Policy,
    Price,
    Secret,
    Section,
    Weight,
)


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
        max_length=8192,
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
