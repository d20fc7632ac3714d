"""The settings: every key of the configuration, its default, its limits and its purpose.

Settings are frozen values and always valid. Unknown keys are errors. The descriptions become part
of the JSON Schema. This module does not know where values come from or how errors are shown: see
`load`.
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

from penstock.conf.keypath import spell
from penstock.conf.kinds import (
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
from penstock.conf.repeated_names import repeated_names
from penstock.conf.units import plain, unit_of

# The limit for all tenants together: every key is compared for each request (docs/security.md).
TENANT_KEYS_MAX: Final = 1_024
RELATIVE: Final = " A relative path starts at the folder of the configuration file."


class Section(BaseModel):
    """A mapping of the configuration."""

    # Strict: a converted value would be a mistake that shows up later as something else.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _without_unit(cls, value: object, info: ValidationInfo) -> object:
        """Convert `2s` at a key in seconds to 2.0, and `32MiB` at one in bytes to 33554432."""
        unit = unit_of(info.field_name or "")
        if unit is None or not isinstance(value, str):
            return value
        number = plain(value, unit)
        return value if number is None else number


class ListenTlsSettings(Section):
    """The TLS certificate of the data port."""

    cert_file: FilePath = Field(
        description="PEM file with the certificate. Intermediate certificates follow it in the"
        " same file." + RELATIVE
    )
    key_file: FilePath = Field(description="PEM file with the private key, not encrypted.")


class ListenSettings(Section):
    """The data port, where clients connect."""

    host: Host = Field(default="0.0.0.0", description="Address to listen on. `::` listens on IPv6.")  # noqa: S104 - a data port is for others to reach
    port: Port = Field(default=8080, description="TCP port. 0 takes any free port.")
    cors_origins: Origins = Field(
        default=(),
        description="Web origins whose pages may call the API from a browser. `*` allows every"
        " origin. An empty list switches CORS off.",
    )
    backend_header: bool = Field(
        default=True,
        description="Whether answers name their backend in the header `x-penstock-backend`.",
    )
    reuse_port: bool = Field(
        default=False,
        description="Whether several processes may share the port (SO_REUSEPORT). When one of"
        " them stops, the kernel resets connections that it has not accepted yet.",
    )
    tls: ListenTlsSettings | None = Field(
        default=None, description="Speak TLS 1.2 or newer. null: plain HTTP."
    )


class AdminSettings(Section):
    """The admin port: probes, metrics and the state of the fleet."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address of the admin port. An address other than loopback needs a token. /,"
        " /livez, /readyz and /metrics never ask for it.",
    )
    port: Port = Field(default=9321, description="TCP port. 0 takes any free port.")
    token_file: FilePath | None = Field(
        default=None,
        description="File with the admin token." + RELATIVE,
    )
    token: Secret | None = Field(
        default=None,
        validate_default=True,
        description="The admin token itself. Prefer `token_file` or `${VAR}`.",
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
                " only a loopback address needs none"
            )
        return token


class BackendSettings(Section):
    """One vLLM server."""

    name: Name = Field(
        description="Name in metrics, headers and commands. No two backends share one."
    )
    url: BackendUrl = Field(
        description="Scheme, host and port, such as http://10.0.0.1:8000. No path."
    )
    weight: Weight = Field(
        default=1.0,
        description="Share of the work. Leave it at 1 with `token_cost`, which measures speeds.",
    )


class PoolTlsSettings(Section):
    """Which certificates are accepted from the pool's https backends."""

    ca_file: FilePath = Field(
        description="PEM file with the certificate authorities that may sign the backends'"
        " certificates. They replace those of the system." + RELATIVE
    )


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
        description="Which certificates https backends may have. null: what the system accepts.",
    )
    backends: Annotated[tuple[BackendSettings, ...], Field(strict=False)] = Field(
        min_length=1, max_length=4096, description="The backends of the pool."
    )


class DeepProbeSettings(Section):
    """The deep probe: it asks a backend for one token."""

    interval_s: DurationS = Field(default=10.0, description="Time between two deep probes.")
    timeout_s: DurationS = Field(
        default=4.0,
        description="Time that a deep probe may take before it counts as failed. Raise it if a"
        " busy engine needs longer for its first token.",
    )
    fall: Count = Field(default=2, description="Failed deep probes in a row that eject a backend.")


class HealthSettings(Section):
    """When a backend is ejected and when it returns."""

    interval_s: DurationS = Field(default=2.0, description="Time between two probes of a backend.")
    timeout_s: DurationS = Field(default=1.0, description="A probe that takes longer has failed.")
    fall: Count = Field(default=3, description="Failed probes in a row that eject a backend.")
    rise: Count = Field(
        default=2,
        description="Passed probes in a row that let an ejected backend return. A deep probe"
        " must pass, too.",
    )
    slow_start_s: OptionalWaitS = Field(
        default=30.0,
        description="Time over which a backend that returns gets its full share of requests. It"
        " starts with 10 % of the requests in flight of a ready backend, but always"
        " at least one.",
    )
    deep: DeepProbeSettings = DeepProbeSettings()


class TimeoutSettings(Section):
    """How long penstock waits for backends and for clients."""

    connect_s: DurationS = Field(default=1.0, description="Time to connect to a backend.")
    first_byte_s: DurationS = Field(
        default=120.0,
        description="Time until the first byte of an answer. It must cover queueing and prefill."
        " An answer that is not streamed gets 0.1 s more for each token that it may"
        " have.",
    )
    first_byte_s_per_1k_tokens: OptionalWaitS = Field(
        default=1.0, description="Time added to `first_byte_s` for each 1,000 prompt tokens."
    )
    total_s: DurationS | None = Field(
        default=None, description="Time for a whole request. null: no limit."
    )
    idle_s: DurationS = Field(
        default=60.0, description="Longest pause between two bytes of an answer."
    )
    hold_s: DurationS = Field(
        default=20.0,
        description="How long the status line of a stream waits for the first token. Until then"
        " a failing backend is replaced and the client does not notice. Afterwards"
        " status 200 is sent, followed by pings.",
    )
    client_head_s: DurationS = Field(
        default=10.0, description="Time for a client to send a request's head."
    )
    client_body_s: DurationS = Field(
        default=60.0,
        description="Time for a client to send the body of a request. One second is added for"
        " each 4 KiB.",
    )
    client_idle_s: DurationS = Field(
        default=75.0,
        description="A client connection without a request is closed after this time. Choose"
        " more than the idle timeout of a load balancer in front.",
    )
    client_stall_s: DurationS = Field(
        default=30.0,
        description="A client that stops reading its answer is disconnected after this time.",
    )


class LimitSettings(Section):
    """How much clients may make penstock hold."""

    head_bytes: int = Field(
        default=65_536, ge=1024, le=1_048_576, description="Largest head of a request."
    )
    body_bytes: int = Field(
        default=33_554_432, ge=1024, le=2**32, description="Largest body of a request."
    )
    bodies_bytes: int = Field(
        default=1_073_741_824,
        ge=1024,
        le=2**40,
        validate_default=True,
        description="Largest sum of all request bodies held at the same time. At least"
        " `body_bytes`. With a memory limit, it is a quarter of that at most.",
    )
    connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most client connections open at the same time. Each takes up to three file"
        " descriptors.",
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=16_777_216,
        le=2**44,
        description="Memory of the whole process. From 90 % of it on, new requests are refused."
        " null: the limit of the control group (memory.max), if it has one.",
    )

    # A check of the field, not of the section: an error at another key must not hide this one.
    @field_validator("bodies_bytes")
    @classmethod
    def _one_body_fits(cls, bodies_bytes: int, info: ValidationInfo) -> int:
        body_bytes = info.data.get("body_bytes", 0)
        if body_bytes > bodies_bytes:
            raise ValueError(
                f"must be at least body_bytes ({body_bytes}), or such a body could never be held"
            )
        return bodies_bytes


class AffinitySettings(Section):
    """How requests of one session are recognised. The first value that is present counts."""

    headers: Headers = Field(
        default=("x-session-id",),
        description="Request headers that hold a session key, in this order.",
    )
    body_fields: BodyFields = Field(
        default=("prompt_cache_key", "user"),
        description="Top-level keys of the body that hold a session key, in this order. They are"
        " read after the headers.",
    )
    strict: bool = Field(
        default=False,
        description="For the policy token_cost. true: a session stays at its backend while that"
        " backend can serve it and costs at most 10 s more than another one. false: a"
        " session stays only where its cached prefix makes that cheaper.",
    )


class TokensSettings(Section):
    """How prompt tokens are counted before a request is sent."""

    estimator: Literal["bytes", "tiktoken", "huggingface"] = Field(
        default="bytes",
        description="`bytes` estimates from the kinds of bytes in the prompt and learns from the"
        " token counts that backends report. `tiktoken` and `huggingface` count"
        " exactly, in a thread. That takes some milliseconds for each request.",
    )
    file: FilePath | None = Field(
        default=None,
        validate_default=True,
        description="File of the tokenizer: the ranks file for tiktoken, a tokenizer.json for"
        " huggingface. `bytes` takes none." + RELATIVE,
    )
    encoding: Literal["cl100k_base", "o200k_base"] = Field(
        default="cl100k_base", description="Encoding of tiktoken: how it splits text into pieces."
    )

    @field_validator("file")
    @classmethod
    def _a_file_is_given_where_one_is_used(
        cls, file: str | None, info: ValidationInfo
    ) -> str | None:
        estimator = info.data.get("estimator")
        if estimator == "bytes" and file is not None:
            raise ValueError("the estimator `bytes` takes no file: choose another or remove it")
        if estimator not in ("bytes", None) and file is None:
            raise ValueError(f"the estimator `{estimator}` needs `file`, the file of its tokenizer")
        return file


class TenantKeySettings(Section):
    """One key of a tenant. Give `key`, `key_file` or `key_sha256`."""

    key: Secret | None = Field(default=None, description="The key itself. Write it as `${VAR}`.")
    key_file: FilePath | None = Field(
        default=None,
        description="File with the key." + RELATIVE,
    )
    key_sha256: Digest | None = Field(
        default=None, description="SHA-256 of the key. The key itself is then in no file."
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
    """One tenant: a client or a group of clients with API keys of its own."""

    name: Name = Field(description="Name in the access log. No two tenants share one.")
    keys: Annotated[tuple[TenantKeySettings, ...], Field(strict=False)] = Field(
        min_length=1,
        max_length=64,
        description="API keys of the tenant. Give two while one replaces the other.",
    )


def _within_the_limit_of_keys(
    tenants: tuple[TenantSettings, ...],
) -> tuple[TenantSettings, ...]:
    keys = sum(len(tenant.keys) for tenant in tenants)
    if keys > TENANT_KEYS_MAX:
        raise ValueError(f"all tenants together may have {TENANT_KEYS_MAX} keys, not {keys}")
    return tenants


class DrainSettings(Section):
    """How penstock stops after SIGTERM."""

    grace_s: OptionalWaitS = Field(
        default=5.0,
        description="Time after SIGTERM in which readiness answers 503 and new requests are"
        " still served. A load balancer in front needs it to notice.",
    )
    timeout_s: DurationS = Field(
        default=300.0, description="Time for running requests to end, after grace_s."
    )


class LogSettings(Section):
    """What penstock logs."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least serious level that is logged."
    )
    access: bool = Field(
        default=True, description="Whether each request is logged as one line of JSON on stdout."
    )


class Settings(Section):
    """The configuration of penstock."""

    listen: ListenSettings = ListenSettings()
    admin: AdminSettings = AdminSettings()
    pools: Annotated[tuple[PoolSettings, ...], Field(strict=False)] = Field(
        min_length=1,
        max_length=256,
        description="The fleet. Give one pool for each model and version.",
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
        description="Clients that may send requests, each with keys of its own. An empty list:"
        " no key is asked for. All tenants together may have 1,024 keys.",
    )
    drain: DrainSettings = DrainSettings()
    paths: ProxiedPaths = Field(
        default=(),
        description="Further paths to proxy. Each is a method and an exact path, such as `GET"
        " /tokenizer_info`. Requests to them go to any ready backend of the first"
        " pool.",
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
