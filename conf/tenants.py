"""The settings of tenants and their keys."""

from hashlib import sha256
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.conf.admission import CLASSES_MAX
from penstock.conf.kinds import (
    RELATIVE,
    Amount,
    CertificateName,
    Digest,
    FilePath,
    Models,
    Name,
    Secret,
    Section,
    Weight,
)

# The limit for all tenants together: every key is compared for each request (docs/security.md).
TENANT_KEYS_MAX: Final = 1_024
REFILLS: Final = " The budget refills evenly: from empty to full in that time."


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


class TenantLimitSettings(Section):
    """What one tenant may use. What is not named has no limit."""

    requests_per_minute: Amount | None = Field(default=None, description="Requests." + REFILLS)
    requests_per_day: Amount | None = Field(default=None, description="Requests." + REFILLS)
    tokens_per_minute: Amount | None = Field(
        default=None,
        description="Prompt tokens that were not cached, and generated tokens." + REFILLS,
    )
    tokens_per_day: Amount | None = Field(default=None, description="The same for a day.")
    concurrent: Amount | None = Field(default=None, description="Requests at the same time.")
    prompt_tokens: Amount | None = Field(default=None, description="The longest prompt.")
    max_tokens: Amount | None = Field(
        default=None,
        description="The largest `max_tokens` of a request, times its choices. Requests must then"
        " give one.",
    )
    models: Models = Field(default=(), description="The models that it may ask for. Empty: all.")


class TenantSettings(Section):
    """One tenant: a client or a group of clients with keys or certificates of its own."""

    name: Name = Field(description="Name in the access log. No two tenants share one.")
    keys: Annotated[tuple[TenantKeySettings, ...], Field(strict=False)] = Field(
        default=(),
        max_length=64,
        description="API keys of the tenant. Give two while one replaces the other. It needs keys"
        " or `certificates`.",
    )
    certificates: Annotated[tuple[CertificateName, ...], Field(strict=False)] = Field(
        default=(),
        max_length=64,
        description="Names in the certificates of its clients: DNS names or URIs such as"
        " spiffe://acme/research. One of them must equal a subject alternative name of the"
        " certificate exactly. `listen.tls.client_ca_file` is needed.",
    )
    weight: Weight = Field(
        default=1.0,
        description="Share of the tokens beside other tenants of the same class, while they wait.",
    )
    service_class: Name | None = Field(
        default=None,
        alias="class",
        description="Class of its requests. null: `admission.default_class`.",
    )
    classes: Annotated[tuple[Name, ...], Field(strict=False, max_length=CLASSES_MAX)] = Field(
        default=(),
        description="Further classes that its requests may ask for with the header"
        " `x-penstock-priority`. Lower ones than its own may always be asked for.",
    )
    degrade: bool = Field(
        default=False,
        description="Whether the steps of `admission.degrade` apply to its requests.",
    )
    limits: TenantLimitSettings = Field(
        default=TenantLimitSettings(), description="What it may use (docs/budgets.md)."
    )

    @model_validator(mode="after")
    def _can_be_told(self) -> Self:
        if not self.keys and not self.certificates:
            raise ValueError("give keys or certificates (or both): nothing else tells its requests")
        return self


def _within_the_limit_of_keys(
    tenants: tuple[TenantSettings, ...],
) -> tuple[TenantSettings, ...]:
    keys = sum(len(tenant.keys) for tenant in tenants)
    if keys > TENANT_KEYS_MAX:
        raise ValueError(f"all tenants together may have {TENANT_KEYS_MAX} keys, not {keys}")
    return tenants


Tenants = Annotated[
    tuple[TenantSettings, ...], Field(strict=False), AfterValidator(_within_the_limit_of_keys)
]
