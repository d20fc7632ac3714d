"""Certificates of clients and towards backends: what may be configured, and what is told if not."""

import pytest

from tests.unit.conf.folder import FLEET, Folder

ASKS = "listen: {tls: {cert_file: c, key_file: k, client_ca_file: ca}}\n"
WANTED = (
    "must be a DNS name or a URI such as spiffe://acme/research, as it stands in the certificate's"
    " subject alternative names; no wildcard, address or e-mail"
)


@pytest.fixture(autouse=True)
def _files(folder: Folder) -> None:
    """Refused configurations tell which files are missing, too."""
    for name in ("c", "k", "ca", "a"):
        (folder.path / name).write_text("")
        (folder.path / name).chmod(0o600)


def tenants(*lines: str) -> str:
    return "tenants:\n" + "".join(f"  - {line}\n" for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        "a.example",
        "GPU-7",
        "_svc.a_b.example",
        "spiffe://acme/research",
        "https://a.example:1/?x=%41",
    ],
)
def test_names_are_taken_as_they_are(folder: Folder, name: str) -> None:
    text = FLEET + ASKS + tenants(f'{{name: t, certificates: ["{name}"]}}')
    (tenant,) = folder.load(text).settings.tenants
    assert (tenant.certificates, tenant.keys) == ((name,), ())


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        *["*.example", "a.*", "10.0.0.1", "::1", "a@b.example", "CN=a", "/a", "a:1", "spiffe://"],
    ],
)
def test_what_is_no_name(folder: Folder, name: str) -> None:
    text = FLEET + ASKS + tenants(f'{{name: t, certificates: ["{name}"]}}')
    (issue,) = folder.issues(text)
    assert issue == f'conf.yaml:7: tenants[0].certificates[0]: {WANTED}, got "{name}"'


def test_a_name_is_one_tenants(folder: Folder) -> None:
    two = tenants(
        "{name: one, certificates: [a.example, b.example]}",
        "{name: two, certificates: [c.example, b.example]}",
    )
    assert folder.issues(FLEET + ASKS + two) == [
        "conf.yaml:8: tenants[1].certificates[1]: 'b.example' is taken by"
        " tenants[0].certificates[1]; each name is for one tenant"
    ]


@pytest.mark.parametrize("listen", ["", "listen: {tls: {cert_file: c, key_file: k}}\n"])
def test_something_must_verify_certificates(folder: Folder, listen: str) -> None:
    text = FLEET + tenants("{name: one, keys: [{key: k}]}", "{name: t, certificates: [a]}") + listen
    (issue,) = folder.issues(text)
    assert issue == (
        "conf.yaml:7: tenants[1].certificates: nothing verifies them: name the authority that"
        " issues them in listen.tls.client_ca_file"
    )


@pytest.mark.parametrize("tenant", ["{name: t}", "{name: t, keys: [], certificates: []}"])
def test_a_tenant_must_be_told_by_something(folder: Folder, tenant: str) -> None:
    assert folder.issues(FLEET + tenants(tenant)) == [
        "conf.yaml:6: tenants[0]: give keys or certificates (or both):"
        " nothing else tells its requests"
    ]


@pytest.mark.parametrize("given", ["cert_file: c", "key_file: k"])
def test_a_pools_certificate_and_key_come_together(folder: Folder, given: str) -> None:
    text = FLEET.replace("chat", f"chat\n    tls: {{{given}}}")
    assert folder.issues(text) == [
        "conf.yaml:3: pools[0].tls: give both cert_file and key_file, or neither"
    ]


def test_names_of_files_start_at_the_configurations_folder(folder: Folder) -> None:
    tls = "tls: {ca_file: a, cert_file: c, key_file: k}"
    settings = folder.load(FLEET.replace("chat", f"chat\n    {tls}") + ASKS).settings
    pool, listen = settings.pools[0].tls, settings.listen.tls
    assert pool is not None
    assert listen is not None
    assert [pool.ca_file, pool.cert_file, pool.key_file, listen.client_ca_file] == [
        str(folder.path / name) for name in ("a", "c", "k", "ca")
    ]


def test_what_does_nothing_and_who_may_read_the_key_is_doubted(folder: Folder) -> None:
    (folder.path / "k").chmod(0o644)
    text = FLEET.replace("chat", "chat\n    tls: {cert_file: c, key_file: k}")
    assert folder.warnings(text) == [
        'conf.yaml:3: pools[0].tls.key_file: "k": everybody on this machine may read it'
        " (mode 0644); chmod 600",
        "conf.yaml:3: pools[0].tls.cert_file: does nothing: no backend of this pool is https",
    ]


def test_authorities_without_certificates_are_doubted(folder: Folder) -> None:
    key = "0123456789abcdef"
    keyed = f"{{name: k, keys: [{{key_sha256: {key * 4}}}]}}"
    assert folder.warnings(FLEET + ASKS + tenants(keyed)) == [
        "conf.yaml:5: listen.tls.client_ca_file: does little: no tenant has certificates, so each"
        " request still needs a key"
    ]
    assert not folder.load(FLEET + ASKS).warnings
    assert not folder.load(FLEET + ASKS + tenants(keyed, "{name: c, certificates: [a]}")).warnings
