"""Whose certificate a connection has shown, and what a key beside it does."""

from typing import Any

import pytest

from penstock.conf.tenants import TenantSettings
from penstock.proxy.data.tenants import Tenants
from penstock.proxy.errors.client import Unauthorized
from penstock.proxy.wire.certificates import ClientCertificate
from penstock.proxy.wire.header_fields import Headers

ONE, TWO, NOBODYS = "one.example", "spiffe://acme/two", "other.example"
OURS, OTHERS = b"authority", b"another"
SETTINGS = [
    TenantSettings.model_validate(each)
    for each in (
        {"name": "one", "certificates": [ONE, "old.example"], "keys": [{"key": "sk-1"}]},
        {"name": "two", "certificates": [TWO]},
        {"name": "keyed", "keys": [{"key": "sk-3"}]},
    )
]


def shown(*names: str, authority: bytes = OURS) -> ClientCertificate:
    certificate = ClientCertificate(authority)
    certificate.names = names
    return certificate


def key(text: str) -> Headers:
    return [(b"x-api-key", text.encode())]


def tenant_of(tenants: Tenants, certificate: ClientCertificate | None, headers: Headers) -> Any:
    try:
        return tenants.on(certificate, headers)
    except Unauthorized:
        return None


@pytest.mark.parametrize(
    ("certificate", "headers", "tenant"),
    [
        (shown(ONE), [], "one"),
        (shown(TWO), [], "two"),
        (shown(NOBODYS, TWO), [], "two"),
        (shown(ONE, "old.example"), [], "one"),
        (shown(ONE), key("sk-1"), "one"),
        (shown(TWO), key("EMPTY"), "two"),
        (shown(TWO), key("sk-1"), None),
        (shown(TWO), key("sk-3"), None),
        (shown(ONE), [*key("sk-1"), (b"api-key", b"EMPTY")], "one"),
        (shown(ONE), [*key("sk-1"), (b"api-key", b"sk-3")], None),
        (shown(), [*key("EMPTY"), (b"api-key", b"sk-3")], "keyed"),
        (shown(ONE, TWO), [], None),
        (shown(ONE, TWO), key("sk-1"), "one"),
        (shown(NOBODYS), [], None),
        (shown(NOBODYS), key("sk-3"), "keyed"),
        (shown(), key("sk-3"), "keyed"),
        (shown(ONE.upper()), [], None),
        (shown(ONE, authority=OTHERS), [], None),
        (shown(ONE, authority=OTHERS), key("sk-3"), "keyed"),
        (ClientCertificate(OURS), [], None),
        (ClientCertificate(OURS), key("sk-3"), "keyed"),
        (None, [], None),
        (None, key("sk-3"), "keyed"),
    ],
)
def test_who_asks(certificate: Any, headers: Headers, tenant: str | None) -> None:
    assert tenant_of(Tenants(SETTINGS, authority=OURS), certificate, headers) == tenant


def test_without_tenants_any_certificate_of_the_authority_will_do() -> None:
    tenants = Tenants([], authority=OURS)
    assert tenants.asks
    got = [
        tenant_of(tenants, certificate, [])
        for certificate in (shown(), shown(ONE, authority=OTHERS), ClientCertificate(OURS), None)
    ]
    assert got == ["", None, None, None]


def test_the_tenant_is_found_once_and_again_after_a_reload() -> None:
    certificate = shown(ONE)
    before = Tenants(SETTINGS, authority=OURS)
    assert before.on(certificate, []) == "one"
    certificate.names = (TWO,)  # it is not looked at again
    assert before.on(certificate, []) == "one"
    certificate.names = (ONE,)
    for after, tenant in (
        (Tenants(SETTINGS[1:], authority=OURS), None),
        (Tenants(SETTINGS, authority=OTHERS), None),
        (Tenants(SETTINGS, authority=OURS), "one"),
    ):
        assert tenant_of(after, certificate, []) == tenant
        assert certificate.tenant == (tenant or "")
