"""The settings: every key of the configuration, its default, its bounds and what it is for.

Settings are frozen values, valid by construction; unknown keys are errors. The descriptions
end up in the JSON Schema. Where values come from, and how errors are told to people, is not
known here: see `load`.
"""

from hashlib import sha256
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from conf.keypath import spell
from conf.kinds import (
    BackendUrl,
    BodyFields,
    Count,
    Digest,
    DurationS,
    FilePath,
    Headers,
    Host,
    Models,
    Name,
    OptionalWaitS,
    Origins,
    Policy,
    Port,
    ProxiedPaths,
    Secret,
    Weight,
    is_loopback,
)
from conf.repeated_names import repeated_names
from conf.units import plain, unit_of

# Of all tenants together: every one is compared with every request's (README, "Security").
TENANT_KEYS_MAX: Final = 1_024


class Section(BaseModel):
    """A mapping of the configuration."""

    # Strict: a coerced value is a slip that shows up later, as something else.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _without_unit(cls, value: object, info: ValidationInfo) -> object:
        """`2s` at a key in seconds is 2.0, `32MiB` at one in bytes 33554432."""
        unit = unit_of(info.field_name or "")
        if unit is None or not isinstance(value, str):
            return value
        number = plain(value, unit)
        return value if number is None else number


class ListenTlsSettings(Section):
    """The certificate of the data port."""

    cert_file: FilePath = Field(
        description="PEM file of the certificate, the intermediate ones after it; a relative path"
        " starts at the folder of the configuration file."
    )
    key_file: FilePath = Field(description="PEM file of its private key, not encrypted.")


class ListenSettings(Section):
    """The data port, where clients connect."""

    host: Host = Field(default="0.0.0.0", description="Address to listen on; `::` for IPv6.")  # noqa: S104 - a data port is for others to reach
    port: Port = Field(default=8080, description="TCP port; 0 takes any free one.")
    cors_origins: Origins = Field(
        default=(),
        description="Browser origins that may call the API (`*` for any); empty: no CORS.",
    )
    backend_header: bool = Field(
        default=True,
        description="Tell clients which backend answered, in `x-penstock-backend`.",
    )
    reuse_port: bool = Field(
        default=False,
        description="Share the port among several processes (SO_REUSEPORT), at best effort: one"
        " that ends resets connections that it has not accepted.",
    )
    tls: ListenTlsSettings | None = Field(
        default=None, description="Speak TLS (1.2 or newer) on the data port; null: plain HTTP."
    )


class AdminSettings(Section):
    """The admin port: probes, metrics, state of the fleet, the page."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address of the admin port. Off loopback it needs a token, and only /livez,"
        " /readyz and /metrics answer without it.",
    )
    port: Port = Field(
        default=9321, description="TCP port of the admin port; 0 takes any free one."
    )
    token_file: FilePath | None = Field(
        default=None,
        description="File that holds the admin token; a relative path starts at the folder of"
        " the configuration file.",
    )
    token: Secret | None = Field(
        default=None,
        validate_default=True,
        description="The admin token itself; prefer token_file or `${VAR}`.",
    )

    @field_validator("token")
    @classmethod
    def _off_loopback_there_is_one(
        cls, token: Secret | None, info: ValidationInfo
    ) -> Secret | None:
        host = info.data.get("host", "localhost")
        if token is None and info.data.get("token_file") is None and not is_loopback(host):
            raise ValueError(
                f"must be given, here or by token_file, while admin.host is {host}:"
                " only a loopback address does without"
            )
        return token


class BackendSettings(Section):
    """One serving engine."""

    name: Name = Field(description="Name in metrics, headers and commands; unique over all pools.")
    url: BackendUrl = Field(
        description="Scheme, host and port, such as http://10.0.0.1:8000; without a path."
    )
    weight: Weight = Field(default=1.0, description="Share of the work relative to the others.")


class PoolTlsSettings(Section):
    """Whom the pool's https backends are believed to be."""

    ca_file: FilePath = Field(
        description="PEM file of the certificates that may sign the backends', in place of the"
        " system's; a relative path starts at the folder of the configuration file."
    )


class PoolSettings(Section):
    """Backends that serve the same model and version."""

    name: Name = Field(description="Name of the pool in metrics; unique.")
    policy: Policy = Field(
        default="token_cost", description="How a backend is chosen for a request."
    )
    models: Models = Field(
        default=(),
        description="Models served; empty: whatever the backends list in /v1/models, and any"
        " model while that cannot be read.",
    )
    api_key_file: FilePath | None = Field(
        default=None,
        description="File that holds the key for the backends' probes and, if the client's is"
        " not forwarded, requests; a relative path starts at the folder of the configuration"
        " file.",
    )
    api_key: Secret | None = Field(
        default=None, description="The key itself; prefer api_key_file or `${VAR}`."
    )
    forward_authorization: Literal["client", "pool", "none"] | None = Field(
        default=None,
        description="Whose key a request carries to a backend. `client`: the client's own, the"
        " pool's for a client that sent none. `pool`: the pool's. `none`: nobody's. null: `client`"
        " without tenants, `pool` with them.",
    )
    tls: PoolTlsSettings | None = Field(
        default=None,
        description="How https backends are verified; null: by the system's certificates.",
    )
    backends: Annotated[tuple[BackendSettings, ...], Field(strict=False)] = Field(
        min_length=1, max_length=4096, description="The backends, at least one."
    )


class DeepProbeSettings(Section):
    """The deep probe: a completion of one token."""

    interval_s: DurationS = Field(default=10.0, description="Time between two deep probes.")
    timeout_s: DurationS = Field(
        default=4.0, description="A probe without an answer by then has failed."
    )
    fall: Count = Field(default=2, description="Failures in a row that eject a backend.")


class HealthSettings(Section):
    """When a backend is taken out and put back."""

    interval_s: DurationS = Field(default=2.0, description="Time between two probes of a backend.")
    timeout_s: DurationS = Field(
        default=1.0, description="A probe without an answer by then has failed."
    )
    fall: Count = Field(default=3, description="Failures in a row that eject a backend.")
    rise: Count = Field(default=2, description="Passes in a row that put a backend back.")
    slow_start_s: OptionalWaitS = Field(
        default=30.0,
        description="A backend that comes back has 10 % of what a ready one has in flight at first"
        " (one request at any time), and as much as it after this time.",
    )
    deep: DeepProbeSettings = DeepProbeSettings()


class TimeoutSettings(Section):
    """How long penstock waits for backends and for clients."""

    connect_s: DurationS = Field(default=1.0, description="To connect to a backend.")
    first_byte_s: DurationS = Field(default=120.0, description="For the first byte of an answer.")
    first_byte_s_per_1k_tokens: OptionalWaitS = Field(
        default=1.0, description="Added to first_byte_s for each 1,000 prompt tokens."
    )
    total_s: DurationS | None = Field(
        default=None, description="For a whole request; null: as long as it makes progress."
    )
    idle_s: DurationS = Field(default=60.0, description="Between two bytes of an answer.")
    hold_s: DurationS = Field(
        default=20.0,
        description="A stream's status line waits this long for the first token, so that a"
        " failing backend can be replaced unseen; then it is sent, with pings.",
    )
    client_head_s: DurationS = Field(
        default=10.0, description="For a client to send its request head."
    )
    client_body_s: DurationS = Field(
        default=60.0, description="For a client to send its request body."
    )
    client_idle_s: DurationS = Field(
        default=75.0,
        description="A kept-alive client connection without a request is closed after this.",
    )
    client_stall_s: DurationS = Field(
        default=30.0, description="A client that stops reading its answer is dropped after this."
    )


class LimitSettings(Section):
    """Bounds on what clients may make penstock hold."""

    head_bytes: int = Field(
        default=65_536, ge=1024, le=1_048_576, description="Of one request head."
    )
    body_bytes: int = Field(
        default=33_554_432, ge=1024, le=2**32, description="Of one request body."
    )
    bodies_bytes: int = Field(
        default=1_073_741_824,
        ge=1024,
        le=2**40,
        validate_default=True,
        description="Of all request bodies held at a time.",
    )
    connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Client connections open; each takes up to three file descriptors.",
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=16_777_216,
        le=2**44,
        description="Of the whole process: from 90 % of it new requests are refused. null: what"
        " the control group allows (memory.max), if it sets a limit.",
    )

    # Of the field and not of the whole: a slip at another key must not hide this one.
    @field_validator("bodies_bytes")
    @classmethod
    def _one_body_fits(cls, bodies_bytes: int, info: ValidationInfo) -> int:
        body_bytes = info.data.get("body_bytes", 0)
        if body_bytes > bodies_bytes:
            raise ValueError(
                f"must be at least body_bytes ({body_bytes}), or no such body could be held"
            )
        return bodies_bytes


class AffinitySettings(Section):
    """What tells that requests belong to one session. The first one present counts."""

    headers: Headers = Field(
        default=("x-session-id",), description="Request headers, in this order."
    )
    body_fields: BodyFields = Field(
        default=("prompt_cache_key", "user"), description="Then top-level keys of the body."
    )
    strict: bool = Field(
        default=False,
        description="With the policy token_cost: a session stays at its backend as long as that can"
        " serve it and costs at most 10 s more than another; false: what its prefix there saves is"
        " all that holds it.",
    )


class TokensSettings(Section):
    """How prompt tokens are counted before a backend does."""

    estimator: Literal["bytes", "tiktoken", "huggingface"] = Field(
        default="bytes",
        description="`bytes`: kinds of bytes times costs learnt from what the backends report."
        " The others count exactly, in a thread, which costs milliseconds a request.",
    )
    file: FilePath | None = Field(
        default=None,
        validate_default=True,
        description="For tiktoken its ranks file, for huggingface a tokenizer.json; a relative"
        " path starts at the folder of the configuration file.",
    )
    encoding: Literal["cl100k_base", "o200k_base"] = Field(
        default="cl100k_base", description="How tiktoken cuts text before it merges."
    )

    @field_validator("file")
    @classmethod
    def _a_file_is_given_where_one_is_used(
        cls, file: str | None, info: ValidationInfo
    ) -> str | None:
        estimator = info.data.get("estimator")
        if estimator == "bytes" and file is not None:
            raise ValueError("the estimator `bytes` takes no file: name another, or leave it out")
        if estimator not in ("bytes", None) and file is None:
            raise ValueError(f"the estimator `{estimator}` needs file, the tokenizer's")
        return file


class TenantKeySettings(Section):
    """One key of a tenant, given in one of three ways."""

    key: Secret | None = Field(default=None, description="The key itself, as `${VAR}`.")
    key_file: FilePath | None = Field(
        default=None,
        description="File that holds the key; a relative path starts at the folder of the"
        " configuration file.",
    )
    key_sha256: Digest | None = Field(
        default=None, description="SHA-256 of the key in hexadecimal; the key is then not here."
    )

    @model_validator(mode="after")
    def _is_given_once(self) -> Self:
        given = self.key is not None or self.key_file is not None
        if given == (self.key_sha256 is not None):
            raise ValueError("give one of key, key_file and key_sha256")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.key_sha256 is not None:
            return bytes.fromhex(self.key_sha256.get_secret_value())
        assert self.key is not None, "a key_file that could not be read is an error"
        return sha256(self.key.get_secret_value().encode()).digest()


class TenantSettings(Section):
    """Somebody who may ask."""

    name: Name = Field(description="Name of the tenant in the access log; unique.")
    keys: Annotated[tuple[TenantKeySettings, ...], Field(strict=False)] = Field(
        min_length=1,
        max_length=64,
        description="The tenant's API keys; two while one replaces the other.",
    )


def _within_the_limit_of_keys(
    tenants: tuple[TenantSettings, ...],
) -> tuple[TenantSettings, ...]:
    keys = sum(len(tenant.keys) for tenant in tenants)
    if keys > TENANT_KEYS_MAX:
        raise ValueError(f"all tenants together may have {TENANT_KEYS_MAX} keys, not {keys}")
    return tenants


class DrainSettings(Section):
    """What happens between SIGTERM and the exit."""

    grace_s: OptionalWaitS = Field(
        default=5.0,
        description="Readiness answers 503, new requests are still taken: the time a load"
        " balancer needs to notice.",
    )
    timeout_s: DurationS = Field(
        default=300.0, description="Then running streams may take this long."
    )


class LogSettings(Section):
    """What is written to the log."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least serious level that is logged."
    )
    access: bool = Field(default=True, description="Log one line per request.")


class Settings(Section):
    """The configuration of penstock."""

    listen: ListenSettings = ListenSettings()
    admin: AdminSettings = AdminSettings()
    pools: Annotated[tuple[PoolSettings, ...], Field(strict=False)] = Field(
        min_length=1, max_length=256, description="The fleet: one pool per model and version."
    )
    health: HealthSettings = HealthSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    limits: LimitSettings = LimitSettings()
    affinity: AffinitySettings = AffinitySettings()
    tokens: TokensSettings = TokensSettings()
    tenants: Annotated[
        tuple[TenantSettings, ...], Field(strict=False), AfterValidator(_within_the_limit_of_keys)
    ] = Field(
        default=(),
        max_length=TENANT_KEYS_MAX,
        description="Who may ask, each by keys of its own; empty: nobody is asked for a key.",
    )
    drain: DrainSettings = DrainSettings()
    paths: ProxiedPaths = Field(
        default=(),
        description="Further proxied paths, each a method and an exact path such as"
        " `GET /tokenizer_info`; sent to any ready backend of the first pool.",
    )
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for path, problem in repeated_names(self.model_dump(include={"pools", "tenants"})):
            raise PydanticCustomError(
                "repeated_name", "{problem}", {"problem": f"{spell(path)}: {problem}"}
            )
        return self


__all__ = [
    "AdminSettings",
    "AffinitySettings",
    "BackendSettings",
    "DeepProbeSettings",
    "DrainSettings",
    "HealthSettings",
    "LimitSettings",
    "ListenSettings",
    "ListenTlsSettings",
    "LogSettings",
    "PoolSettings",
    "PoolTlsSettings",
    "Settings",
    "TenantKeySettings",
    "TenantSettings",
    "TimeoutSettings",
    "TokensSettings",
]
