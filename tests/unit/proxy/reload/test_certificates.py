"""Certificate files that cannot be used are told at their line."""

import contextlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from penstock.conf.issues import ConfigError
from penstock.conf.load import load
from penstock.proxy.commands.cli import main
from penstock.proxy.reload.certificates import certificates_of, expiry_of
from penstock.proxy.wire.certificates import Certificates
from tests.certificates import client_certificate, client_context, issue

OURS = {"cert_file": "tls.crt", "key_file": "tls.key"}
PLAIN = {"name": "a", "url": "http://a:1"}
HTTPS = {"name": "a", "url": "https://a:1"}


def written(folder: Path, tls: Any = None, *, backend: Any = PLAIN, pool: Any = None) -> Path:
    """A configuration with one key a line."""
    config = {
        "listen": {"tls": tls},
        "pools": [{"name": "p", "tls": pool, "backends": [backend]}],
    }
    path = folder / "penstock.yaml"
    path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return path


def made(path: Path) -> Certificates:
    return certificates_of(load(path, {}, {}), path)


def refused(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as error:
        made(path)
    return [str(issue).removeprefix(f"{path}:") for issue in error.value.issues]


def test_relative_names_start_at_the_configurations_folder(tmp_path: Path) -> None:
    issue(tmp_path)
    context = made(written(tmp_path, OURS)).listener
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_plain_http_needs_no_context(tmp_path: Path) -> None:
    assert made(written(tmp_path)) == Certificates(None, {})


def test_backends_are_verified_by_name_and_authority(tmp_path: Path) -> None:
    issue(tmp_path)
    for pool in (None, {"ca_file": "tls.ca"}):
        context = made(written(tmp_path, backend=HTTPS, pool=pool)).pools["p"]
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1


def test_nobody_has_us_calculate_with_what_is_large(tmp_path: Path) -> None:
    """Neither groups nor ciphers that are costly: a hello of ffdhe8192 alone took 240 ms."""
    issue(tmp_path)
    made_of = made(written(tmp_path, OURS, backend=HTTPS))
    for context in (made_of.listener, made_of.pools["p"]):
        assert context is not None
        assert all(
            "ECDHE" in each["name"] or each["protocol"] == "TLSv1.3"
            for each in context.get_ciphers()
        )
    groups = {}
    for group in ("prime256v1", "X25519"):
        client, server = ssl.create_default_context(cafile=tmp_path / "tls.ca"), made_of.listener
        client.set_ecdh_curve(group)
        groups[group] = _shakes(client, server)
    assert groups == {"prime256v1": True, "X25519": False}


def _shakes(client: ssl.SSLContext, server: ssl.SSLContext | None) -> bool:
    assert server is not None
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(back, there, server_hostname="localhost")
    right = server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        try:
            for end in (left, right):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        except ssl.SSLError:
            return False
    return left.version() is not None


def encrypted(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    (folder / "tls.key").write_bytes(pem)


def a_folder(folder: Path) -> None:
    (folder / "tls.key").unlink()
    (folder / "tls.key").mkdir()


def broken(folder: Path) -> None:
    text = (folder / "tls.crt").read_text().splitlines()
    (folder / "tls.crt").write_text("\n".join([text[0], "AAAA", *text[3:]]) + "\n")


CERT, KEY = "4: listen.tls.cert_file: tls.crt", "5: listen.tls.key_file: tls.key"
NO_FILE = "cannot be read: No such file or directory"
CASES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "tls.crt").unlink(), f"{CERT} {NO_FILE}"),
    (lambda folder: (folder / "tls.key").unlink(), f"{KEY} {NO_FILE}"),
    (a_folder, f"{KEY} cannot be read: Is a directory"),
    (lambda folder: (folder / "tls.crt").write_text("x"), f"{CERT} holds no PEM certificate"),
    (
        lambda folder: (folder / "tls.key").write_bytes((folder / "tls.crt").read_bytes()),
        f"{KEY} holds no PEM private key",
    ),
    (broken, f"{CERT} holds a certificate that cannot be read"),
    (
        lambda folder: issue(folder, name="other").key.rename(folder / "tls.key"),
        f"{KEY} is not the key of cert_file",
    ),
    (encrypted, f"{KEY} is encrypted: nobody is there to type a passphrase"),
    (
        lambda folder: (folder / "tls.key").write_text("-----BEGIN PRIVATE KEY-----\nAA\n"),
        f"{KEY} cannot be used with cert_file",
    ),
]


@pytest.mark.parametrize(("spoil", "expected"), CASES)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path,
    spoil: Callable[[Path], object],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    issue(tmp_path)
    spoil(tmp_path)
    path = written(tmp_path, OURS)
    (told,) = refused(path)
    assert told.startswith(expected)
    assert main(["check", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"{path}:{expected}")


def test_an_authority_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("x")
    path = written(tmp_path, backend=HTTPS, pool={"ca_file": "ca"})
    assert refused(path) == ["9: pools[0].tls.ca_file: ca holds no PEM certificate"]


def test_a_chain_of_certificates_is_used_whole(tmp_path: Path) -> None:
    between = trustme.CA().create_child_ca()
    files = issue(tmp_path, by=between)
    assert files.cert.read_text().count("BEGIN CERTIFICATE") == 2
    assert made(written(tmp_path, files.settings)).listener is not None


# Certificates of clients, and ours for backends --------------------------------------------------


def asks(folder: Path, tenants: Any = ()) -> ssl.SSLContext:
    """The context of a data port that asks for certificates."""
    tls = issue(folder).settings | {"client_ca_file": "tls.ca"}
    path = written(folder, tls)
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"tenants": tenants}))
    context = made(path).listener
    assert context is not None
    return context


CERTIFIED = {"name": "c", "certificates": ["a.example"]}
KEYED = {"name": "k", "keys": [{"key": "x"}]}


@pytest.mark.parametrize(
    ("tenants", "required"),
    [
        ([], True),
        ([CERTIFIED], True),
        ([CERTIFIED, KEYED], False),
        ([KEYED], False),
        ([CERTIFIED | {"keys": [{"key": "x"}]}], False),
    ],
)
def test_a_certificate_is_required_unless_a_key_may_do(
    tmp_path: Path, tenants: Any, required: bool
) -> None:
    context = asks(tmp_path, tenants)
    assert context.verify_mode is (ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL)


def test_nobody_is_asked_again_after_the_handshake(tmp_path: Path) -> None:
    context = asks(tmp_path)
    assert not context.post_handshake_auth
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_an_intermediate_authority_is_believed_without_its_root(tmp_path: Path) -> None:
    between = trustme.CA().create_child_ca()
    context = asks(tmp_path)
    shown = client_certificate(tmp_path, "a.example", by=between)
    assert not _shakes(client_context(shown), context)
    files = issue(tmp_path)
    (tmp_path / "between").write_bytes(between.cert_pem.bytes())
    tls = files.settings | {"client_ca_file": "between"}
    assert _shakes(client_context(shown), made(written(tmp_path, tls)).listener)


def test_another_file_of_authorities_is_told_from_the_same_one(tmp_path: Path) -> None:
    tls = issue(tmp_path).settings | {"client_ca_file": "tls.ca"}
    path = written(tmp_path, tls)
    first = made(path).client_authority
    assert first == made(path).client_authority != b""
    (tmp_path / "tls.ca").write_bytes(trustme.CA().cert_pem.bytes())
    assert made(path).client_authority not in (first, b"")
    assert made(written(tmp_path, issue(tmp_path).settings)).client_authority == b""


@pytest.mark.parametrize(
    ("content", "told"),
    [("x", "holds no PEM certificate"), (None, NO_FILE)],
)
def test_authorities_of_clients_that_are_none(
    tmp_path: Path, content: str | None, told: str
) -> None:
    tls = issue(tmp_path).settings | {"client_ca_file": "ca"}
    if content is not None:
        (tmp_path / "ca").write_text(content)
    assert refused(written(tmp_path, tls)) == [f"6: listen.tls.client_ca_file: ca {told}"]


@pytest.mark.parametrize("with_authority", [True, False])
def test_a_pools_certificate_is_shown(tmp_path: Path, with_authority: bool) -> None:
    server = asks(tmp_path)
    shown = client_certificate(tmp_path, "penstock.example")
    tls = shown.settings | ({"ca_file": "tls.ca"} if with_authority else {})
    context = made(written(tmp_path, backend=HTTPS, pool=tls)).pools["p"]
    assert not context.post_handshake_auth
    if not with_authority:
        context.load_verify_locations(tmp_path / "tls.ca")
    assert _shakes(context, server)


def test_what_is_wrong_with_a_pools_files_is_told_with_its_line(tmp_path: Path) -> None:
    shown = client_certificate(tmp_path, name="tls")
    client_certificate(tmp_path, name="other").key.replace(shown.key)
    path = written(tmp_path, backend=HTTPS, pool={"ca_file": "none", **OURS})
    assert refused(path) == [f"9: pools[0].tls.ca_file: none {NO_FILE}"]
    (tmp_path / "none").write_bytes(shown.ca.read_bytes())
    assert refused(path) == ["11: pools[0].tls.key_file: tls.key is not the key of cert_file"]
    (tmp_path / "tls.crt").write_text("x")
    (tmp_path / "tls.key").unlink()
    assert refused(path) == [
        "10: pools[0].tls.cert_file: tls.crt holds no PEM certificate",
        f"11: pools[0].tls.key_file: tls.key {NO_FILE}",
    ]


SOON = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
FAR = datetime(2077, 1, 2, 3, 4, 5, tzinfo=UTC)  # in another format, from 2050 on


def pem(ends: datetime, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> bytes:
    issued = trustme.CA().issue_cert("localhost", not_after=ends, key_type=key_type)
    return issued.cert_chain_pems[0].bytes()


@pytest.mark.parametrize("key_type", [trustme.KeyType.ECDSA, trustme.KeyType.RSA])
@pytest.mark.parametrize("ends", [SOON, FAR])
def test_a_certificate(ends: datetime, key_type: trustme.KeyType) -> None:
    assert expiry_of(pem(ends, key_type)) == ends.timestamp()


def test_of_several_the_first_to_end_counts() -> None:
    assert expiry_of(b"comment\n" + pem(FAR) + b"\n" + pem(SOON) + pem(FAR)) == SOON.timestamp()


def test_what_cannot_be_read_is_left_out() -> None:
    whole = pem(SOON)
    body = whole.split(b"\n")
    for broken in (
        b"",
        b"-----BEGIN CERTIFICATE-----\nMAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nxxxxx\n-----END CERTIFICATE-----\n",
        b"\n".join([*body[:3], *body[-2:]]),
    ):
        assert expiry_of(broken) is None
        assert expiry_of(broken + whole) == SOON.timestamp()
