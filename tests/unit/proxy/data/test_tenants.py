"""Who asks is told by all keys alike, and nothing of a key shows."""

from hashlib import sha256
from hmac import compare_digest

import pytest

from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.session_key import SessionKeys
from penstock.balancing.tokens import TokenEstimator
from penstock.conf.tenants import TENANT_KEYS_MAX, TenantSettings
from penstock.proxy.data.tenants import Tenants
from penstock.proxy.dialects import CHAT, MESSAGES
from penstock.proxy.errors.client import Unauthorized
from penstock.proxy.wire.header_fields import Headers

DIGEST = sha256(b"sk-by-digest").hexdigest()
SETTINGS = [
    TenantSettings.model_validate({"name": "one", "keys": [{"key": "sk-1"}, {"key": "sk-2"}]}),
    TenantSettings.model_validate({"name": "two", "keys": [{"key_sha256": DIGEST}]}),
]
BEARER, API_KEY, AZURE_KEY = b"authorization", b"x-api-key", b"api-key"


class Compared:
    """Compares, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, one: bytes, other: bytes) -> bool:
        self.count += 1
        assert len(one) == len(other) == 32
        return compare_digest(one, other)


def tenant_of(headers: Headers, compared: Compared | None = None) -> str | None:
    try:
        return Tenants(SETTINGS, compared or Compared()).of(headers)
    except Unauthorized:
        return None


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ([(BEARER, b"Bearer sk-1")], "one"),
        ([(BEARER, b"bearer   sk-2")], "one"),
        ([(API_KEY, b"sk-2")], "one"),
        ([(b"host", b"x"), (API_KEY, b"sk-by-digest")], "two"),
        ([(BEARER, b"Bearer sk-1"), (API_KEY, b"sk-1")], "one"),
        ([], None),
        ([(b"host", b"sk-1")], None),
        ([(BEARER, b"Bearer sk-3")], None),
        ([(BEARER, b"Bearer sk-1x")], None),
        ([(BEARER, b"Bearer SK-1")], None),
        ([(BEARER, b"Bearer")], None),
        ([(BEARER, b"Bearer ")], None),
        ([(BEARER, b"sk-1")], None),
        ([(BEARER, b"Basic sk-1")], None),
        ([(BEARER, b"Bearer " + DIGEST.encode())], None),
        ([(API_KEY, b"")], None),
        ([(API_KEY, b"Bearer sk-1")], None),
        ([(BEARER, b"Bearer \xff\xfe")], None),
        ([(AZURE_KEY, b"sk-1")], "one"),
        ([(BEARER, b"Basic x"), (API_KEY, b"sk-1")], "one"),
    ],
)
def test_a_key_tells_its_tenant_and_every_digest_is_compared(
    headers: Headers, tenant: str | None
) -> None:
    compared = Compared()
    assert tenant_of(headers, compared) == tenant
    assert compared.count == 3


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ([(BEARER, b"Bearer sk-1"), (API_KEY, b"sk-2")], "one"),
        ([(BEARER, b"Bearer EMPTY"), (API_KEY, b"sk-2")], "one"),
        ([(BEARER, b"Bearer sk-2"), (API_KEY, b"EMPTY")], "one"),
        ([(BEARER, b"Bearer EMPTY"), (AZURE_KEY, b"sk-by-digest")], "two"),
        ([(BEARER, b"Bearer x"), (API_KEY, b"y"), (AZURE_KEY, b"sk-1")], "one"),
        ([(BEARER, b"Bearer sk-1"), (API_KEY, b"sk-by-digest")], None),
        ([(BEARER, b"Bearer x"), (API_KEY, b"y")], None),
    ],
)
def test_of_several_keys_the_one_tenant_counts_that_they_name(
    headers: Headers, tenant: str | None
) -> None:
    compared = Compared()
    assert tenant_of(headers, compared) == tenant
    assert compared.count == 3 * len(headers)


def test_a_refusal_says_that_several_keys_were_sent_and_not_which_is_right() -> None:
    table = Tenants(SETTINGS)
    told = set()
    for other in (b"sk-by-digest", b"wrong"):
        first = b"Bearer sk-1" if other == b"sk-by-digest" else b"Bearer x"
        with pytest.raises(Unauthorized, match="match no tenant, or several") as error:
            table.of([(BEARER, first), (API_KEY, other)])
        told.add(str(error.value))
    assert len(told) == 1
    with pytest.raises(Unauthorized, match="A valid API key is needed"):
        table.of([(BEARER, b"Bearer x"), (API_KEY, b"x")])


def test_as_many_keys_as_are_allowed() -> None:
    """The last one is found, and costs what the first does."""
    per_tenant = 64
    tenants = [
        TenantSettings.model_validate(
            {"name": f"t{n}", "keys": [{"key": f"sk-{n}-{k}"} for k in range(per_tenant)]}
        )
        for n in range(TENANT_KEYS_MAX // per_tenant)
    ]
    compared = Compared()
    table = Tenants(tenants, compared)
    assert table.of([(API_KEY, b"sk-0-0")]) == "t0"
    assert table.of([(API_KEY, b"sk-15-63")]) == "t15"
    assert compared.count == 2 * TENANT_KEYS_MAX == 2_048


def test_without_tenants_nobody_is_asked() -> None:
    assert not Tenants([]).asks
    assert Tenants(SETTINGS).asks


def test_the_refusal_says_nothing_of_the_key() -> None:
    error = Unauthorized()
    assert error.headers == [(b"www-authenticate", b"Bearer")]
    assert b'"type":"authentication_error"' in MESSAGES.error_body(error)
    assert b'"code":"unauthorized"' in CHAT.error_body(error)


def test_keys_are_not_kept() -> None:
    table = Tenants(SETTINGS)
    kept = repr([getattr(table, name) for name in ("_digests", "_names")])
    assert "sk-" not in kept


def test_equal_sessions_of_two_tenants_are_two() -> None:
    keys = SessionKeys(["x-session-id"], ["user"])

    def session(tenant: str, body: bytes = b'{"prompt":"x"}') -> str | None:
        headers = [(b"content-type", b"application/json"), (b"x-session-id", b"s")]
        return (
            Reader(TokenEstimator(), sessions=keys)
            .read("/v1/completions", headers, body, GENERATION, tenant=tenant)
            .session
        )

    assert session("") == "s"
    assert session("one") not in (session("two"), session(""), None)
    assert session("one") == session("one", b"")
