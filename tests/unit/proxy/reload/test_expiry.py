"""When certificates end, as far as their bytes tell."""

from datetime import UTC, datetime

import pytest
import trustme

from penstock.proxy.reload.certificates import expiry_of

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
