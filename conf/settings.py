"""The settings: every key of the configuration, its default, its limits and its purpose.

Settings are frozen values and always valid. Unknown keys are errors. The descriptions become part
of the JSON Schema. This module does not know where values come from or how errors are shown: see
`load`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from penstock.conf.admission import AdmissionSettings
from penstock.conf.classifier import ClassifierSettings
from penstock.conf.health import HealthSettings
from penstock.conf.keypath import spell
from penstock.conf.kinds import (
    RELATIVE,
    BodyFields,
    DurationS,
    FilePath,
    Headers,
    Host,
    OptionalWaitS,
    Port,
    ProxiedPaths,
    RunbookUrl,
    Secret,
    Section,
    is_loopback,
)
from penstock.conf.listen import ListenSettings
from penstock.conf.pools import PoolSettings
from penstock.conf.repeated_names import repeated_names
from penstock.conf.routes import Routes, RouteSettings, check_routes
from penstock.conf.slo import Slos, SloSettings, check_slos
from penstock.conf.tenants import TENANT_KEYS_MAX, Tenants
from penstock.conf.tracing import TracingSettings


class AdminSettings(Section):
    """The admin port: probes, metrics and the state of the fleet."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address of the admin port. An address other than loopback needs a token. /,"
        " /livez, /readyz, /metrics and /ui never ask for it.",
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

    metrics_token_file: FilePath | None = Field(
        default=None,
        description="File with a token that is good for /metrics only." + RELATIVE,
    )
    metrics_token: Secret | None = Field(
        default=None,
        description="Grants all of /metrics. Series of tenants and costs need this or the admin"
        " token off loopback, and on loopback if there is an admin token. Prefer"
        " `metrics_token_file` or `${VAR}`.",
    )

    view_token_file: FilePath | None = Field(
        default=None,
        description="File with a token for readers." + RELATIVE,
    )
    view_token: Secret | None = Field(
        default=None,
        description="Who has this token may read all that the admin token shows, and changes"
        " nothing. Prefer `view_token_file` or `${VAR}`.",
    )

    runbook_url: RunbookUrl | None = Field(
        default=None,
        description="Where your copy of docs/runbook.md is: the page links to its sections, and"
        " `penstock alerts` names them. null: no links.",
    )

    add_backends: bool = Field(
        default=False,
        description="Whether POST and DELETE /api/v1/backends may add backends and remove them"
        " again. It needs an admin token. An added one stays until it is removed or the"
        " configuration is reloaded.",
    )

    @model_validator(mode="after")
    def _who_adds_has_a_token(self) -> Self:
        if self.add_backends and self.token is None and self.token_file is None:
            raise ValueError("add_backends needs an admin token: give token_file")
        return self

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


class TimeoutSettings(Section):
    """How long penstock waits for backends and for clients."""

    connect_s: DurationS = Field(default=1.0, description="Time to connect to a backend.")
    first_byte_s: DurationS = Field(
        default=120.0,
        description="Time until the first token of a stream, or the first byte of another answer,"
        " from when it is sent to a backend. It must cover the engine's queue and prefill: the wait"
        " in penstock is bounded by `max_wait_s` of its class. An answer that is not streamed gets"
        " 0.1 s more for each token that it may have.",
    )
    first_byte_s_per_1k_tokens: OptionalWaitS = Field(
        default=1.0, description="Time added to `first_byte_s` for each 1,000 prompt tokens."
    )
    total_s: DurationS | None = Field(
        default=None, description="Time for a whole request. null: no limit."
    )
    idle_s: DurationS = Field(
        default=600.0,
        description="Longest pause between two bytes of an answer. In a stream it counts after the"
        " first token only. At a backend that probes found hung, a stream ends after `hold_s`"
        " without a token.",
    )
    hold_s: DurationS = Field(
        default=20.0,
        description="How long the status line of a stream waits for the first token. Until then"
        " a failing backend is replaced and the client does not notice. Afterwards"
        " status 200 is sent, followed by pings. Later a stream gets a ping whenever nothing was"
        " sent for this time. Choose less than the idle timeout of a load balancer in front.",
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
        " `body_bytes`. A memory limit may allow less (docs/overload.md).",
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
        " It also bounds how many sessions and stored responses are remembered."
        " null: 80 % of the limit of the control group (memory.max), if it has one.",
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
        " session stays while its backend costs at most 2 % more than the cheapest.",
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
        default=True, description="Whether each request is logged as one line on stdout."
    )
    format: Literal["json", "text"] = Field(
        default="json",
        description="What that line is: JSON for programs, or aligned text for people.",
    )
    messages: Literal["json", "text"] = Field(
        default="text",
        description="What all other lines are, on stderr. Changing it needs a restart.",
    )


class ReloadSettings(Section):
    """When the configuration is read again."""

    watch: bool = Field(
        default=False,
        description="Whether a changed configuration file is reloaded within two seconds, as after"
        " SIGHUP. Files that it names are read then, too, but not looked at.",
    )


class StateSettings(Section):
    """What shall survive a restart."""

    dir: FilePath | None = Field(
        default=None,
        description="Folder for what each tenant has used, where canaries stand, and what operators"
        " have ordered of backends. null: nothing is written. After a restart budgets are full"
        " again, canaries begin anew, and no backend is drained." + RELATIVE,
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
    tenants: Tenants = Field(
        default=(),
        max_length=TENANT_KEYS_MAX,
        description="Clients that may send requests, each with keys or certificates of its own."
        " An empty list: no key is asked for. All tenants together may have 1,024 keys.",
    )
    admission: AdmissionSettings = AdmissionSettings()
    slo: Slos = Field(
        default=(),
        description="What users are promised, by pool and class. An empty list: nothing is"
        " measured for it.",
    )
    classifier: ClassifierSettings | None = Field(
        default=None,
        description="Gives requests the labels that routes may ask for. null: no request has one.",
    )
    routes: Routes = Field(
        default=(),
        description="Which pool and model answer which requests. The first route that matches"
        " counts. Where none does, and with an empty list, a request goes to the pools that serve"
        " its model (docs/routes.md).",
    )
    reload: ReloadSettings = ReloadSettings()
    state: StateSettings = StateSettings()
    drain: DrainSettings = DrainSettings()
    paths: ProxiedPaths = Field(
        default=(),
        description="Further paths to proxy. Each is a method and an exact path, such as `GET"
        " /tokenizer_info`. Requests to them go to any ready backend of the first"
        " pool. Of tenants' limits those of requests, `concurrent` and `models` hold there.",
    )
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @field_validator("slo")
    @classmethod
    def _slos_are_of_something(
        cls, slos: tuple[SloSettings, ...], info: ValidationInfo
    ) -> tuple[SloSettings, ...]:
        admission: AdmissionSettings | None = info.data.get("admission")
        classes = admission.classes if admission is not None else ()
        pools: tuple[PoolSettings, ...] = info.data.get("pools", ())
        check_slos(slos, [each.name for each in pools], [each.name for each in classes])
        return slos

    @field_validator("routes")
    @classmethod
    def _routes_lead_somewhere(
        cls, routes: tuple[RouteSettings, ...], info: ValidationInfo
    ) -> tuple[RouteSettings, ...]:
        check_routes(routes, info.data)
        return routes

    @model_validator(mode="after")
    def _classes_are_known(self) -> Self:
        known = [each.name for each in self.admission.classes]
        for tenant in self.tenants:
            for name in (tenant.service_class, *tenant.classes):
                if name is not None and name not in known:
                    problem = f"the tenant {tenant.name} has the class {name}, which is not in"
                    problem += f" admission.classes: there are {', '.join(known)}"
                    raise PydanticCustomError("no_class", "{problem}", {"problem": problem})
        return self

    @model_validator(mode="after")
    def _certificates_can_be_verified(self) -> Self:
        if self.listen.tls is None or self.listen.tls.client_ca_file is None:
            for index, tenant in enumerate(self.tenants):
                if tenant.certificates:
                    raise PydanticCustomError("no_client_ca", "", {"at": ("tenants", index)})
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for path, problem in repeated_names(self.model_dump(include={"pools", "tenants"})):
            raise PydanticCustomError(
                "repeated_name", "{problem}", {"problem": f"{spell(path)}: {problem}"}
            )
        return self
